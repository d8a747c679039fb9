"""The native file: HDF5 in the D4RL layout. docs/formats.md lists its keys and attributes.

Arrays are contiguous and uncompressed. Trajectories of floats shrink by a third at best, and a million rows of 27
numbers then take 0.6 s to read and 5 s to write in place of 0.05 s; contiguous arrays can also be mapped, not read.
"""

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from demosift.data.actions import ActionMode, Bounds
from demosift.data.checks import check_memory, find_hdf5, one_line, open_hdf5
from demosift.data.recording import Recording, assemble, check_recording
from demosift.files import atomic_write
from demosift.types import Dataset, InputError, Origin

FORMAT_VERSION = 1
SUFFIXES = (".hdf5", ".h5")

_REQUIRED = ("observations", "actions", "terminals")
_OPTIONAL = ("rewards", "next_observations", "timeouts")
ORIGIN = "infos/origin"


def read_hdf5(
    path: str | os.PathLike[str], actions: ActionMode = "check", max_episode_steps: int | None = None
) -> Dataset:
    """Reads a file in the D4RL layout. The options are those of `read_dataset`."""
    return assemble(check_recording(record_hdf5(path)), actions, max_episode_steps)


def record_hdf5(path: str | os.PathLike[str]) -> Recording:
    path = Path(path)
    with open_hdf5(path) as file:
        present = find_arrays(file)
        check_memory(str(path), sum(dataset.nbytes for dataset in present.values()))
        arrays: dict[str, Any] = {key: read_rows(dataset) for key, dataset in present.items()}
        code = arrays.pop(ORIGIN, None)
        origin = None if code is None else Origin(code, read_names(path, present[ORIGIN]))
        return Recording(source=str(path), origin=origin, **arrays, **read_attributes(path, dict(file.attrs)))


def find_arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The arrays the file holds, by key; the required ones are among them."""
    found = {key: find_hdf5(file, key) for key in (*_REQUIRED, *_OPTIONAL, ORIGIN)}
    for key in _REQUIRED:
        if found[key] is None:
            raise InputError(f"{file.filename}: {key}: the file has no such key")
    return {key: dataset for key, dataset in found.items() if dataset is not None}


def read_rows(dataset: h5py.Dataset, rows: Any = ()) -> np.ndarray:
    # HDF5 narrows piece by piece while reading: five times faster than reading doubles and converting them.
    return np.asarray(dataset.astype(np.float32)[rows] if dataset.dtype == np.float64 else dataset[rows])


def read_names(path: Path, dataset: h5py.Dataset) -> tuple[str, ...]:
    names: Any = dataset.attrs.get("names")
    if names is None or isinstance(names, h5py.Empty):
        raise InputError(f"{path}: {ORIGIN}: has no attribute names to say what its codes mean")
    return tuple(_text(name) for name in np.atleast_1d(names))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def read_attributes(path: Path, stored: dict[str, Any]) -> dict[str, Any]:
    """The file's own attributes. A plain D4RL file has none of them."""

    def parse(name: str) -> dict[str, Any]:
        try:
            content = json.loads(stored.get(name, "{}"))
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: attribute {name}: not JSON: {one_line(error)}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path}: attribute {name}: not a JSON object")
        return content

    version = stored.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise InputError(f"{path}: attribute format_version: {version}, this demosift reads {FORMAT_VERSION}")
    environment_id = _text(stored.get("env_id", ""))
    num_actions = stored.get("num_actions")
    if num_actions is not None and not (isinstance(num_actions, int | np.integer) and num_actions > 0):
        raise InputError(f"{path}: attribute num_actions: {num_actions} is not a positive integer")
    return {
        "environment_id": environment_id or None,
        "environment_kwargs": parse("env_kwargs"),
        "bounds": _read_bounds(path, stored),
        "num_actions": None if num_actions is None else int(num_actions),
        "attributes": {k: v for k, v in parse("attributes").items() if k != "action_bounds"},  # stored as attributes
    }


def _read_bounds(path: Path, stored: dict[str, Any]) -> Bounds | None:
    if "action_low" not in stored and "action_high" not in stored:
        return None
    try:
        low, high = (np.atleast_1d(stored[name]).astype(np.float64) for name in ("action_low", "action_high"))
        if low.ndim != 1 or low.shape != high.shape or not np.isfinite([low, high]).all() or (low > high).any():
            raise ValueError
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: attributes action_low, action_high: not two equally long lists of numbers, low below high"
        ) from error
    return Bounds(tuple(low.tolist()), tuple(high.tolist()))


def write_hdf5(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Writes the native file. The same dataset always gives the same bytes: no clock, no file name, fixed layout."""
    transitions, environment = dataset.transitions, dataset.environment
    bounds = action_bounds(dataset)
    arrays = {
        "observations": np.asarray(transitions.obs, np.float32),
        "actions": stored_actions(dataset),
        "rewards": np.asarray(transitions.reward, np.float32),
        "next_observations": np.asarray(transitions.next_obs, np.float32),
        "terminals": np.asarray(transitions.terminal, bool),
        "timeouts": np.asarray(dataset.timeout, bool),
    }
    attributes: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "attributes": json.dumps(dict(dataset.attributes), sort_keys=True),
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


def action_bounds(dataset: Dataset) -> Bounds | None:
    """The bounds that the dataset's -1 and +1 stand for, from its environment or, where that is unknown, its file."""
    if dataset.discrete:
        return None
    environment = dataset.environment
    if environment is not None and environment.action_low is not None and environment.action_high is not None:
        return Bounds(environment.action_low, environment.action_high)
    stated = dataset.attributes.get("action_bounds")
    return None if stated is None else Bounds(tuple(stated["low"]), tuple(stated["high"]))


def stored_actions(dataset: Dataset) -> np.ndarray:
    """Actions as files hold them: the environment's units, or one index per row."""
    action = dataset.transitions.action
    if dataset.discrete:
        return np.argmax(action, axis=1).astype(np.int32)
    bounds = action_bounds(dataset)
    return np.asarray(action, np.float32) if bounds is None else bounds.from_unit(action)
