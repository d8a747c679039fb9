"""Checks that say what is wrong with a file, in one line that names the file, the key, the row and the column.

Nothing here trusts its input: a file that is not what its name says, points at other files, or claims more than this
machine can hold is refused before its content is read.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import h5py
import h5py.h5l as h5l
import numpy as np
from jaxtyping import Bool, Float32, Shaped

from demosift.data.first_look import look_first
from demosift.files import check_regular, open_regular
from demosift.types import Bounds, InputError

_LARGEST_NUMBER = 1e18  # of observations, actions and rewards, whose squares are float32 too
_CLAIMED_BYTES = 1 << 22  # what any header may claim
_CLAIMED_CHUNKS = 1 << 17
_PICKLE = "a pickle and is never unpickled"
_SIGNATURES = {
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
    b"PK\x03\x04": "a zip archive (such as .npz or .pt), which may hold pickles and is never unpickled",
    b"\x93NUMPY": "a NumPy array file",
    b"\x1f\x8b": "gzip-compressed; unpack it first",
    b"PAR1": "a Parquet file",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file it stands for",
}


def recognise(path: Path) -> str:
    """What a file of another format seems to be, from its first and last bytes alone: nothing is ever unpickled."""
    with open_regular(path) as file:
        head = file.read(64)
        if not head:
            return "empty"
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
    # Pickles of protocols 0 and 1 have no signature, but every pickle ends with its STOP opcode.
    if last == b"." and re.match(rb"[(\]}]|c[\w.]+\n", head):
        return _PICKLE
    return next((kind for signature, kind in _SIGNATURES.items() if head.startswith(signature)), "something else")


def looks_like_hdf5(path: str | os.PathLike[str]) -> bool:
    try:
        return os.path.isfile(path) and h5py.is_hdf5(path)
    except OSError:  # opening it will say why
        return False


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading; whatever HDF5 finds wrong with it becomes one line."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not an HDF5 file")
        check_regular(path)
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        if not h5py.is_hdf5(path):
            raise InputError(f"{path}: not an HDF5 file: it is {recognise(path)}")
        look_first(path)
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        if error.errno and error.filename is not None:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno)}") from error
        truncated = "truncated" in str(error)
        raise InputError(f"{path}: {'truncated' if truncated else 'damaged'} HDF5 file: {one_line(error)}") from error
    except (RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(f"{path}: damaged HDF5 file: {one_line(error)}") from error


def find_hdf5(file: h5py.File, key: str) -> h5py.Dataset | None:
    """The array of numbers stored under `key`, or None."""
    found: h5py.Group | h5py.Dataset = file
    for part in key.split("/"):
        if not isinstance(found, h5py.Group) or not found.id.links.exists(part.encode("utf-8", "surrogateescape")):
            return None
        found = enter_hdf5(found, part)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{file.filename}: {key}: is a group, not an array")
    check_numeric(file.filename, key, found.dtype)
    return found


def enter_hdf5(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """What a group holds under a name. Links are refused: they may lead to any file the reader can open.

    A file may have a million such names, so HDF5's own functions are asked where h5py's take several times as long.
    """

    def where() -> str:
        return f"{group.file.filename}: {f'{group.name}/{name}'.lstrip('/')}"

    if group.id.links.get_info(name.encode("utf-8", "surrogateescape")).type != h5l.TYPE_HARD:
        raise InputError(f"{where()}: is a link to data elsewhere; store the data itself")
    found = group[name]
    if isinstance(found, h5py.Dataset):
        options, shape = found.id.get_create_plist(), found.id.shape
        layout = options.get_layout()
        if layout == h5py.h5d.VIRTUAL or options.get_external_count():
            raise InputError(f"{where()}: its data lie in other files; store the data itself")
        num_bytes = math.prod(shape or (0,)) * found.id.dtype.itemsize
        if num_bytes > _CLAIMED_BYTES:
            check_claim(where(), num_bytes, found.id.get_storage_size())
        if layout == h5py.h5d.CHUNKED:
            chunks = math.prod(-(-size // step) for size, step in zip(shape, options.get_chunk(), strict=True))
            if chunks > _CLAIMED_CHUNKS and chunks > 10 * found.id.get_num_chunks():
                raise InputError(f"{where()}: claims {chunks} chunks of data, which were never written")
    elif not isinstance(found, h5py.Group):
        raise InputError(f"{where()}: is neither a group nor an array")
    return found


def check_claim(source: str, num_bytes: int, stored: int) -> None:
    """Refuses a header that claims far more than was written: no compression makes numbers a thousand times smaller."""
    if num_bytes > max(1100 * stored, _CLAIMED_BYTES):
        raise InputError(f"{source}: claims {num_bytes / (1 << 30):.2g} GiB of data, of which {stored} bytes are there")


def check_memory(source: str, num_bytes: int) -> None:
    """Refuses what cannot be held twice, as conversions need."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if num_bytes > limit:
        gib = 1 << 30
        raise InputError(
            f"{source}: claims {num_bytes / gib:.0f} GiB of data; this machine reads {limit / gib:.0f} GiB"
        )


def check_numeric(source: str, key: str, dtype: np.dtype) -> None:
    if dtype.kind not in "biuf":
        raise InputError(f"{source}: {key}: holds {dtype}, not numbers")


def check_finite(source: str, key: str, array: Shaped[np.ndarray, "rows *columns"], first: int = 0) -> None:
    """`first`, here and below, is the number of the array's first row in its file, which may be read in blocks."""
    good = np.abs(array) <= _LARGEST_NUMBER  # false for NaN
    if not good.all():
        where = np.argwhere(~good)[0]
        row, *column = where
        position = ", ".join([f"row {first + row}", *(f"column {index}" for index in column)])
        value = array[tuple(where)]
        wrong = "too large: its square is not finite" if np.isfinite(value) else "not a finite number"
        raise InputError(f"{source}: {key}: {position}: {value} is {wrong}")


def as_matrix(source: str, key: str, array: np.ndarray, first: int = 0) -> Float32[np.ndarray, "rows columns"]:
    check_numeric(source, key, array.dtype)
    if array.ndim != 2:
        raise InputError(f"{source}: {key}: has shape {array.shape}, needs two axes (rows, columns)")
    if array.shape[1] == 0 and not key.endswith("observations"):  # the state may be pictures alone: `check_state`
        raise InputError(f"{source}: {key}: has no columns")
    with np.errstate(over="ignore"):  # too large for float32 is reported as infinite, with its row
        array = np.ascontiguousarray(array, dtype=np.float32)
    check_finite(source, key, array, first)
    return array


def as_vector(source: str, key: str, array: np.ndarray, first: int = 0) -> Shaped[np.ndarray, "rows"]:
    """One number per row. A single column is accepted too, as some replay buffers write it."""
    check_numeric(source, key, array.dtype)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{source}: {key}: has shape {array.shape}, needs one number per row")
    if array.dtype.kind == "f":
        check_finite(source, key, array, first)
    return array


def as_flags(source: str, key: str, array: np.ndarray, first: int = 0) -> Bool[np.ndarray, "rows"]:
    array = as_vector(source, key, array, first)
    flags = array.astype(bool)
    wrong = array != flags
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{source}: {key}: row {first + row}: {array[row]} is neither 0 nor 1")
    return flags


def check_lengths(source: str, arrays: Mapping[str, Sized | None]) -> None:
    """All keys have one entry per transition, and there is at least one."""
    lengths = {key: len(array) for key, array in arrays.items() if array is not None}
    first, rows = next(iter(lengths.items()))
    for key, length in lengths.items():
        if length != rows:
            raise InputError(f"{source}: {key}: has {length} rows, {first} has {rows}")
    if rows == 0:
        raise InputError(f"{source}: {first}: the set is empty")


class Described(Protocol):
    """A dataset, or rows that are still in a file."""

    @property
    def source(self) -> str: ...
    @property
    def obs_dim(self) -> int: ...
    @property
    def action_dim(self) -> int: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def bounds(self) -> Bounds | None:
        """What the -1 and +1 of continuous actions stand for; None where that is unknown."""
        ...


class Stated(Protocol):
    """What a file states, whether it is read whole or in blocks. None stands for what it does not state."""

    @property
    def source(self) -> str: ...
    @property
    def obs_keys(self) -> Mapping[str, int] | None: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def action_columns(self) -> int: ...
    @property
    def bounds(self) -> Bounds | None: ...
    @property
    def num_actions(self) -> int | None: ...
    def action_range(self) -> Bounds:
        """The least and largest stored value of each column, or of the index where actions are discrete."""
        ...


def check_state(source: str, num_columns: int) -> None:
    """Where no features stand in for it, a state has columns."""
    if num_columns == 0:
        raise InputError(f"{source}: observations: has no columns of numbers; score takes pictures with --encoder")


def check_pair(expert: Described, supplementary: Described) -> None:
    """An expert and a supplementary set must have the same kind of observations and actions, in the same units."""

    def kind(dataset: Described) -> str:
        return "discrete" if dataset.discrete else "continuous"

    choices = "actions: choices" if expert.discrete else "actions: columns"
    for what, a, b in (
        ("observations: columns", expert.obs_dim, supplementary.obs_dim),
        ("actions", kind(expert), kind(supplementary)),
        (choices, expert.action_dim, supplementary.action_dim),
    ):
        if a != b:
            raise InputError(f"{supplementary.source}: {what}: {b}, but {a} in the expert set {expert.source}")
    own, other = expert.bounds, supplementary.bounds
    if not expert.discrete and own is not None and other is not None and not own.close_to(other):
        differ = f"actions: bounds differ from those of {expert.source}; use files of one environment"
        raise InputError(f"{supplementary.source}: {differ}")


def check_same_keys(expert: Stated, supplementary: Stated) -> None:
    """Observations joined from several keys must be joined from the same ones: equal widths alone prove nothing."""

    def bare(keys: Mapping[str, int]) -> list[tuple[str, int]]:
        return [(name.removeprefix("observation."), width) for name, width in keys.items()]

    a, b = expert.obs_keys, supplementary.obs_keys
    if a and b and bare(a) != bare(b):
        joined = f"joined from {', '.join(b)}, but from {', '.join(a)} in {expert.source}"
        raise InputError(f"{supplementary.source}: observations: {joined}")


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
