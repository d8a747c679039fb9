"""What a method prepared before its training: named arrays in a folder, and what they were made of.

    prepared.safetensors        the arrays, with a digest of their content, written whole or not at all
    DIGEST.safetensors          the same where a folder has many of them: the name is a digest of what they were made of

A damaged file counts as none: what is prepared depends on the data and the settings alone, so it can be made again.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demosift.files import canonical
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
    return arrays if fits(arrays, rows) else None


def write_shelved(folder: Path, key: Key, arrays: Mapping[str, np.ndarray]) -> None:
    """One of many in a folder, in a file of its own."""
    write_arrays(shelved(folder, key), arrays, note={"made_of": list(key)})


def read_shelved(folder: Path, key: Key, rows: Mapping[str, int]) -> Arrays | None:
    """As `read_prepared`, but what is not of this key is as good as none: nobody chose the name of the file."""
    try:
        arrays, note = read_arrays(shelved(folder, key))
    except DamagedFile:
        return None
    return arrays if note.get("made_of") == list(key) and fits(arrays, rows) else None


def shelved(folder: Path, key: Key) -> Path:
    return folder / f"{hashlib.sha256(canonical(list(key)).encode()).hexdigest()[:16]}.safetensors"


def fits(arrays: Arrays, rows: Mapping[str, int]) -> bool:
    same = {name: array.shape for name, array in arrays.items()} == {name: (count,) for name, count in rows.items()}
    return same and all(np.isfinite(array).all() for array in arrays.values())
