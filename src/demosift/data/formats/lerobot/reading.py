"""LeRobot datasets: folders of Parquet files, versions 2.0, 2.1 and 3.0, read without LeRobot.

    meta/info.json                          version, features, totals
    data/chunk-000/episode_000000.parquet   version 2: an episode each
    data/chunk-000/file-000.parquet         version 3: many episodes each

Observations are the low-dimensional features under `observation`, joined in sorted order of their names, or those that
the option `obs` names, in its order; pictures and videos are skipped and listed in the attribute `skipped_obs_keys`.
Episodes come in the order of `episode_index`, frames in that of `frame_index`, wherever they are stored.

LeRobot stores frames, not transitions. Unless a dataset has the columns that demosift adds (`next.observation...`),
the state after an episode's last frame is unknown, and that frame is dropped as in a native file without successors.
"""

import json
import os
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demosift.data.checks import check_memory, one_line, recognise
from demosift.data.formats.lerobot import locate
from demosift.data.formats.sidecar import SIDECAR, Sidecar, read_sidecar
from demosift.data.recording import Recording
from demosift.types import InputError

ORIGIN = "origin"
ACTION, REWARD, DONE, TRUNCATED = "action", "next.reward", "next.done", "next.truncated"

NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")


class Info(NamedTuple):
    """The content of `meta/info.json`, checked as far as it is used."""

    root: Path
    version: tuple[int, int]
    features: dict[str, dict[str, Any]]
    content: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.root / "meta" / "info.json"

    @property
    def videos(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    @property
    def chunk_size(self) -> int:
        size = self.content.get("chunks_size", 1000)
        return size if isinstance(size, int) and size > 0 else 1000


class Shard(NamedTuple):
    """Consecutive episodes that lie in one file."""

    path: Path
    episodes: tuple[int, ...]


def lerobot_files(place: str) -> list[Path]:
    info = read_info(place)
    meta = [path for path in (info.root / "meta").rglob("*") if path.is_file()]
    return sorted([*meta, *data_files(info)])


def lerobot_parts(place: str, obs: str | None = None) -> Sequence[partial[Recording]]:
    info = read_info(place)
    keys, skipped = observation_keys(info, obs)
    sidecar = read_sidecar(info.root / "meta" / SIDECAR)
    return [partial(_record_shard, info, shard, keys, skipped, sidecar) for shard in list_shards(info)]


def lerobot_facts(place: str, name: str) -> dict[int, Any]:
    """The value of a column at each episode's last frame."""
    info = read_info(place)
    found: dict[int, Any] = {}
    for shard in list_shards(info):
        if name not in pq.read_schema(shard.path).names:
            continue
        table = read_table(shard.path, ["episode_index", "frame_index", name])
        order, last = order_frames(table, shard)
        ends = order[last]
        episode = as_numbers(shard.path, "episode_index", table["episode_index"], 1)[ends]
        found |= dict(zip(episode.tolist(), table[name].take(pa.array(ends)).to_pylist(), strict=True))
    return found


def read_info(place: str) -> Info:
    root = locate(place)
    path = root / "meta" / "info.json"
    content = read_json(path)
    try:
        number = str(content["codebase_version"]).removeprefix("v").split(".")
        version = (int(number[0]), int(number[1]) if len(number) > 1 else 0)
        features = {str(key): dict(feature) for key, feature in content["features"].items()}
        for feature in features.values():
            feature["shape"] = tuple(int(size) for size in feature["shape"])
            feature["dtype"] = str(feature["dtype"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not of a LeRobot dataset: {one_line(error)} is missing or malformed") from error
    if version[0] not in (2, 3):
        raise InputError(f"{path}: codebase_version: {content['codebase_version']}; versions 2.0, 2.1 and 3.0 are read")
    return Info(root, version, features, content)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read: {os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content


def observation_keys(info: Info, wanted: str | None = None) -> tuple[list[str], list[str]]:
    """The features that are read as observations, in order, and those under `observation` that are not."""
    found = {key for key in info.features if key == "observation" or key.startswith("observation.")}
    low = {key for key in found if _is_vector(info.features[key])}
    keys = sorted(low) if wanted is None else wanted.split(",")
    for key in keys:
        if key not in low:
            what = "is not a vector of numbers" if key in info.features else "no such feature"
            raise InputError(f"{info.path}: {key}: {what}; observations are {', '.join(sorted(low)) or 'none'}")
    if not keys:
        raise InputError(f"{info.path}: features: no observation is a vector of numbers; pictures are not read")
    action = info.features.get(ACTION)
    if action is None or not _is_vector(action):
        raise InputError(f"{info.path}: features: {ACTION} is absent or not a vector of numbers")
    return keys, sorted(found - low)


def _is_vector(feature: dict[str, Any]) -> bool:
    return feature["dtype"] in NUMBERS and len(feature["shape"]) == 1


def data_files(info: Info) -> list[Path]:
    files = sorted(path for path in (info.root / "data").glob("*/*.parquet") if path.is_file())
    if not files:
        raise InputError(f"{info.root}: holds no data/*/*.parquet")
    return files


def list_shards(info: Info) -> list[Shard]:
    """Where every episode lies, in the order of episodes. Only the index column of each file is read."""
    home: dict[int, Path] = {}
    num_frames = 0
    for path in data_files(info):
        column = read_table(path, ["episode_index"])["episode_index"]
        num_frames += len(column)
        for episode in np.unique(as_numbers(path, "episode_index", column, 1)).astype(int).tolist():
            if home.setdefault(episode, path) != path:
                raise InputError(f"{path}: episode_index: episode {episode} is also in {home[episode]}")
    for key, found in (("total_episodes", len(home)), ("total_frames", num_frames)):
        stated = info.content.get(key, found)
        if stated != found:
            raise InputError(f"{info.path}: {key}: says {stated}, but {info.root / 'data'} holds {found}")
    return [Shard(path, tuple(episodes)) for path, episodes in groupby(sorted(home), key=home.__getitem__)]


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file, or some of its columns; whatever Arrow finds wrong with it becomes one line."""
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            for name in columns or ():
                if name not in present:
                    raise InputError(f"{path}: {name}: the file has no such column")
            groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
            check_memory(str(path), sum(group.total_byte_size for group in groups))
            return file.read(list(columns) if columns is not None else None)
    except OSError as error:
        if error.errno:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno)}") from error
        raise InputError(f"{path}: damaged Parquet file: {one_line(error)}") from error
    except pa.ArrowException as error:
        kind = recognise(path)
        if kind == "a Parquet file":
            raise InputError(f"{path}: truncated or damaged Parquet file: {one_line(error)}") from error
        raise InputError(f"{path}: not a Parquet file: it is {kind}") from error


def as_numbers(path: Path, key: str, column: pa.ChunkedArray, width: int) -> np.ndarray:
    """A column of numbers, or of lists of `width` numbers, as an array (rows,) or (rows, width)."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # without chunks, or too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        raise InputError(f"{path}: {key}: row {array.is_null().index(True).as_py()}: is null")
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        lengths = np.asarray(array.value_lengths())
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise InputError(f"{path}: {key}: row {row}: has {lengths[row]} numbers, meta/info.json says {width}")
        values = array.flatten()
        if values.null_count:
            raise InputError(f"{path}: {key}: row {values.is_null().index(True).as_py() // width}: holds a null")
        return _plain(path, key, values).reshape(len(array), width)
    if width != 1:
        raise InputError(f"{path}: {key}: one {array.type} per row, meta/info.json says {width} numbers")
    return _plain(path, key, array)


def _plain(path: Path, key: str, values: pa.Array) -> np.ndarray:
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)):
        raise InputError(f"{path}: {key}: holds {values.type}, not numbers")
    return values.to_numpy(zero_copy_only=False)


def order_frames(table: pa.Table, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the shard's episodes in order, and which of them end an episode."""
    path = shard.path
    episode, frame = (as_numbers(path, key, table[key], 1) for key in ("episode_index", "frame_index"))
    order = np.lexsort((frame, episode))
    order = order[np.isin(episode[order], shard.episodes)]
    episode, frame = episode[order], frame[order]
    last = np.append(episode[1:] != episode[:-1], True)
    jumps = np.flatnonzero(~last[:-1] & (np.diff(frame) != 1))
    if len(jumps):
        where = jumps[0]
        after = f"frame {frame[where + 1]} follows {frame[where]}"
        raise InputError(f"{path}: frame_index: episode {episode[where]}: {after}; frames are missing or repeated")
    return order, last


def _record_shard(info: Info, shard: Shard, keys: list[str], skipped: list[str], sidecar: Sidecar) -> Recording:
    following = [f"next.{key}" for key in keys]
    wanted = ["episode_index", "frame_index", *keys, ACTION]
    optional = [REWARD, DONE, TRUNCATED, *([ORIGIN] if sidecar.origin_names else []), *following]
    wanted += [key for key in optional if key in info.features]
    table, path = read_table(shard.path, wanted), shard.path
    order, last = order_frames(table, shard)

    def column(key: str) -> np.ndarray:
        return as_numbers(path, key, table[key], info.features[key]["shape"][0] if key in info.features else 1)

    def rows(key: str) -> np.ndarray | None:
        return column(key)[order] if key in wanted else None

    def join(names: list[str]) -> np.ndarray | None:
        if not all(name in wanted for name in names):
            return None
        return np.concatenate([column(name)[order].reshape(len(order), -1) for name in names], axis=1)

    done, truncated = rows(DONE), rows(TRUNCATED)
    terminal = np.zeros(len(order), bool) if done is None else done.astype(bool) & last
    if truncated is not None:
        terminal &= ~truncated.astype(bool)
    actions = column(ACTION)[order]
    if actions.ndim == 1 and actions.dtype.kind not in "iu":
        actions = actions[:, None]
    attributes = {key: info.content[key] for key in ("fps", "robot_type") if info.content.get(key) is not None}
    attributes["obs_keys"] = {key: info.features[key]["shape"][0] for key in keys}
    if skipped:
        attributes["skipped_obs_keys"] = skipped
    return sidecar.recording(
        str(path),
        rows(ORIGIN),
        attributes,
        observations=join(keys),
        actions=actions,
        terminals=terminal,
        rewards=rows(REWARD),
        next_observations=join(following),
        timeouts=last,
        number=column("episode_index")[order],
    )
