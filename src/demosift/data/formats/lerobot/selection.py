"""The kept part of a LeRobot dataset, in its own version: frames, videos and metadata that agree.

Kept episodes get new numbers. Videos are copied as they are, since an episode's metadata (version 3) or its own file
(version 2) says where its pictures lie, and `timestamp` still counts from there. Statistics of numbers are computed
again; those of pictures are merged from the kept episodes, where the dataset has them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from demosift.data.formats.lerobot import locate
from demosift.data.formats.lerobot.reading import (
    NUMBERS,
    Info,
    Shard,
    lerobot_parts,
    list_shards,
    observation_keys,
    order_frames,
    read_info,
)
from demosift.data.formats.lerobot.stats import Stats, aggregate_stats, feature_stats, from_json, to_json
from demosift.data.formats.lerobot.writing import (
    DATA_PATH,
    VIDEO_PATH,
    as_column,
    episode_row,
    write_episodes,
)
from demosift.data.parquet import as_indices, as_numbers, read_table, to_python, write_table
from demosift.data.recording import check_recording, followed_rows
from demosift.data.selection import Selection
from demosift.files import (
    Unusable,
    atomic_folder,
    below,
    copy_regular,
    mismatch,
    parse_json,
    read_json,
    read_text,
    refuse_links,
    write_json,
)
from demosift.files import to_json as dump_json
from demosift.types import InputError

OLD_DATA_PATH = "data/chunk-{chunk:03d}/episode_{episode:06d}.parquet"
OLD_VIDEO_PATH = "videos/chunk-{chunk:03d}/{key}/episode_{episode:06d}.mp4"

_REWRITTEN = ("info.json", "stats.json", "episodes.jsonl", "episodes_stats.jsonl")
_FILE_BYTES = 100 << 20

Row = dict[str, Any]
Stretches = Iterator[tuple[int, pa.Table]]  # of kept frames, each with the episode it comes from


class Written(NamedTuple):
    features: dict[str, dict[str, Any]]
    num_frames: int
    stats: list[dict[str, Stats]]  # of each episode


def keep_lerobot(place: str, target: str, selection: Selection, **options: str) -> None:
    info = read_info(place)
    refuse_links(info.root)
    stretches = _stretches(place, info, selection, **options)
    num_bytes = sum(path.stat().st_size for path in info.root.rglob("*") if path.is_file())
    with atomic_folder(locate(target), num_bytes=num_bytes) as root:
        _copy_rest(info, root)
        written = (_write_version_3 if info.version[0] == 3 else _write_version_2)(info, root, stretches)
        old_stats = info.root / "meta" / "stats.json"
        if old_stats.is_file():
            kept = read_json(old_stats)
            if not isinstance(kept, dict):
                raise InputError(f"{old_stats}: not the statistics of a dataset")
            merged = {**kept, **to_json(aggregate_stats(written.stats))}
            write_json(root / "meta" / "stats.json", merged)
        num_episodes = len(written.stats)
        content = {**info.content, "features": written.features, "splits": {"train": f"0:{num_episodes}"}}
        content |= {"total_episodes": num_episodes, "total_frames": written.num_frames}
        if info.version[0] == 2:
            content["total_videos"] = len(info.videos) * num_episodes
            content["total_chunks"] = (num_episodes - 1) // info.chunk_size + 1
        write_json(root / "meta" / "info.json", content)


def list_frames(place: str, **options: str) -> tuple[np.ndarray, np.ndarray]:
    """`episode_index, frame_index, index` of the dataset's frames, and the row that `read_dataset` makes of each.

    A last frame without known successor makes no row: it is given that of the frame before it, or left out.
    """
    names = ["episode_index", "frame_index", "index"]
    rows, indices, num_rows = [], [], 0
    for shard, table, order, last, followed in read_shards(place, names, **options):
        row = num_rows + np.cumsum(followed) - 1
        alone = ~followed & np.append(True, last[:-1])
        indices.append(np.stack([as_numbers(shard.path, key, table[key], 1)[order] for key in names], 1)[~alone])
        rows.append(row[~alone])
        num_rows += int(followed.sum())
    return np.concatenate(indices), np.concatenate(rows)


def read_shards(
    place: str, columns: list[str] | None = None, /, **options: str
) -> Iterator[tuple[Shard, pa.Table, np.ndarray, np.ndarray, np.ndarray]]:
    """Each shard with its table, the order of its rows, which of these end an episode, and whose successor is known."""
    for shard, read in zip(list_shards(read_info(place)), lerobot_parts(place, **options), strict=True):
        followed = followed_rows(check_recording(read()))
        table = read_table(shard.path, columns)
        yield shard, table, *order_frames(table, shard), followed


def _copy_rest(info: Info, root: Path) -> None:
    """What does not change: tasks, the card, files of other programs."""
    for path in info.root.rglob("*"):
        inside = path.relative_to(info.root)
        hidden = any(part.startswith(".") for part in inside.parts)
        data = inside.parts[0] in ("data", "videos", "images") or inside.parts[:2] == ("meta", "episodes")
        rewritten = inside.parts[0] == "meta" and inside.name in _REWRITTEN
        if path.is_file() and not (hidden or data or rewritten):
            copy_regular(path, root / inside)


def _write_version_3(info: Info, root: Path, stretches: Stretches) -> Written:
    old = read_episodes(info)
    rows, stats = [], []
    files: list[list[pa.Table]] = [[]]
    features, num_frames = info.features, 0
    for number, (source, table) in enumerate(stretches):
        if sum(part.nbytes for part in files[-1]) + table.nbytes > _FILE_BYTES and files[-1]:
            _write_file(root, info, len(files) - 1, files[-1])
            files[-1].clear()
            files.append([])
        files[-1].append(table)
        features = _features_of(info, table)
        chunk, file = divmod(len(files) - 1, info.chunk_size)
        kept = {key: value for key, value in old[source].items() if not key.startswith("stats/")}
        place = episode_row(number, kept["tasks"], num_frames, num_frames + len(table), chunk, file)
        rows.append({**kept, **place})
        stats.append(_stats(features, table, _unflatten(old[source])))
        for key in info.videos:
            where = {name: _number(info, kept, f"videos/{key}/{name}") for name in ("chunk_index", "file_index")}
            video = VIDEO_PATH.format(video_key=key, **where)
            _copy_video(info, video, root, video)
        num_frames += len(table)
    _write_file(root, info, len(files) - 1, files[-1])
    if any(
        each.keys() != stats[0].keys() or any(each[key].keys() != stats[0][key].keys() for key in each)
        for each in stats
    ):
        raise InputError(f"{info.root / 'meta' / 'episodes'}: episodes have statistics of different features")
    write_episodes(root, rows, stats)
    return Written(features, num_frames, stats)


def _write_file(root: Path, info: Info, number: int, tables: list[pa.Table]) -> None:
    chunk, file = divmod(number, info.chunk_size)
    write_table(pa.concat_tables(tables), root / DATA_PATH.format(chunk_index=chunk, file_index=file))


def read_episodes(info: Info) -> dict[int, Row]:
    """The metadata that version 3 keeps about each episode."""
    rows: dict[int, Row] = {}
    known = [episode for shard in list_shards(info) for episode in shard.episodes]
    for path in sorted((info.root / "meta" / "episodes").glob("*/*.parquet")):
        table = read_table(path)
        if "episode_index" not in table.column_names or "tasks" not in table.column_names:
            raise InputError(f"{path}: episode_index or tasks: the file has no such column")
        episodes = as_indices(path, "episode_index", table["episode_index"])
        wanted = np.flatnonzero(np.isin(episodes, known))
        if len(np.unique(episodes[wanted])) != len(wanted) or not rows.keys().isdisjoint(episodes[wanted].tolist()):
            raise InputError(f"{path}: episode_index: an episode is there twice")
        found = to_python(str(path), table.take(pa.array(wanted)))
        if not all(mismatch(row, {"tasks": [str]}) is None for row in found):
            raise InputError(f"{path}: tasks: not lists of texts")
        rows |= dict(zip(episodes[wanted].tolist(), found, strict=True))
    return _complete(info, info.root / "meta" / "episodes", rows)


def _complete(info: Info, path: Path, rows: dict[int, Row]) -> dict[int, Row]:
    for shard in list_shards(info):
        for episode in shard.episodes:
            if episode not in rows:
                raise InputError(f"{path}: does not mention episode {episode}, which is in {shard.path}")
    return rows


def _unflatten(row: Row) -> dict[str, Stats]:
    """The statistics of an episode's features, from columns called `stats/FEATURE/NAME`."""
    stats: dict[str, Stats] = {}
    for key, value in row.items():
        if key.startswith("stats/") and value is not None:
            feature, name = key.removeprefix("stats/").rsplit("/", 1)
            stats.setdefault(feature, {})[name] = value
    return from_json(f"episode {row['episode_index']}", stats)


def _number(info: Info, row: Row, key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise InputError(f"{info.root / 'meta' / 'episodes'}: {key}: {value!r} is not the number of a file")
    return value


def _copy_video(info: Info, name: str, root: Path, new_name: str) -> None:
    old, new = below(info.root, name), below(root, new_name)
    if new.exists():
        return
    if not old.is_file():
        raise InputError(f"{old}: the video of a kept episode is missing")
    copy_regular(old, new)


def _write_version_2(info: Info, root: Path, stretches: Stretches) -> Written:
    old = _complete(info, info.root / "meta" / "episodes.jsonl", _read_lines(info, "episodes.jsonl"))
    old_stats = _read_lines(info, "episodes_stats.jsonl")
    rows, stats, num_frames, features = [], [], 0, info.features
    for number, (source, table) in enumerate(stretches):
        features = _features_of(info, table)
        chunk = number // info.chunk_size
        write_table(table, root / OLD_DATA_PATH.format(chunk=chunk, episode=number))
        rows.append({**old[source], "episode_index": number, "length": len(table)})
        told = old_stats.get(source, {}).get("stats", {})
        where = f"{info.root / 'meta' / 'episodes_stats.jsonl'}: episode {source}"
        stats.append(_stats(features, table, from_json(where, told)))
        for key in info.videos:
            before = OLD_VIDEO_PATH.format(chunk=source // info.chunk_size, key=key, episode=source)
            _copy_video(info, before, root, OLD_VIDEO_PATH.format(chunk=chunk, key=key, episode=number))
        num_frames += len(table)
    _write_lines(root, "episodes.jsonl", rows)
    if old_stats:
        lines = [{"episode_index": number, "stats": to_json(each)} for number, each in enumerate(stats)]
        _write_lines(root, "episodes_stats.jsonl", lines)
    return Written(features, num_frames, stats)


def _read_lines(info: Info, name: str) -> dict[int, Row]:
    path = info.root / "meta" / name
    if not path.exists():
        return {}
    rows = {}
    for number, line in enumerate(read_text(path, str(path)).split("\n"), start=1):
        if line.strip():
            here = f"{path}: line {number}"
            row = parse_json(line, here)
            wrong = mismatch(row, {"episode_index": int, "stats?": dict})
            if wrong is not None or row["episode_index"] in rows:
                raise Unusable(f"{here}: {wrong or 'episode_index'} is missing, malformed or there twice")
            rows[row["episode_index"]] = row
    return rows


def _write_lines(root: Path, name: str, rows: list[Row]) -> None:
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta" / name).write_text("".join(dump_json(row) + "\n" for row in rows), encoding="utf-8")


def _features_of(info: Info, table: pa.Table) -> dict[str, dict[str, Any]]:
    """The dataset's features, and those that were added to its frames."""
    added = {
        f"next.{key}": {**feature, "names": feature.get("names")}
        for key, feature in info.features.items()
        if f"next.{key}" in table.column_names and f"next.{key}" not in info.features
    }
    return {**info.features, **added}


def _stats(features: dict[str, dict[str, Any]], table: pa.Table, old: Mapping[str, Stats]) -> dict[str, Stats]:
    """Statistics of numbers are computed again, all others stay as the episode had them."""
    fresh = {
        key: feature_stats(key, as_numbers(Path(key), key, table[key], feature["shape"][0]))
        for key, feature in features.items()
        if key in table.column_names and feature["dtype"] in NUMBERS and len(feature["shape"]) == 1
    }
    return {**old, **fresh}


def _stretches(place: str, info: Info, selection: Selection, **options: str) -> Stretches:
    """Every kept stretch as a table with the indices of its new episode."""
    keys, _ = observation_keys(info, options.get("obs"))
    runs = selection.runs()
    run = next(runs, None)
    episode = index = number = 0
    for shard, table, order, last, followed in read_shards(place, **options):
        starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
        for source, start, end in zip(shard.episodes, starts, np.flatnonzero(last) + 1, strict=True):
            if not followed[start:end].any():
                continue
            while run is not None and run.episode == episode:
                rows = order[start:end] if selection.whole else order[start + run.start : start + run.stop]
                frames = table.take(pa.array(rows))
                if not selection.whole:
                    following = order[np.minimum(np.arange(start + run.start, start + run.stop) + 1, end - 1)]
                    frames = _with_successors(info, shard.path, frames, table, following, keys)
                frame = np.arange(len(rows))
                fresh = {"episode_index": np.full(len(rows), number), "frame_index": frame, "index": frame + index}
                for key, values in fresh.items():
                    if key not in frames.column_names:
                        raise InputError(f"{shard.path}: {key}: the file has no such column")
                    frames = frames.set_column(frames.schema.get_field_index(key), key, pa.array(values))
                yield source, frames
                number, index = number + 1, index + len(rows)
                run = next(runs, None)
            episode += 1


def _with_successors(
    info: Info, path: Path, frames: pa.Table, table: pa.Table, following: np.ndarray, keys: list[str]
) -> pa.Table:
    """Adds `next.observation...` columns: where single frames are dropped, the state after a stretch would be lost."""
    for key in keys:
        if f"next.{key}" not in info.features:
            values = as_numbers(path, key, table[key], info.features[key]["shape"][0])[following]
            frames = frames.append_column(f"next.{key}", as_column(values))
    return frames.replace_schema_metadata(None)
