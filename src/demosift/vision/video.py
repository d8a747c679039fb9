"""Pictures out of a video file at given times, through PyAV (FFmpeg's libraries), which decodes AV1 and H.264.

The file is given to FFmpeg open and named an MP4: FFmpeg would otherwise guess its kind, and some kinds (playlists) are
lists of other files and addresses to open.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from demosift.data.checks import one_line
from demosift.files import open_regular
from demosift.types import InputError

MOST_PIXELS = 1 << 24  # of a picture, 4096 x 4096; few bytes may stand for many of them

Picture = UInt8[np.ndarray, "height width 3"]


def require_av() -> Any:
    try:
        import av
        from av import logging
    except ImportError as error:
        raise InputError("videos: need PyAV: pip install 'demosift[vision]'") from error
    logging.set_level(None)  # what is wrong is said once, by us
    return av


def read_pictures(path: Path, episode: int, times: Sequence[float], interval: float) -> Iterator[Picture]:
    """The picture nearest to each time, in seconds and rising. `interval`: the time from one picture to the next."""
    av, where = require_av(), f"{path}: episode {episode}"
    try:
        with open_regular(path) as file, av.open(file, format="mp4") as container:
            stream = next(iter(container.streams.video), None)
            if stream is None:
                raise InputError(f"{path}: holds no video")
            context = stream.codec_context
            if context is None or not context.codec.is_decoder:
                raise InputError(f"{path}: its codec is not known here")
            if context.width * context.height > MOST_PIXELS:
                raise InputError(f"{path}: pictures of {context.width} x {context.height} pixels are too large")
            stream.thread_type = "AUTO"
            container.seek(max(int((times[0] - interval / 2) / stream.time_base), 0), stream=stream)
            yield from nearest(container.decode(stream), times, interval, where)
    except OSError as error:
        if isinstance(error, av.FFmpegError):
            raise InputError(f"{where}: broken video: {one_line(error)}") from error
        reason = "missing" if isinstance(error, FileNotFoundError) else f"cannot read: {error.strerror}"
        raise InputError(f"{path}: the video of episode {episode}: {reason}") from error
    except (av.FFmpegError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise InputError(f"{where}: broken video: {one_line(error)}") from error


def nearest(frames: Iterator[Any], times: Sequence[float], interval: float, where: str) -> Iterator[Picture]:
    """A video without a picture within half an interval of a time has fewer pictures than its rows."""
    frame, now = None, -np.inf
    for time in times:
        while now < time - interval / 2:
            frame = next(frames, None)
            if frame is None:
                raise InputError(f"{where}: no picture at {time:.3f} s: the video ends at {max(now, 0):.3f} s")
            now = -np.inf if frame.time is None else float(frame.time)
        if frame is None or now > time + interval / 2:
            raise InputError(f"{where}: no picture at {time:.3f} s: the next is at {now:.3f} s")
        yield frame.to_ndarray(format="rgb24")
