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

import math
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from demosift.data.checks import as_flags
from demosift.data.formats.lerobot import locate
from demosift.data.formats.sidecar import SIDECAR, Sidecar, read_sidecar
from demosift.data.parquet import as_indices, as_numbers, column_names, read_table, row_group_ends, to_python
from demosift.data.recording import Recording
from demosift.files import check_links, mismatch, read_json
from demosift.types import InputError

ORIGIN = "origin"
PLACES_OF_FRAMES = ("timestamp", "index", "frame_index", "episode_index")
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


class Facts(NamedTuple):
    """What the files of a dataset share: what to read of them, and how it is described."""

    info: Info
    keys: list[str]
    skipped: list[str]
    sidecar: Sidecar


class ShardPart(NamedTuple):
    """Reads the episodes of a shard, or only some of them."""

    facts: Facts
    shard: Shard

    def __call__(self) -> Recording:
        return _record_shard(self.facts, self.shard)

    def only(self, numbers: Sequence[int]) -> Recording:
        """Of the file, only the index and the row groups that hold these episodes are read."""
        path = self.shard.path
        episode = as_indices(path, "episode_index", read_table(path, ["episode_index"])["episode_index"])
        ends = row_group_ends(path)
        rows = np.flatnonzero(np.isin(episode, numbers))
        groups = np.unique(np.searchsorted(ends, rows, side="right")).tolist()
        return _record_shard(self.facts, Shard(path, tuple(numbers)), groups)


def lerobot_parts(place: str, obs: str | None = None) -> Sequence[ShardPart]:
    info = read_info(place)
    keys, skipped = observation_keys(info, obs)
    facts = Facts(info, keys, skipped, read_sidecar(info.root / "meta" / SIDECAR))
    return [ShardPart(facts, shard) for shard in list_shards(info)]


def lerobot_facts(place: str, name: str) -> dict[int, Any]:
    """The value of a column at each episode's last frame. LeRobot's own name of `success` is `next.success`."""
    info = read_info(place)
    name = name if name in info.features or f"next.{name}" not in info.features else f"next.{name}"
    found: dict[int, Any] = {}
    for shard in list_shards(info):
        if name not in column_names(shard.path):
            continue
        table = read_table(shard.path, ["episode_index", "frame_index", name])
        order, last = order_frames(table, shard)
        ends = order[last]
        episode = as_indices(shard.path, "episode_index", table["episode_index"])[ends]
        values = to_python(f"{shard.path}: {name}", table[name].take(pa.array(ends)))
        found |= dict(zip(episode.tolist(), values, strict=True))
    return found


def lerobot_fact_names(place: str) -> list[str]:
    features = read_info(place).features
    return [name for name, own in features.items() if own["shape"] == (1,) and name not in PLACES_OF_FRAMES]


def read_info(place: str) -> Info:
    root = locate(place)
    check_links(root, root / "meta", root / "data")
    path = root / "meta" / "info.json"
    content = read_json(path)
    wrong = mismatch(content, _INFO)
    if wrong is not None:
        raise InputError(f"{path}: not of a LeRobot dataset: {wrong or 'an object'} is missing or malformed")
    major, _, minor = content["codebase_version"].removeprefix("v").partition(".")
    if major not in ("2", "3"):
        raise InputError(f"{path}: codebase_version: {content['codebase_version']}; versions 2.0, 2.1 and 3.0 are read")
    features = {key: {**feature, "shape": tuple(feature["shape"])} for key, feature in content["features"].items()}
    return Info(root, (int(major), int(minor or 0)), features, content)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 < size <= 1 << 20 for size in value)


_INFO = {
    "codebase_version": lambda text: isinstance(text, str) and re.fullmatch(r"v?[0-9]{1,4}(\.[0-9]{1,4})?", text),
    "features": {str: {"dtype": str, "shape": _is_shape}},
    "total_episodes?": int,
    "total_frames?": int,
    "fps": (None, int, float),
    "robot_type": (None, str),
}


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
    files = sorted((info.root / "data").glob("*/*.parquet"))
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
        for episode in np.unique(as_indices(path, "episode_index", column)).tolist():
            if home.setdefault(episode, path) != path:
                raise InputError(f"{path}: episode_index: episode {episode} is also in {home[episode]}")
    for key, found in (("total_episodes", len(home)), ("total_frames", num_frames)):
        stated = info.content.get(key, found)
        if stated != found:
            raise InputError(f"{info.path}: {key}: says {stated}, but {info.root / 'data'} holds {found}")
    return [Shard(path, tuple(episodes)) for path, episodes in groupby(sorted(home), key=home.__getitem__)]


def order_frames(table: pa.Table, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the shard's episodes in order, and which of them end an episode."""
    path = shard.path
    episode, frame = (as_indices(path, key, table[key]) for key in ("episode_index", "frame_index"))
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


def _record_shard(facts: Facts, shard: Shard, row_groups: Sequence[int] | None = None) -> Recording:
    info, keys, skipped, sidecar = facts
    following = [f"next.{key}" for key in keys]
    wanted = ["episode_index", "frame_index", *keys, ACTION]
    optional = [REWARD, DONE, TRUNCATED, *([ORIGIN] if sidecar.origin_names else []), *following]
    wanted += [key for key in optional if key in info.features]
    table, path = read_table(shard.path, wanted, row_groups), shard.path
    order, last = order_frames(table, shard)

    def column(key: str) -> np.ndarray:
        return as_numbers(path, key, table[key], math.prod(info.features[key]["shape"]) if key in info.features else 1)

    def rows(key: str) -> np.ndarray | None:
        return column(key)[order] if key in wanted else None

    def join(names: list[str]) -> np.ndarray | None:
        if not all(name in wanted for name in names):
            return None
        return np.concatenate([column(name)[order].reshape(len(order), -1) for name in names], axis=1)

    done, truncated = rows(DONE), rows(TRUNCATED)
    terminal = np.zeros(len(order), bool) if done is None else as_flags(str(path), DONE, done) & last
    if truncated is not None:
        terminal &= ~as_flags(str(path), TRUNCATED, truncated)
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
