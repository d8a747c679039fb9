"""robomimic files: HDF5 with a group per demonstration, `data/demo_N`, read and written without robomimic.

A demonstration is an episode. Its observations are several arrays under `obs`; the low-dimensional ones (one or two
axes) are joined in sorted order of their names, or those that the option `obs` names, in its order. Images are
skipped and listed in the attribute `skipped_obs_keys`. The option `filter` reads the demonstrations of `mask/NAME`.

`dones` is 1 where the task is solved, where the demonstration ends, or both, depending on how a file was made. So it
never cuts a demonstration: at the last row it marks a terminal state, elsewhere it is ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from demosift.data.checks import as_flags, check_memory, enter_hdf5, find_hdf5, looks_like_hdf5, open_hdf5
from demosift.data.format import Format
from demosift.data.formats.hdf5.file import read_rows, text_of
from demosift.data.formats.hdf5.selection import copy_attributes, copy_tree
from demosift.data.formats.sidecar import Sidecar, describe, observation_keys, parse_sidecar
from demosift.data.recording import Recording, check_recording, followed_rows, no_actions
from demosift.data.selection import Run, Selection
from demosift.files import atomic_write, copy_regular, expanded, mismatch, parse_json
from demosift.types import Dataset, InputError

PREFIX = "robomimic:"
SIDECAR_ATTRIBUTE = "demosift"

_ORIGIN = "infos/origin"
_GYM = 2  # robomimic's number for Gym environments; names of other kinds are not Gymnasium ids
_ENV_ARGS = {"env_name": str, "env_kwargs": (None, dict)}
_DEFAULT_KEY = "flat"  # the name that robomimic's own conversion of D4RL uses


def locate(place: str) -> Path:
    return expanded(place.removeprefix(PREFIX))


def is_robomimic(place: str) -> bool:
    if place.startswith(PREFIX):
        return True
    try:
        if not looks_like_hdf5(place):
            return False
        with open_hdf5(Path(place)) as file:
            link = file.get("data", getlink=True)
            return isinstance(link, h5py.HardLink) and isinstance(file["data"], h5py.Group)
    except (InputError, ValueError):
        return False  # reading it as a native file will say what is wrong


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
        attributes = file["data"].attrs
        stored = {name: attributes[name] for name in (SIDECAR_ATTRIBUTE, "env_args") if name in attributes}
        environment = _read_environment(path, stored)
    return [partial(_record_demo, path, name, keys, obs is not None, skipped, environment) for name in names]


def list_demos(file: h5py.File) -> list[str]:
    """Demonstrations in the order of their numbers, as robomimic sorts them: demo_2 before demo_10."""
    data = enter_hdf5(file, "data") if file.get("data", getlink=True) is not None else None
    if not isinstance(data, h5py.Group):
        raise InputError(f"{file.filename}: data: the file has no such group")
    names = [str(name) for name in data]
    for name in names:
        if not re.fullmatch(r"demo_[0-9]{1,18}", name):
            raise InputError(f"{file.filename}: data/{name}: not a demonstration, which is called demo_0, demo_1, ...")
        enter_hdf5(data, name)
    return sorted(names, key=lambda name: int(name[5:]))


def read_filter_key(file: h5py.File, name: str) -> list[str]:
    mask = filter_keys(file)
    if mask is None or name not in list(mask):
        known = ", ".join(mask or ())
        raise InputError(f"{file.filename}: mask/{name}: no such filter key (the file has: {known or 'none'})")
    stored, where = enter_hdf5(mask, name), f"mask/{name}"
    is_text = isinstance(stored, h5py.Dataset) and (stored.dtype.kind == "S" or h5py.check_string_dtype(stored.dtype))
    if not isinstance(stored, h5py.Dataset) or stored.ndim != 1 or not is_text:
        raise InputError(f"{file.filename}: {where}: not a list of demonstrations")
    check_memory(f"{file.filename}: {where}", 64 * len(stored))
    return [text_of(file.filename, where, value) for value in stored[()]]


def filter_keys(file: h5py.File) -> h5py.Group | None:
    """The group of filter keys, if the file has one."""
    if file.get("mask", getlink=True) is None:
        return None
    mask = enter_hdf5(file, "mask")
    return mask if isinstance(mask, h5py.Group) else None


def low_dimensional_keys(file: h5py.File, demo: str, wanted: str | None = None) -> tuple[list[str], list[str]]:
    """The observation keys that are read, in order, and those that are not because they hold images."""
    episode = enter_hdf5(file["data"], demo)  # pyright: ignore[reportArgumentType]
    stored = isinstance(episode, h5py.Group) and episode.get("obs", getlink=True) is not None
    group = enter_hdf5(episode, "obs") if stored and isinstance(episode, h5py.Group) else None
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
            states = read(f"obs/{keys[0]}")
            actions = no_actions(0 if states is None or not states.ndim else len(states))
        steps = len(actions) if actions.ndim else 0
        stated = file[base].attrs.get("num_samples", steps)
        if steps == 0 or np.ndim(stated) or stated != steps:
            raise InputError(f"{source}: actions: has {steps} rows, num_samples says {' '.join(str(stated).split())}")
        observations, widths = _join(source, "obs", keys, steps, read)
        has_next = f"{base}/next_obs" in file
        following = _join(source, "next_obs", keys, steps, read)[0] if has_next else None
        dones, rewards = read("dones"), read("rewards")
        code = read(_ORIGIN) if environment.origin_names else None
    last = np.arange(steps) == steps - 1
    if dones is not None and dones.shape[:1] != (steps,):
        raise InputError(f"{source}: dones: has {len(dones) if dones.ndim else 0} rows, actions has {steps}")
    terminal = np.zeros(steps, bool) if dones is None else as_flags(source, "dones", dones) & last
    if actions.dtype.kind == "f" and actions.shape[1:] != (0,) and environment.bounds is not None:
        actions = environment.bounds.from_unit(actions)
    attributes: dict[str, Any] = {} if keys == [_DEFAULT_KEY] else {"obs_keys": widths}
    if skipped:
        attributes["skipped_obs_keys"] = skipped
    return environment.recording(
        source,
        code,
        attributes,
        observations=observations,
        actions=actions,
        terminals=terminal,
        rewards=rewards,
        next_observations=following,
        timeouts=last,
        number=np.full(steps, int(demo[5:])),
    )


def robomimic_facts(place: str, name: str) -> dict[int, Any]:
    """Whether each demonstration is in `mask/NAME`; else its attribute of that name."""
    with open_hdf5(locate(place)) as file:
        demos = list_demos(file)
        if name in list(filter_keys(file) or ()):
            chosen = set(read_filter_key(file, name))
            return {int(demo[5:]): demo in chosen for demo in demos}
        attributes = {int(demo[5:]): file[f"data/{demo}"].attrs for demo in demos}
        return {number: own[name] for number, own in attributes.items() if name in own}


def robomimic_fact_names(place: str) -> list[str]:
    with open_hdf5(locate(place)) as file:
        attributes = [name for demo in list_demos(file)[:1] for name in file[f"data/{demo}"].attrs]
        return [*map(str, filter_keys(file) or ()), *attributes]


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
    where = f"{path}: data: attribute env_args"
    content = parse_json(stored["env_args"], where)
    place = mismatch(content, _ENV_ARGS)
    if place is not None:
        raise InputError(f"{where}: cannot read: {place or 'it'} is missing or malformed")
    if content.get("type") == _GYM:
        return Sidecar(environment_id=content["env_name"], environment_kwargs=content.get("env_kwargs") or {})
    return Sidecar(attributes={"env_args": content})


def write_robomimic(dataset: Dataset, target: str) -> None:
    """Writes a robomimic file: a demonstration per episode, its `dones` 1 at terminals.

    Actions are written in [-1, 1], as robomimic expects them, and the environment's bounds as an attribute.
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


def keep_robomimic(place: str, target: str, selection: Selection, **options: str) -> None:
    """Kept demonstrations with all their arrays, images too.

    Whole ones keep their names, so that filter keys still hold. Where single steps are dropped, every stretch becomes a
    demonstration with a new number and the old name in its attribute `source_demo`, and `next_obs` is written even if
    the file had none.
    """
    path = locate(place)
    demos = list_episodes(place, **options)
    names: dict[str, list[str]] = {}
    with (
        open_hdf5(path) as file,
        atomic_write(locate(target), path.stat().st_size) as temporary,
        h5py.File(temporary, "w") as copy,
    ):
        copy_attributes(file, copy)
        data = copy.create_group("data")
        copy_attributes(file["data"], data)
        total = 0
        for number, run in enumerate(selection.runs()):
            old = demos[run.episode]
            new = old if selection.whole else f"demo_{number}"
            total += _copy_demo(file[f"data/{old}"], data.create_group(new), run, selection.whole)
            names.setdefault(old, []).append(new)
            if not selection.whole:
                data[new].attrs["source_demo"] = old
        data.attrs["total"] = total
        for key in filter_keys(file) or ():
            kept = [new for old in read_filter_key(file, str(key)) for new in names.get(old, ())]
            copy.create_dataset(f"mask/{key}", data=np.array(kept, "S"))


def list_episodes(place: str, **options: str) -> list[str]:
    """The demonstration of each episode that `read_dataset` gives: those with a row whose successor is known."""
    parts = (check_recording(read()) for read in robomimic_parts(place, **options))
    return [part.source.rpartition("/")[2] for part in parts if followed_rows(part).any()]


def _copy_demo(source: Any, target: h5py.Group, run: Run, whole: bool) -> int:
    """One demonstration or a stretch of it; how many rows it has."""
    steps = len(source["actions"])
    wanted = np.arange(steps) if whole else np.arange(run.start, run.stop)
    copy_tree(source, target, steps, wanted)
    target.attrs["num_samples"] = len(wanted)
    if not whole and "next_obs" not in source:
        # A last step that is terminal has no successor: its own state stands in, as in a native file.
        following = np.minimum(wanted + 1, steps - 1)
        copy_tree(source["obs"], target.create_group("next_obs"), steps, following)
    return len(wanted)


def write_filter_key(place: str, target: str, name: str, selection: Selection, **options: str) -> None:
    """A copy of the file in which `mask/NAME` lists the kept demonstrations."""
    path, destination = locate(place), locate(target)
    if not name or "/" in name:
        raise InputError(f"{name!r}: not a name for a filter key")
    demos = list_episodes(place, **options)
    kept = [demos[episode] for episode in selection.episodes]
    with open_hdf5(path) as file:
        if name in (filter_keys(file) or ()):
            raise InputError(f"{path}: mask/{name}: the file has this filter key already; choose another name")
    with atomic_write(destination, path.stat().st_size + 65536) as temporary:
        temporary.unlink()
        copy_regular(path.resolve(), temporary)
        with h5py.File(temporary, "r+") as copy:
            copy.create_dataset(f"mask/{name}", data=np.array(kept, "S"))


FORMAT = Format(
    "robomimic",
    is_robomimic,
    robomimic_parts,
    write_robomimic,
    lambda place: [locate(place)],
    keep_robomimic,
    robomimic_facts,
    robomimic_fact_names,
    options=("obs", "filter"),
)
