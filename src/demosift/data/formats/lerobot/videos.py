"""Where the pictures of a LeRobot dataset lie: for each episode of `read_dataset`, its frames and its videos."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from demosift.data.checks import check_finite
from demosift.data.formats.lerobot.reading import Info, read_info
from demosift.data.formats.lerobot.selection import OLD_VIDEO_PATH, read_episodes, read_shards
from demosift.data.formats.lerobot.writing import VIDEO_PATH
from demosift.data.parquet import as_numbers
from demosift.types import InputError


class Video(NamedTuple):
    name: str  # of the file, below the dataset's folder
    start: float  # seconds, of the episode in it


class StoredEpisode(NamedTuple):
    number: int
    path: Path  # of the file that holds its frames
    rows: Int[np.ndarray, "frames"]  # of that file, in the order of frames
    times: Float[np.ndarray, "frames"]  # seconds, from the start of its video
    videos: dict[str, Video]


def list_stored(place: str, videos: Sequence[str], **options: str) -> Iterator[StoredEpisode]:
    """The episodes in order, each with those of its videos that are named."""
    info = read_info(place)
    rows = read_episodes(info) if videos and info.version[0] == 3 else {}
    columns = ["episode_index", "frame_index", "timestamp"]
    for shard, table, order, last, followed in read_shards(place, columns, **options):
        times = as_numbers(shard.path, "timestamp", table["timestamp"], 1).reshape(-1).astype(np.float64)[order]
        check_finite(str(shard.path), "timestamp", times)
        starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
        for number, start, end in zip(shard.episodes, starts, np.flatnonzero(last) + 1, strict=True):
            if followed[start:end].any():
                found = {key: _find(info, rows.get(number, {}), number, key) for key in videos}
                yield StoredEpisode(number, shard.path, order[start:end], times[start:end], found)


def _find(info: Info, row: dict[str, Any], number: int, key: str) -> Video:
    if info.version[0] == 2:
        return Video(OLD_VIDEO_PATH.format(chunk=number // info.chunk_size, key=key, episode=number), 0.0)
    facts = [row.get(f"videos/{key}/{name}") for name in ("chunk_index", "file_index", "from_timestamp")]
    chunk, file, start = facts
    counts = all(type(each) is int and 0 <= each < 1 << 31 for each in (chunk, file))
    if not counts or not isinstance(start, float) or not 0 <= start < 1e9:
        where = info.root / "meta" / "episodes"
        raise InputError(f"{where}: episode {number}: videos/{key}: does not say in which file it lies and when")
    return Video(VIDEO_PATH.format(video_key=key, chunk_index=chunk, file_index=file), start)
