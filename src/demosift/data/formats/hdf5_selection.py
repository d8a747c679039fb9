"""The kept part of an HDF5 file: everything in it that belongs to kept rows, and all that belongs to no row.

Arrays are copied in blocks, whatever they hold; those with an entry per row lose the rows that go.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Int

from demosift.data.checks import as_flags, open_hdf5
from demosift.data.formats.hdf5 import SUFFIXES, find_arrays
from demosift.data.formats.hdf5_rows import open_hdf5_rows
from demosift.data.formats.minari import locate as locate_minari
from demosift.data.formats.minari import read_minari, write_minari
from demosift.data.selection import Selection
from demosift.files import atomic_folder, atomic_write
from demosift.types import InputError

_BLOCK_BYTES = 1 << 24


def keep_hdf5(place: str, target: str, selection: Selection) -> None:
    """The kept part of a native file.

    Whole episodes keep every stored row, also a last one whose successor nobody knows. Where single rows go,
    `next_observations` is written even if the file had none: a gap must not become a transition.
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


def keep_minari(place: str, target: str, selection: Selection) -> None:
    """The kept part of a Minari dataset: whole episodes of HDF5 storage with whatever was recorded beside them.

    A stretch of single steps is an episode of what demosift reads, and of nothing else.
    """
    source, (folder, dataset_id) = locate_minari(place)[0] / "data", locate_minari(target)
    metadata = json.loads((source / "metadata.json").read_text(encoding="utf-8"))
    if not selection.whole or metadata["data_format"] != "hdf5":
        return write_minari(selection.apply(read_minari(place)), target)
    lengths = selection.lengths[selection.episodes]
    metadata |= {
        "dataset_id": dataset_id,
        "total_episodes": len(selection.episodes),
        "total_steps": int(lengths.sum()),
    }
    main = source / "main_data.hdf5"
    with open_hdf5(main) as file, atomic_folder(folder, num_bytes=main.stat().st_size) as temporary:
        (temporary / "data").mkdir()
        with h5py.File(temporary / "data" / "main_data.hdf5", "w") as copy:
            copy_attributes(file, copy)
            # Episodes without a step are no episodes of the dataset.
            stored = [i for i in range(len(file)) if len(file[f"episode_{i}/rewards"]) > 0]  # pyright: ignore
            for new, old in enumerate(selection.episodes):
                file.copy(f"episode_{stored[old]}", copy, name=f"episode_{new}")
                copy[f"episode_{new}"].attrs["id"] = new
        text = json.dumps(metadata, indent=2)
        (temporary / "data" / "metadata.json").write_text(text, encoding="utf-8")
    return None


def copy_tree(
    source: h5py.Group,
    target: h5py.Group,
    num_rows: int,
    wanted: Int[np.ndarray, "rows"],
    skip: tuple[str, ...] = (),
    inside: tuple[h5py.Group, ...] = (),
) -> None:
    """Copies a group; arrays with `num_rows` entries are reduced to those `wanted`, which are sorted.

    Links are refused: they may lead to any file. A group that holds itself is refused too.
    """
    if source in inside:
        raise InputError(f"{source.file.filename}: {source.name}: holds itself")
    copy_attributes(source, target)
    for name in map(str, source):
        if name in skip:
            continue
        place = f"{(source.name or '').rstrip('/')}/{name}".lstrip("/")
        if not isinstance(source.get(name, getlink=True), h5py.HardLink):
            raise InputError(f"{source.file.filename}: {place}: is a link to data elsewhere; store the data itself")
        found = source[name]
        if isinstance(found, h5py.Group):
            copy_tree(found, target.create_group(name), num_rows, wanted, inside=(*inside, source))
        elif isinstance(found, h5py.Dataset):
            if found.is_virtual or found.external:
                raise InputError(f"{source.file.filename}: {place}: its data lie in other files; store the data itself")
            if found.ndim > 0 and len(found) == num_rows:
                _copy_rows(found, target, name, wanted)
            else:
                source.copy(name, target)


def copy_attributes(source: Any, target: Any) -> None:
    for name, value in source.attrs.items():
        target.attrs[name] = value


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
