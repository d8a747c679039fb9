"""The kept part of an HDF5 file: everything that belongs to kept rows, and everything that belongs to no row.

Arrays are copied in blocks, whatever they hold; those with an entry per row lose the dropped rows.
"""

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Int

from demosift.data.checks import as_flags, enter_hdf5, one_line, open_hdf5
from demosift.data.formats.hdf5.file import SUFFIXES, find_arrays
from demosift.data.formats.hdf5.rows import open_hdf5_rows
from demosift.data.selection import Selection
from demosift.files import atomic_write
from demosift.types import InputError

_BLOCK_BYTES = 1 << 24


def keep_hdf5(place: str, target: str, selection: Selection) -> None:
    """The kept part of a native file.

    Whole episodes keep every stored row, including a last one whose successor is unknown. Where single rows are
    dropped, `next_observations` is written even if the file had none: a gap must not become a transition.
    """
    path, rows = Path(place), open_hdf5_rows(place)
    if Path(target).suffix.lower() not in SUFFIXES:
        raise InputError(f"{target}: the kept part of an HDF5 file needs a name that ends in .hdf5 or .h5")
    kept = np.flatnonzero(selection.keep)
    wanted, ends = rows.stored(kept), rows.stored(np.flatnonzero(selection.run_ends))
    if selection.whole:
        unfollowed = np.intersect1d(ends + 1, rows.dropped)
        ends = np.concatenate([np.setdiff1d(ends, unfollowed - 1), unfollowed])
        wanted = np.union1d(wanted, unfollowed)
    with (
        open_hdf5(path) as file,
        atomic_write(target, path.stat().st_size) as temporary,
        h5py.File(temporary, "w") as copy,
    ):
        found = find_arrays(file)
        copy_tree(file, copy, rows.stored_rows, wanted, skip=("timeouts",))
        terminal = as_flags(rows.source, "terminals", np.asarray(found["terminals"][()])[wanted])
        timeout = np.isin(wanted, ends) & ~terminal
        copy.create_dataset("timeouts", data=timeout.astype(found["timeouts"].dtype if "timeouts" in found else bool))
        if "next_observations" not in found and not selection.whole:
            following = np.where(terminal, wanted, wanted + 1)
            _copy_rows(found["observations"], copy, "next_observations", following)


def copy_tree(
    source: h5py.Group,
    target: h5py.Group,
    num_rows: int,
    wanted: Int[np.ndarray, "rows"],
    skip: tuple[str, ...] = (),
    inside: tuple[h5py.Group, ...] = (),
) -> None:
    """Copies a group; arrays with `num_rows` entries are reduced to those `wanted`, which are sorted.

    Links are refused, and so is a group that holds itself.
    """
    if source in inside:
        raise InputError(f"{source.file.filename}: {source.name}: holds itself")
    copy_attributes(source, target)
    for name in map(str, source):
        if name in skip:
            continue
        found = enter_hdf5(source, name)
        if isinstance(found, h5py.Group):
            copy_tree(found, target.create_group(name), num_rows, wanted, inside=(*inside, source))
        elif found.ndim > 0 and len(found) == num_rows:
            _copy_rows(found, target, name, wanted)
        else:
            source.copy(name, target)


def copy_attributes(source: Any, target: Any) -> None:
    for name in source.attrs:
        try:
            target.attrs[name] = source.attrs[name]
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            where = f"{source.file.filename}: {source.name}: attribute {name}"
            raise InputError(f"{where}: cannot be copied: {one_line(error)}") from error


def _copy_rows(source: Any, target: h5py.Group, name: str, wanted: Int[np.ndarray, "rows"]) -> None:
    """The wanted rows of an array, in blocks of the source; `wanted` never decreases."""
    shape, chunks = (len(wanted), *source.shape[1:]), source.chunks
    options: dict[str, Any] = {}
    if chunks and len(wanted):
        options = {"chunks": (min(chunks[0], len(wanted)), *chunks[1:]), "compression": source.compression}
        options["compression_opts"] = source.compression_opts
    copy = target.create_dataset(name, shape, source.dtype, **options)
    copy_attributes(source, copy)
    row_bytes = max(source.dtype.itemsize * int(np.prod(source.shape[1:])), 1)
    step = max(_BLOCK_BYTES // row_bytes, 1)
    borders = np.searchsorted(wanted, np.arange(0, len(source) + step, step))
    for block, (low, high) in enumerate(itertools.pairwise(borders)):
        if high > low:
            first = block * step
            copy[low:high] = source[first : int(wanted[high - 1]) + 1][wanted[low:high] - first]
