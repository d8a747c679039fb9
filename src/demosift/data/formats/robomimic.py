"""robomimic files: HDF5 with a group per demonstration, `data/demo_N`, read and written without robomimic.

A demonstration is an episode. Its observations are several arrays under `obs`; the low-dimensional ones (one or two
axes) are joined in sorted order of their names, or those of the option `obs` in its order. Images are passed over and
named in the attribute `skipped_obs_keys`. The option `filter` reads the demonstrations of a filter key, `mask/NAME`.

`dones` is 1 where the task is solved, where the demonstration ends, or both, depending on how a file was made. So it
never cuts a demonstration: at its last row it says terminal, elsewhere it is passed over.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from demosift.data.checks import check_memory, find_hdf5, one_line, open_hdf5
from demosift.data.formats.hdf5 import read_rows
from demosift.data.formats.sidecar import Sidecar, describe, observation_keys, parse_sidecar
from demosift.data.recording import Recording
from demosift.files import atomic_write
from demosift.types import Dataset, InputError, Origin

PREFIX = "robomimic:"
SIDECAR_ATTRIBUTE = "demosift"

_ORIGIN = "infos/origin"
_GYM = 2  # robomimic's number for Gym environments; those of others are no Gymnasium ids
_DEFAULT_KEY = "flat"  # as robomimic's own conversion of D4RL names it


def locate(place: str) -> Path:
    return Path(place.removeprefix(PREFIX)).expanduser()


def is_robomimic(place: str) -> bool:
    if place.startswith(PREFIX):
        return True
    try:
        if not Path(place).is_file() or not h5py.is_hdf5(place):
            return False
        with h5py.File(place, "r") as file:
            link = file.get("data", getlink=True)
            return isinstance(link, h5py.HardLink) and isinstance(file["data"], h5py.Group)
    except (OSError, RuntimeError, KeyError, ValueError):
        return False  # whoever reads it as a native file says what is wrong


def robomimic_parts(place: str, obs: str | None = None, filter: str | None = None) -> Sequence[partial[Recording]]:
    path = locate(place)
    with open_hdf5(path) as file:
        names = list_demos(file)
        if filter is not None:
            chosen = set(read_filter_key(file, filter))
            for name in sorted(chosen - set(names)):
                raise InputError(f"{path}: mask/{filter}: names {name}, which is not in the file")
            names = [name for name in names if name in chosen]
        if not names:
            raise InputError(f"{path}: data: the set is empty")
        keys, skipped = low_dimensional_keys(file, names[0], obs)
        environment = _read_environment(path, dict(file["data"].attrs))
    return [partial(_record_demo, path, name, keys, obs is not None, skipped, environment) for name in names]


def list_demos(file: h5py.File) -> list[str]:
    """Demonstrations in the order of their numbers, as robomimic sorts them: demo_2 before demo_10."""
    data = file.get("data")
    if not isinstance(data, h5py.Group):
        raise InputError(f"{file.filename}: data: the file has no such group")
    names = [str(name) for name in data]
    for name in names:
        if not re.fullmatch(r"demo_\d+", name):
            raise InputError(f"{file.filename}: data/{name}: not a demonstration, which is called demo_0, demo_1, ...")
        if not isinstance(data.get(name, getlink=True), h5py.HardLink):
            raise InputError(f"{file.filename}: data/{name}: is a link to data elsewhere; store the data itself")
    return sorted(names, key=lambda name: int(name[5:]))


def read_filter_key(file: h5py.File, name: str) -> list[str]:
    mask = file.get("mask")
    if not isinstance(mask, h5py.Group) or name not in mask:
        known = ", ".join(mask) if isinstance(mask, h5py.Group) else ""
        raise InputError(f"{file.filename}: mask/{name}: no such filter key (the file has: {known or 'none'})")
    stored = mask[name]
    if not isinstance(stored, h5py.Dataset) or stored.ndim != 1 or stored.dtype.kind not in "SO":
        raise InputError(f"{file.filename}: mask/{name}: not a list of demonstrations")
    return [value.decode() if isinstance(value, bytes) else str(value) for value in stored[()]]


def low_dimensional_keys(file: h5py.File, demo: str, wanted: str | None = None) -> tuple[list[str], list[str]]:
    """The observation keys that are read, in order, and those that are not because they hold images."""
    group = file.get(f"data/{demo}/obs")
    if not isinstance(group, h5py.Group):
        raise InputError(
            f"{file.filename}: data/{demo}/obs: absent; a file of raw simulator states needs its observations "
            "extracted first (robomimic's dataset_states_to_obs.py)"
        )
    low = {name: _is_low_dimensional(group, name) for name in sorted(group)}
    if wanted is None:
        keys = [name for name, fits in low.items() if fits]
    else:
        keys = wanted.split(",")
        for name in keys:
            if name not in low:
                raise InputError(f"{file.filename}: data/{demo}/obs/{name}: no such key; it has {', '.join(low)}")
            if not low[name]:
                raise InputError(f"{file.filename}: data/{demo}/obs/{name}: not low-dimensional; images are not read")
    if not keys:
        raise InputError(f"{file.filename}: data/{demo}/obs: holds only images ({', '.join(low)}), which are not read")
    return keys, [name for name, fits in low.items() if not fits]


def _is_low_dimensional(group: h5py.Group, name: str) -> bool:
    """A vector or number per step. Links are left for `find_hdf5` to refuse."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        return True
    array = group[name]
    return isinstance(array, h5py.Dataset) and array.ndim <= 2 and array.dtype.kind in "biuf"


def _record_demo(
    path: Path, demo: str, keys: list[str], named: bool, skipped: list[str], environment: Sidecar
) -> Recording:
    with open_hdf5(path) as file:
        source, base = f"{path}: data/{demo}", f"data/{demo}"
        own, _ = low_dimensional_keys(file, demo, ",".join(keys) if named else None)
        if own != keys:
            raise InputError(
                f"{source}: obs: has {', '.join(own)}, but the first demonstration {', '.join(keys)}; "
                f"name those to read, as in {path}::obs={keys[0]}"
            )

        def read(key: str) -> np.ndarray | None:
            found = find_hdf5(file, f"{base}/{key}")
            if found is None:
                return None
            check_memory(str(path), found.nbytes)
            return read_rows(found)

        actions = read("actions")
        if actions is None:
            raise InputError(f"{source}: actions: the demonstration has no such key")
        steps = len(actions) if actions.ndim else 0
        stated = file[base].attrs.get("num_samples", steps)
        if steps == 0 or stated != steps:
            raise InputError(f"{source}: actions: has {steps} rows, num_samples says {stated}")
        observations, widths = _join(source, "obs", keys, steps, read)
        following = None
        if f"{base}/next_obs" in file:
            following, _ = _join(source, "next_obs", keys, steps, read)
        dones, rewards = read("dones"), read("rewards")
        code = read(_ORIGIN) if environment.origin_names else None
    last = np.arange(steps) == steps - 1
    if dones is not None and dones.shape[:1] != (steps,):
        raise InputError(f"{source}: dones: has {len(dones) if dones.ndim else 0} rows, actions has {steps}")
    terminal = np.zeros(steps, bool) if dones is None else dones.reshape(steps, -1).any(axis=1) & last
    if actions.dtype.kind == "f" and environment.bounds is not None:
        actions = environment.bounds.from_unit(actions)
    fixed = environment.of_all()
    fixed["attributes"] = dict(environment.attributes)
    if keys != [_DEFAULT_KEY]:
        fixed["attributes"]["obs_keys"] = widths
    if skipped:
        fixed["attributes"]["skipped_obs_keys"] = skipped
    return Recording(
        source=source,
        observations=observations,
        actions=actions,
        terminals=terminal,
        rewards=rewards,
        next_observations=following,
        timeouts=last,
        origin=None if code is None else Origin(code, environment.origin_names),
        **fixed,
    )


def _join(source: str, group: str, keys: list[str], steps: int, read: Any) -> tuple[np.ndarray, dict[str, int]]:
    columns = {}
    for key in keys:
        array = read(f"{group}/{key}")
        if array is None:
            raise InputError(f"{source}: {group}/{key}: the demonstration has no such key")
        if array.shape[:1] != (steps,):
            raise InputError(f"{source}: {group}/{key}: has shape {array.shape}, for {steps} actions")
        columns[key] = array.reshape(steps, -1).astype(np.float32, copy=False)
    return np.concatenate(list(columns.values()), axis=1), {key: array.shape[1] for key, array in columns.items()}


def _read_environment(path: Path, stored: Mapping[str, Any]) -> Sidecar:
    """What demosift wrote about the data, or what robomimic's `env_args` says."""
    if SIDECAR_ATTRIBUTE in stored:
        return parse_sidecar(f"{path}: data: attribute {SIDECAR_ATTRIBUTE}", stored[SIDECAR_ATTRIBUTE])
    if "env_args" not in stored:
        return Sidecar()
    try:
        content = json.loads(stored["env_args"])
        kwargs, name = dict(content.get("env_kwargs") or {}), str(content["env_name"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: data: attribute env_args: cannot read: {one_line(error)}") from error
    if content.get("type") == _GYM:
        return Sidecar(environment_id=name, environment_kwargs=kwargs)
    return Sidecar(attributes={"env_args": content})


def write_robomimic(dataset: Dataset, target: str) -> None:
    """Writes a robomimic file: a demonstration per episode, its `dones` 1 at terminals.

    Actions are written in [-1, 1], as robomimic expects them; the environment's bounds are kept beside.
    """
    transitions, attributes = dataset.transitions, dataset.attributes
    widths = observation_keys(dataset, _DEFAULT_KEY)
    splits = np.cumsum(list(widths.values()))[:-1]
    action = transitions.action
    stored = np.argmax(action, axis=1).astype(np.int32)[:, None] if dataset.discrete else action.astype(np.float32)
    environment = dataset.environment
    env_args = attributes.get("env_args") or {
        "env_name": "" if environment is None else environment.id,
        "type": _GYM,
        "env_kwargs": {} if environment is None else dict(environment.kwargs),
    }
    num_bytes = sum(array.nbytes for array in transitions) + 16384 * dataset.num_episodes * (1 + len(widths))
    with atomic_write(locate(target), num_bytes) as temporary, h5py.File(temporary, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = len(dataset)
        data.attrs["env_args"] = json.dumps(env_args, sort_keys=True)
        data.attrs[SIDECAR_ATTRIBUTE] = json.dumps(describe(dataset), sort_keys=True)
        for index, (start, end) in enumerate(zip(dataset.episode_starts, dataset.episode_ends, strict=True)):
            demo, rows = data.create_group(f"demo_{index}"), slice(start, end)
            demo.attrs["num_samples"] = int(end - start)
            arrays = {
                "actions": stored[rows],
                "rewards": transitions.reward[rows],
                "dones": transitions.terminal[rows].astype(np.int32),
            }
            for group, states in (("obs", transitions.obs), ("next_obs", transitions.next_obs)):
                parts = zip(widths, np.split(states[rows], splits, axis=1), strict=True)
                arrays |= {f"{group}/{key}": part for key, part in parts}
            if dataset.origin is not None:
                arrays[_ORIGIN] = dataset.origin.code[rows]
            for key, array in arrays.items():
                demo.create_dataset(key, data=array, track_times=False)
