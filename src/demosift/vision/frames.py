"""The pictures in a dataset, camera by camera and episode by episode, wherever a format keeps them.

    LeRobot     videos (AV1, H.264), or pictures inside the Parquet files
    robomimic   arrays of pictures among the observations, such as obs/agentview_image
    Minari      observations that are pictures, or parts of them that are

Episodes are those of `read_dataset`, in its order. An episode's rows are its first pictures: where the state after the
last one is not stored, the last picture has no row.
"""

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Int, UInt8

from demosift.data.checks import enter_hdf5, one_line, open_hdf5
from demosift.data.formats import Source, format_of, minari, robomimic, split_options
from demosift.files import below, open_regular
from demosift.types import InputError
from demosift.vision.video import MOST_PIXELS, read_pictures

_BLOCK = 32  # pictures of an array read at a time, or fewer if they are large
_BLOCK_BYTES = 1 << 26
_PICTURE_BYTES = 1 << 28  # of a picture's file
_KINDS = ("PNG", "JPEG", "WEBP")  # of pictures inside Parquet files

Picture = UInt8[np.ndarray, "height width 3"]
Steps = Int[np.ndarray, "steps"]


class Clip(NamedTuple):
    """One camera's pictures of one episode."""

    steps: int
    read: Callable[[Steps], Iterator[Picture]]  # those of the given steps, which rise


@dataclass(frozen=True)
class Camera:
    name: str
    clips: Sequence[Clip]
    files: Sequence[Path] = ()  # that hold its pictures, where these are not the data's own


def open_cameras(source: Source, names: Sequence[str] = ()) -> dict[str, Camera]:
    """The cameras of a source by name: the given ones, or all."""
    place, options = split_options(source)
    name = format_of(source).name
    if name not in _OPENERS:
        raise InputError(f"{os.fspath(source)}: {name} data hold no pictures; LeRobot, robomimic and Minari data may")
    found = _OPENERS[name](place, names, **options)
    if not found:
        raise InputError(f"{os.fspath(source)}: holds no pictures")
    return found


def choose(where: str, known: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The cameras that were asked for, or all."""
    for name in names:
        if name not in known:
            raise InputError(f"{where}: no camera {name!r}; it has {', '.join(known) or 'none'}")
    return list(dict.fromkeys(names)) or list(known)


def open_lerobot(place: str, names: Sequence[str], **options: str) -> dict[str, Camera]:
    from demosift.data.formats.lerobot.reading import read_info, read_table
    from demosift.data.formats.lerobot.videos import list_stored
    from demosift.data.parquet import to_python

    info = read_info(place)
    kinds = {key: feature["dtype"] for key, feature in info.features.items() if key.startswith("observation")}
    keys = {short_name(key): key for key, kind in kinds.items() if kind in ("video", "image")}
    chosen = choose(str(info.path), keys, names)
    fps = info.content.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise InputError(f"{info.path}: fps: {fps!r} is not a positive number")
    column = lru_cache(maxsize=1)(lambda path, key: read_table(path, [key])[key])  # of the file that is read now

    def read_column(path: Path, key: str, rows: np.ndarray, steps: Steps) -> Iterator[Picture]:
        cells = column(path, key)
        for step in steps.tolist():
            where = f"{path}: {key}: row {rows[step]}"
            yield decode_cell(where, info.root, to_python(where, cells[int(rows[step])]))

    def read_video(path: Path, episode: int, times: np.ndarray, steps: Steps) -> Iterator[Picture]:
        return read_pictures(path, episode, times[steps].tolist(), 1 / fps)

    clips: dict[str, list[Clip]] = {name: [] for name in chosen}
    files: dict[str, dict[Path, None]] = {name: {} for name in chosen}
    for episode in list_stored(place, [keys[name] for name in chosen if kinds[keys[name]] == "video"], **options):
        for name in chosen:
            key, steps = keys[name], len(episode.rows)
            if kinds[key] == "video":
                video, start = episode.videos[key]
                path = below(info.root, video)
                files[name][path] = None
                clips[name].append(Clip(steps, partial(read_video, path, episode.number, start + episode.times)))
            else:
                clips[name].append(Clip(steps, partial(read_column, episode.path, key, episode.rows)))
    return {name: Camera(name, clips[name], list(files[name])) for name in chosen}


def short_name(key: str) -> str:
    return key.removeprefix("observation.").removeprefix("images.").removeprefix("image.")


def decode_cell(where: str, root: Path, cell: Any) -> Picture:
    """A picture as LeRobot stores it: its bytes, or the path of its file."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if content is None and isinstance(cell, dict) and isinstance(cell.get("path"), str):
        try:
            with open_regular(below(root, cell["path"])) as file:
                content = file.read(_PICTURE_BYTES)
        except OSError as error:
            raise InputError(f"{where}: {cell['path']}: cannot read: {error.strerror}") from error
    if not isinstance(content, bytes):
        raise InputError(f"{where}: holds no picture")
    return decode_picture(where, content)


def decode_picture(where: str, content: bytes) -> Picture:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=_KINDS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"{where}: a picture of {image.width} x {image.height} pixels is too large")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        raise InputError(f"{where}: broken picture: {one_line(error)}") from error


def open_robomimic(place: str, names: Sequence[str], **options: str) -> dict[str, Camera]:
    path = robomimic.locate(place)
    demos = robomimic.list_episodes(place, **options)
    with open_hdf5(path) as file:
        keys = [f"data/{demo}/obs" for demo in demos]
        return open_arrays(path, file, keys, names)


def open_minari(place: str, names: Sequence[str]) -> dict[str, Camera]:
    path, keys = minari.find_pictures(place)
    with open_hdf5(path) as file:
        return open_arrays(path, file, keys, names)


def open_arrays(path: Path, file: h5py.File, keys: Sequence[str], names: Sequence[str]) -> dict[str, Camera]:
    """The cameras among the arrays of an HDF5 file: `keys` are the groups, or the arrays themselves, of episodes."""
    first = find(file, keys[0])
    known = {"pixels": ""} if isinstance(first, h5py.Dataset) else {str(name): f"/{name}" for name in first}
    known = {name: rest for name, rest in known.items() if holds_pictures(find(file, keys[0] + rest))}
    chosen = choose(str(path), known, names)
    cameras = {}
    for name in chosen:
        clips = []
        for key in (each + known[name] for each in keys):
            array = find(file, key)
            if not holds_pictures(array):
                raise InputError(f"{path}: {key}: not pictures: uint8 (steps, height, width, 1 or 3), or files")
            clips.append(Clip(len(array), partial(read_array, path, key)))
        cameras[name] = Camera(name, clips)
    return cameras


def find(file: h5py.File, key: str) -> Any:
    found: Any = file
    for part in key.split("/"):
        if not isinstance(found, h5py.Group) or found.get(part, getlink=True) is None:
            raise InputError(f"{file.filename}: {key}: absent")
        found = enter_hdf5(found, part)
    return found


def holds_pictures(array: Any) -> bool:
    """Whether an array has a picture for each step: its pixels, or the bytes of its file, as Minari writes them."""
    if not isinstance(array, h5py.Dataset):
        return False
    if array.ndim == 1:
        return h5py.check_vlen_dtype(array.dtype) == np.uint8
    pixels = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3)
    return pixels and 0 < array.shape[1] * array.shape[2] <= MOST_PIXELS


def read_array(path: Path, key: str, steps: Steps) -> Iterator[Picture]:
    with open_hdf5(path) as file:
        size = math.prod(find(file, key).shape[1:])
    block = max(1, min(_BLOCK, _BLOCK_BYTES // size))
    for start in range(0, len(steps), block):
        wanted = steps[start : start + block]
        with open_hdf5(path) as file:
            pictures = np.asarray(find(file, key)[wanted])
        if pictures.ndim == 1:
            for step, content in zip(wanted.tolist(), pictures, strict=True):
                yield decode_picture(f"{path}: {key}: step {step}", content.tobytes())
        else:
            yield from np.broadcast_to(pictures, (*pictures.shape[:3], 3))


_OPENERS: dict[str, Callable[..., dict[str, Camera]]] = {
    "lerobot": open_lerobot,
    "robomimic": open_robomimic,
    "minari": open_minari,
}
