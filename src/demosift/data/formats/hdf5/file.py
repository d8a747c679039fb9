"""The native file: HDF5 in the D4RL layout. docs/formats.md lists its keys and attributes.

Arrays are contiguous and uncompressed. Trajectories of floats shrink by a third at best, and a million rows of 27
numbers then take 0.6 s to read and 5 s to write in place of 0.05 s; contiguous arrays can also be mapped, not read.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from demosift.data.actions import stored_actions
from demosift.data.checks import check_memory, find_hdf5, one_line, open_hdf5
from demosift.data.formats.sidecar import Sidecar
from demosift.data.recording import Recording, no_actions
from demosift.files import atomic_write, parse_json
from demosift.types import Dataset, InputError

FORMAT_VERSION = 1
SUFFIXES = (".hdf5", ".h5")

_REQUIRED = ("observations", "actions", "terminals")
_OPTIONAL = ("rewards", "next_observations", "timeouts")
ORIGIN = "infos/origin"


def record_hdf5(path: str | os.PathLike[str]) -> Recording:
    path = Path(path)
    with open_hdf5(path) as file:
        present = find_arrays(file, actions=False)
        check_memory(str(path), sum(dataset.nbytes for dataset in present.values()))
        arrays: dict[str, Any] = {key: read_rows(dataset) for key, dataset in present.items()}
        arrays.setdefault("actions", no_actions(len(arrays["observations"]) if arrays["observations"].ndim else 0))
        code = arrays.pop(ORIGIN, None)
        names = () if code is None else read_names(path, present[ORIGIN])
        return replace(read_attributes(file), origin_names=names).recording(str(path), code, **arrays)


def find_arrays(file: h5py.File, actions: bool = True) -> dict[str, h5py.Dataset]:
    """The arrays the file holds, by key; the required ones are among them, with `actions` False perhaps no actions."""
    found = {key: find_hdf5(file, key) for key in (*_REQUIRED, *_OPTIONAL, ORIGIN)}
    for key in _REQUIRED:
        if found[key] is None and (actions or key != "actions"):
            raise InputError(f"{file.filename}: {key}: the file has no such key")
    return {key: dataset for key, dataset in found.items() if dataset is not None}


def read_rows(dataset: h5py.Dataset, rows: Any = ()) -> np.ndarray:
    # HDF5 narrows piece by piece while reading: five times faster than reading doubles and converting them.
    return np.asarray(dataset.astype(np.float32)[rows] if dataset.dtype == np.float64 else dataset[rows])


def read_names(path: Path, dataset: h5py.Dataset) -> tuple[str, ...]:
    names: Any = dataset.attrs.get("names")
    if names is None or isinstance(names, h5py.Empty) or np.size(names) == 0:
        raise InputError(f"{path}: {ORIGIN}: has no attribute names to say what its codes mean")
    return tuple(text_of(path, f"{ORIGIN}: names", name) for name in np.ravel(names)[:128])  # codes are int8


def text_of(path: str | Path, key: str, value: Any) -> str:
    """A text as HDF5 stores it, in one form or another."""
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else value
        if isinstance(text, str) and len(text) <= 4096:
            text.encode("utf-8")
            return str(text)
    except UnicodeError:
        pass
    raise InputError(f"{path}: {key}: not a text in UTF-8")


def read_attributes(file: h5py.File) -> Sidecar:
    """The file's own attributes. A plain D4RL file has none of them."""
    path = file.filename
    names = ("format_version", "env_id", "env_kwargs", "attributes", "action_low", "action_high", "num_actions")
    stored: dict[str, Any] = {name: file.attrs[name] for name in names if name in file.attrs}

    def parse(name: str) -> dict[str, Any]:
        content = parse_json(stored.get(name, "{}"), f"{path}: attribute {name}")
        if not isinstance(content, dict):
            raise InputError(f"{path}: attribute {name}: not a JSON object")
        return content

    version = stored.get("format_version", FORMAT_VERSION)
    if np.ndim(version) or version != FORMAT_VERSION:
        told = " ".join(str(version).split())
        raise InputError(f"{path}: attribute format_version: {told}, this demosift reads {FORMAT_VERSION}")
    facts = {name: stored[name] for name in ("action_low", "action_high", "num_actions") if name in stored}
    facts |= {"env_id": text_of(path, "env_id", stored.get("env_id", "")) or None, "env_kwargs": parse("env_kwargs")}
    # The action bounds among them repeat action_low and action_high.
    facts["attributes"] = {key: value for key, value in parse("attributes").items() if key != "action_bounds"}
    try:
        return Sidecar.parse(facts)
    except ValueError as error:
        raise InputError(f"{path}: attribute {one_line(error)}") from error


def write_hdf5(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Writes the native file. The same dataset always gives the same bytes: no clock, no file name, fixed layout."""
    transitions, environment = dataset.transitions, dataset.environment
    bounds, stated = dataset.bounds, dataset.stated_bounds
    arrays = {
        "observations": np.asarray(transitions.obs, np.float32),
        "actions": stored_actions(dataset),
        "rewards": np.asarray(transitions.reward, np.float32),
        "next_observations": np.asarray(transitions.next_obs, np.float32),
        "terminals": np.asarray(transitions.terminal, bool),
        "timeouts": np.asarray(dataset.timeout, bool),
    }
    # Repeats action_low and action_high; still written so that the bytes of files stay the same.
    again = {} if stated is None else {"action_bounds": {"low": stated.low, "high": stated.high}}
    attributes: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "attributes": json.dumps({**dataset.attributes, **again}, sort_keys=True),
    }
    if environment is not None:
        attributes["env_id"] = environment.id
        attributes["env_kwargs"] = json.dumps(dict(environment.kwargs), sort_keys=True)
    if bounds is not None:
        attributes["action_low"], attributes["action_high"] = np.array(bounds.low), np.array(bounds.high)
    if dataset.discrete:
        attributes["num_actions"] = dataset.action_dim
    num_bytes = sum(array.nbytes for array in arrays.values()) + len(dataset) + len(str(attributes)) + 65536
    with atomic_write(path, num_bytes) as temporary, h5py.File(temporary, "w", libver="earliest") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, track_times=False)
        if dataset.origin is not None:
            stored = file.create_dataset(ORIGIN, data=dataset.origin.code.astype(np.int8), track_times=False)
            stored.attrs["names"] = list(dataset.origin.names)
        for name, value in sorted(attributes.items()):
            file.attrs[name] = value
