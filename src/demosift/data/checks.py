"""What is wrong with a file, in one line that names the file, the key, and the row and column.

Nothing here trusts its input: a file that is not what its name says, points at other files, or claims more than this
machine can hold is refused before its content is read.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from jaxtyping import Bool, Float32, Shaped

from demosift.types import InputError

_SIGNATURES = (
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"PK\x03\x04", "a zip archive (such as .npz or .pt), which may hold pickles"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"PAR1", "a Parquet file"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file it stands for"),
)


def recognise(path: Path) -> str:
    """What a file that is not HDF5 seems to be, from its first and last bytes alone: nothing is ever unpickled."""
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
    # Pickles of protocols 0 and 1 have no signature, but every pickle ends with its STOP opcode.
    if last == b"." and re.match(rb"[(\]}]|c[\w.]+\n", head):
        return "a pickle"
    return next((name for signature, name in _SIGNATURES if head.startswith(signature)), "something else")


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading; whatever HDF5 finds wrong with it becomes one line."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not an HDF5 file")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        if not h5py.is_hdf5(path):
            with path.open("rb"):  # an unreadable file is also "not HDF5": let the system say why
                kind = recognise(path)
            refusal = " and is never unpickled" if "pickle" in kind else ""
            raise InputError(f"{path}: not an HDF5 file: it is {kind}{refusal}")
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        if error.errno and error.filename is not None:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno)}") from error
        truncated = "truncated" in str(error)
        raise InputError(f"{path}: {'truncated' if truncated else 'damaged'} HDF5 file: {one_line(error)}") from error
    except (RuntimeError, KeyError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: damaged HDF5 file: {one_line(error)}") from error


def find_hdf5(file: h5py.File, key: str) -> h5py.Dataset | None:
    """The array stored under `key`, or None. Links are refused: they may lead to any file the reader can open."""
    found: object = file
    for part in key.split("/"):
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise InputError(f"{file.filename}: {key}: is a link to data elsewhere; store the data itself")
        found = found[part]  # pyright: ignore[reportIndexIssue]
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{file.filename}: {key}: is a group, not an array")
    if found.is_virtual or found.external:
        raise InputError(f"{file.filename}: {key}: its data lie in other files; store the data itself")
    check_numeric(file.filename, key, found.dtype)
    return found


def check_memory(source: str, num_bytes: int) -> None:
    """Refuses what cannot be held twice, as conversions need: a few bytes of HDF5 can claim any number of rows."""
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
    """`first` is the file's number of the array's first row, here and below: files are also read block by block."""
    finite = np.isfinite(array)
    if not finite.all():
        where = np.argwhere(~finite)[0]
        raise InputError(f"{source}: {key}: {position(where, first)}: {array[tuple(where)]} is not a finite number")


def as_matrix(source: str, key: str, array: np.ndarray, first: int = 0) -> Float32[np.ndarray, "rows columns"]:
    check_numeric(source, key, array.dtype)
    if array.ndim != 2:
        raise InputError(f"{source}: {key}: has shape {array.shape}, needs two axes (rows, columns)")
    if array.shape[1] == 0:
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


def check_columns(source: str, observations: np.ndarray, following: np.ndarray) -> None:
    if following.shape[1] != observations.shape[1]:
        raise InputError(
            f"{source}: next_observations: has {following.shape[1]} columns, observations has {observations.shape[1]}"
        )


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


def check_pair(expert: Described, supplementary: Described) -> None:
    """An expert and a supplementary set must speak of the same observations and actions."""

    def disagree(what: str, of_expert: Any, of_supplementary: Any) -> InputError:
        return InputError(
            f"{supplementary.source}: {what}: {of_supplementary}, but {of_expert} in the expert set {expert.source}"
        )

    def kind(dataset: Described) -> str:
        return "discrete" if dataset.discrete else "continuous"

    if expert.obs_dim != supplementary.obs_dim:
        raise disagree("observations: columns", expert.obs_dim, supplementary.obs_dim)
    if expert.discrete != supplementary.discrete:
        raise disagree("actions", kind(expert), kind(supplementary))
    if expert.action_dim != supplementary.action_dim:
        what = "actions: choices" if expert.discrete else "actions: columns"
        raise disagree(what, expert.action_dim, supplementary.action_dim)


def check_same_keys(
    expert: str, of_expert: Mapping[str, int] | None, supplementary: str, of_supplementary: Mapping[str, int] | None
) -> None:
    """Observations that were joined of several keys must be joined of the same: equal widths alone say nothing."""

    def bare(keys: Mapping[str, int]) -> list[tuple[str, int]]:
        return [(name.removeprefix("observation."), width) for name, width in keys.items()]

    if of_expert and of_supplementary and bare(of_expert) != bare(of_supplementary):
        names = (", ".join(keys) for keys in (of_supplementary, of_expert))
        raise InputError("{}: observations: joined of {}, but of {} in {}".format(supplementary, *names, expert))


def position(where: np.ndarray, first: int = 0) -> str:
    row, *column = where
    return ", ".join([f"row {first + row}", *(f"column {index}" for index in column)])


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
