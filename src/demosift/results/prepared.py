"""What a method prepared before its training: named arrays in a run's folder, and what they were made of.

    prepared.safetensors        the arrays, with a digest of their content, written whole or not at all

A damaged file counts as none: what is prepared depends on the data and the settings alone, so it can be made again.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demosift.results.checkpoint import Arrays, DamagedFile, read_arrays, write_arrays
from demosift.types import InputError

PREPARED = "prepared.safetensors"

Key = tuple[str, ...]  # what decides the arrays: settings, and digests of the data


def write_prepared(folder: Path, key: Key, arrays: Mapping[str, np.ndarray]) -> None:
    write_arrays(folder / PREPARED, arrays, note={"made_of": list(key)})


def read_prepared(folder: Path, key: Key, rows: Mapping[str, int]) -> Arrays | None:
    """Arrays of finite numbers with so many rows, or None where there are none. Those of other data are refused."""
    try:
        arrays, note = read_arrays(folder / PREPARED)
    except DamagedFile:
        return None
    if note.get("made_of") != list(key):
        raise InputError(f"{folder}: was prepared from other data or settings; choose another folder")
    fits = {name: array.shape for name, array in arrays.items()} == {name: (count,) for name, count in rows.items()}
    return arrays if fits and all(np.isfinite(array).all() for array in arrays.values()) else None
