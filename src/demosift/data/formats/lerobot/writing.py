"""Writing a dataset as a LeRobot folder of version 3.0, without LeRobot.

LeRobot's frames have no successor, so `next.observation...` columns hold it; `next.done` marks terminals and
`next.truncated` the other ends of episodes. LeRobot ignores features called `next...` when it builds policies.
Facts that its metadata has no place for are in `meta/demosift.json`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demosift.data.actions import stored_actions
from demosift.data.checks import one_line
from demosift.data.formats.lerobot import locate
from demosift.data.formats.lerobot.reading import ACTION, DONE, ORIGIN, REWARD, TRUNCATED
from demosift.data.formats.lerobot.stats import Stats, aggregate_stats, feature_stats, to_json
from demosift.data.formats.sidecar import SIDECAR, observation_keys, write_sidecar
from demosift.data.parquet import write_table
from demosift.files import atomic_folder, write_json
from demosift.types import Dataset, InputError

VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

_FILES_PER_CHUNK = 1000
_FILE_MEGABYTES = 100
_VIDEO_MEGABYTES = 200
_FPS = 30  # where nothing is known about time


def write_lerobot(dataset: Dataset, target: str) -> None:
    """Writes a new folder, whole or not at all; one that holds something is refused."""
    columns = _columns(dataset)
    features = {name: describe_feature(array) for name, array in columns.items()}
    starts, ends = dataset.episode_starts, dataset.episode_ends
    table = pa.table({name: as_column(array) for name, array in columns.items()})
    with atomic_folder(locate(target), num_bytes=2 * table.nbytes + 4096 * len(ends)) as root:
        rows, stats = [], []
        for number, episodes in enumerate(_files(ends, table.nbytes)):
            chunk, file = divmod(number, _FILES_PER_CHUNK)
            path = root / DATA_PATH.format(chunk_index=chunk, file_index=file)
            write_table(table[int(starts[episodes[0]]) : int(ends[episodes[-1]])], path)
            for episode in episodes:
                start, end = int(starts[episode]), int(ends[episode])
                stats.append({name: feature_stats(name, array[start:end]) for name, array in columns.items()})
                rows.append(episode_row(episode, [_task(dataset)], start, end, chunk, file))
        write_episodes(root, rows, stats)
        write_tasks(root, [_task(dataset)])
        write_json(root / "meta" / "stats.json", to_json(aggregate_stats(stats)))
        write_json(root / "meta" / "info.json", _info(dataset, features))
        write_sidecar(root / "meta" / SIDECAR, dataset)


def _columns(dataset: Dataset) -> dict[str, np.ndarray]:
    """The values of every feature; LeRobot's own come last."""
    obs, _, reward, next_obs, terminal = dataset.transitions
    widths = observation_keys(dataset, "observation.state", prefix="observation")
    names, splits = list(widths), np.cumsum(list(widths.values()))[:-1]
    columns = dict(zip(names, np.split(obs, splits, axis=1), strict=True))
    columns[ACTION] = stored_actions(dataset).astype(np.int64 if dataset.discrete else np.float32)
    columns |= {f"next.{key}": part for key, part in zip(names, np.split(next_obs, splits, axis=1), strict=True)}
    columns |= {REWARD: reward, DONE: terminal, TRUNCATED: dataset.timeout}
    if dataset.origin is not None:
        columns[ORIGIN] = dataset.origin.code
    lengths = np.diff(dataset.episode_ends, prepend=0)
    frame = np.arange(len(dataset)) - np.repeat(dataset.episode_starts, lengths)
    columns["timestamp"] = (frame / _fps(dataset)).astype(np.float32)
    columns["frame_index"] = frame
    columns["episode_index"] = np.repeat(np.arange(dataset.num_episodes), lengths)
    columns["index"] = np.arange(len(dataset))
    columns["task_index"] = np.zeros(len(dataset), np.int64)
    return columns


def as_column(array: np.ndarray) -> pa.Array:
    """Rows of one number as plain values, of several as lists of fixed length."""
    flat = pa.array(np.ascontiguousarray(array).ravel())
    width = 1 if array.ndim == 1 else array.shape[1]
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def describe_feature(array: np.ndarray) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": [1 if array.ndim == 1 else array.shape[1]], "names": None}


def episode_row(episode: int, tasks: Sequence[str], start: int, end: int, chunk: int, file: int) -> dict[str, Any]:
    """What version 3.0 keeps about an episode: where its frames are."""
    return {
        "episode_index": episode,
        "tasks": list(tasks),
        "length": end - start,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": start,
        "dataset_to_index": end,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }


def write_episodes(root: Path, rows: Sequence[Mapping[str, Any]], stats: Sequence[Mapping[str, Stats]]) -> None:
    columns: dict[str, list[Any]] = {key: [row.get(key) for row in rows] for key in rows[0]}
    for feature, each in stats[0].items():
        for name in each:
            columns[f"stats/{feature}/{name}"] = [episode[feature][name].tolist() for episode in stats]
    try:
        table = pa.table(columns)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:  # of a dataset that is filtered
        raise InputError(f"meta/episodes: cannot be written: {one_line(error)}") from error
    write_table(table, root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")


def write_tasks(root: Path, tasks: Sequence[str]) -> None:
    """As pandas writes a table whose index is the task: LeRobot looks tasks up in that index."""
    index = "__index_level_0__"
    text = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    number = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    pandas = {
        "index_columns": [index],
        "column_indexes": [{"name": None, "field_name": None, **text, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **number},
            {"name": None, "field_name": index, **text},
        ],
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": list(range(len(tasks))), index: list(tasks)})
    write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), root / "meta" / "tasks.parquet")


def _files(ends: np.ndarray, num_bytes: int) -> list[list[int]]:
    """Consecutive episodes whose frames share a file of LeRobot's usual size."""
    home = ends * (num_bytes / ends[-1]) // (_FILE_MEGABYTES << 20)
    return [np.flatnonzero(home == number).tolist() for number in np.unique(home)]


def _info(dataset: Dataset, features: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": dataset.attributes.get("robot_type"),
        "total_episodes": dataset.num_episodes,
        "total_frames": len(dataset),
        "total_tasks": 1,
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": _FILE_MEGABYTES,
        "video_files_size_in_mb": _VIDEO_MEGABYTES,
        "fps": _fps(dataset),
        "splits": {"train": f"0:{dataset.num_episodes}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }


def _fps(dataset: Dataset) -> float:
    fps = dataset.attributes.get("fps")
    return fps if isinstance(fps, int | float) and fps > 0 else _FPS


def _task(dataset: Dataset) -> str:
    return dataset.environment.id if dataset.environment is not None else "unknown"
