"""Minari datasets: read as expert or supplementary data, and written from any dataset.

A source is `minari:ID` (under MINARI_DATASETS_PATH, as Minari itself resolves it) or the path of a dataset's folder.
Minari's environment specification names code to import; only its id and keyword arguments are read, and the environment
is never made.
"""

import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from jaxtyping import Shaped

from demosift.data.actions import stored_actions
from demosift.data.checks import as_flags, check_claim, check_memory, enter_hdf5, find_hdf5, one_line, open_hdf5
from demosift.data.format import Format
from demosift.data.formats.hdf5.selection import copy_attributes, copy_tree
from demosift.data.formats.sidecar import Sidecar
from demosift.data.recording import Recording, assemble, check_recording
from demosift.data.selection import Selection
from demosift.files import (
    atomic_folder,
    check_links,
    check_regular,
    expanded,
    mismatch,
    open_regular,
    parse_json,
    read_json,
    refuse_links,
    to_json,
)
from demosift.types import Bounds, Dataset, EnvironmentSpec, InputError

if TYPE_CHECKING:
    from gymnasium import Space
    from gymnasium.envs.registration import EnvSpec
    from minari.data_collector.episode_buffer import EpisodeBuffer

PREFIX = "minari:"

_KEYS = ("observations", "actions", "rewards", "terminations", "truncations")
_ORIGIN = "infos/origin"
_NO_ROWS = ["_", ".", "metadata.json"]  # how names of files start that Arrow does not read
# Without its spaces Minari would make the environment, which runs code that the data name.
_METADATA = {
    "observation_space": str,
    "action_space": str,
    "total_episodes": int,
    "data_format": lambda value: value in ("hdf5", "arrow", "parquet"),
    "env_spec": (None, str),
    "demosift_attributes?": dict,
    "demosift_origin_names?": [str],
}
_SPACE = {"type": str, "shape?": lambda shape: isinstance(shape, list) and all(map(_is_width, shape))}


def locate(source: str | os.PathLike[str]) -> tuple[Path, str]:
    """Folder and id of `minari:ID`, of `minari:PATH` (PATH starts with `/`, `.` or `~`) or of a plain path.

    A folder's id is its name, with a version. Unlike Minari's own function this creates nothing.
    """
    text = os.fspath(source)
    name = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or name.startswith(("/", ".", "~")):
        folder = expanded(name).absolute()  # Minari itself refuses a relative one
        return folder, folder.name if _is_id(folder.name) else f"{folder.name}-v0"
    if not _is_id(name):
        raise InputError(f"{text}: not a Minari id, which looks like namespace/name-v0")
    root = os.environ.get("MINARI_DATASETS_PATH") or expanded("~") / ".minari" / "datasets"
    return Path(root, name), name


def is_minari(place: str) -> bool:
    return place.startswith(PREFIX) or Path(place, "data", "metadata.json").is_file()


def minari_files(place: str) -> list[Path]:
    return sorted(path for path in _data_folder(place).rglob("*") if path.is_file())


def _data_folder(place: str) -> Path:
    data = locate(place)[0] / "data"
    if not data.is_dir():
        raise InputError(f"{place}: no Minari dataset at {data.parent}")
    check_links(data.parent, data)
    return data


def minari_parts(place: str) -> Sequence[partial[Recording]]:
    """One part, whose folder is found here: on another machine an id may stand for another one."""
    return [partial(record_minari, place, _data_folder(place))]


def record_minari(name: str, data: Path | None = None) -> Recording:
    data = data or _data_folder(name)
    metadata = _read_metadata(name, data)
    spaces = _read_spaces(name, metadata)
    parts = _vector_parts(spaces[0]) if metadata["data_format"] == "hdf5" else None
    episodes = _read_episodes(name, data, metadata, parts)
    recording = _record(name, metadata, _read_environment(name, metadata), spaces, episodes, parts is not None)
    if not parts:
        return recording
    return replace(recording, attributes={**recording.attributes, "obs_keys": parts})


def record_minari_object(dataset: Any) -> Recording:
    """A `minari.MinariDataset` that the program holds, with the episodes that it was filtered to."""
    if not all(hasattr(dataset, name) for name in ("iterate_episodes", "observation_space", "action_space")):
        kind = type(dataset).__name__
        raise InputError(f"minari: is a {kind}, not a minari.MinariDataset; read_dataset('minari:ID') takes an id")
    spec, metadata = dataset.env_spec, dataset.storage.metadata
    environment = (None, {}) if spec is None else (str(spec.id), dict(spec.kwargs or {}))
    spaces = (dataset.observation_space, dataset.action_space)
    episodes = (_stored_arrays(vars(episode)) for episode in dataset.iterate_episodes())
    return _record(f"{PREFIX}{dataset.id}", metadata, environment, spaces, episodes)


def _record(
    name: str,
    metadata: dict[str, Any],
    environment: tuple[str | None, dict[str, Any]],
    spaces: "tuple[Space, Space]",
    episodes: Iterable[dict[str, np.ndarray]],
    in_parts: bool = False,
) -> Recording:
    bounds, num_actions = _check_spaces(name, *spaces, in_parts)
    names = tuple(map(str, metadata.get("demosift_origin_names", ())))
    try:
        rows = [
            _rows(name, index, episode, discrete=num_actions is not None, with_origin=bool(names))
            for index, episode in enumerate(episodes)
            if len(episode["rewards"]) > 0
        ]
        columns = {key: np.concatenate([episode[key] for episode in rows]) for key in rows[0]} if rows else {}
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: episodes differ in shape or type: {one_line(error)}") from error
    if not columns:
        raise InputError(f"{name}: observations: the set is empty")
    facts = Sidecar(*environment, bounds, num_actions, names, metadata.get("demosift_attributes", {}))
    return facts.recording(name, columns.pop(_ORIGIN, None), **columns)


def _read_metadata(name: str, data: Path) -> dict[str, Any]:
    where = f"{name}: {data / 'metadata.json'}"
    metadata = read_json(data / "metadata.json", where)
    place = mismatch(metadata, _METADATA)
    if place is not None:
        raise InputError(f"{where}: {f'{place}: missing or of the wrong type' if place else 'not a JSON object'}")
    return metadata


def _is_width(size: Any) -> bool:
    return type(size) is int and 0 <= size <= 1 << 20


def _read_spaces(name: str, metadata: dict[str, Any]) -> "tuple[Space, Space]":
    from minari.serialization import deserialize_space

    def space(key: str) -> "Space":
        place = mismatch(parse_json(metadata[key], f"{name}: {key}", infinite=True), _SPACE)
        if place is not None:
            raise InputError(f"{name}: {key}: not a space that Minari knows: {place or 'it'} is malformed")
        try:
            with warnings.catch_warnings(action="ignore"):
                return deserialize_space(metadata[key])
        except Exception as error:
            raise InputError(f"{name}: {key}: not a space that Minari knows: {one_line(error)}") from error

    return space("observation_space"), space("action_space")


def _vector_parts(space: "Space") -> dict[str, int] | None:
    """The vectors, with their widths, of an observation that holds pictures too; None of any other observation."""
    from gymnasium.spaces import Box, Dict

    def is_picture(part: "Space") -> bool:
        return isinstance(part, Box) and part.dtype == np.uint8 and len(part.shape) == 3 and part.shape[2] in (1, 3)

    parts = dict(space.spaces) if isinstance(space, Dict) else {"": space}
    vectors = {key: part.shape for key, part in parts.items() if isinstance(part, Box) and len(part.shape) == 1}
    pictures = [key for key, part in parts.items() if is_picture(part)]
    if not pictures or len(vectors) + len(pictures) != len(parts):
        return None
    return {key: vectors[key][0] for key in sorted(vectors)}


def _check_spaces(
    name: str, obs_space: "Space", action_space: "Space", in_parts: bool
) -> tuple[Bounds | None, int | None]:
    """The action bounds or the number of actions, of a dataset whose spaces are flat, or flat but for pictures."""
    from gymnasium.spaces import Box, Discrete

    def brief(space: "Space") -> str:
        text = " ".join(str(space).split())
        return text if len(text) <= 60 else f"{text[:57]}..."

    if not in_parts and (not isinstance(obs_space, Box) or len(obs_space.shape) != 1):
        raise InputError(f"{name}: observations: {brief(obs_space)} is not a flat Box; only vectors are read")
    if isinstance(action_space, Discrete) and action_space.start == 0:
        return None, int(action_space.n)
    if not isinstance(action_space, Box) or len(action_space.shape) != 1:
        raise InputError(f"{name}: actions: {brief(action_space)} is neither a flat Box nor a Discrete from 0")
    ends = np.stack([action_space.low, action_space.high])
    # An unbounded space has infinite bounds, or the largest numbers of its type.
    if ends.dtype.kind == "f" and (np.abs(ends) >= np.finfo(ends.dtype).max).any():
        return None, None
    try:
        return Bounds.parse(*ends), None
    except ValueError as error:
        raise InputError(f"{name}: actions: {one_line(error)}") from error


def _read_episodes(
    name: str, data: Path, metadata: dict[str, Any], parts: Mapping[str, int] | None, info: str = _ORIGIN
) -> Iterator[dict[str, np.ndarray]]:
    """The stored arrays of each episode. HDF5 is read directly, so that no links are followed.

    Of the infos one is read, where there is one. `parts`: those of an observation that are read, where the others are
    pictures.
    """
    if metadata["data_format"] == "hdf5":
        with open_hdf5(data / "main_data.hdf5") as file:
            num_bytes = 0
            for index in range(metadata["total_episodes"]):
                wanted = [*_KEYS, info]
                if parts is not None:
                    wanted = [*(f"observations/{key}" for key in parts), *wanted[1:]]
                found = {key: find_hdf5(file, f"episode_{index}/{key}") for key in wanted}
                present = {key: array for key, array in found.items() if array is not None}
                for key in wanted:
                    if key not in present and key != info:
                        raise InputError(f"{name}: episode_{index}/{key}: missing in {file.filename}")
                num_bytes += sum(array.nbytes for array in present.values())
                check_memory(name, num_bytes)
                arrays = {key: np.asarray(array[()]) for key, array in present.items()}
                if parts is not None:
                    vectors = [arrays.pop(f"observations/{key}") for key in parts]
                    nothing = np.zeros((len(arrays["rewards"]) + 1, 0), np.float32)
                    arrays["observations"] = np.concatenate([nothing, *vectors], axis=1)
                yield arrays
        return
    from minari.dataset.minari_storage import MinariStorage
    from pyarrow import ArrowException
    from pyarrow import dataset as tables

    refuse_links(data)
    episodes = range(metadata["total_episodes"])
    if metadata["total_episodes"] > len(os.listdir(data)):
        raise InputError(f"{name}: total_episodes: {metadata['total_episodes']}, but {data} has not so many")
    damage = (OSError, LookupError, ValueError, TypeError, AssertionError, RuntimeError, AttributeError, MemoryError)
    try:
        for index in episodes:  # Arrow waits for pipes, and believes what a file says about its rows
            files = [path for path in (data / str(index)).rglob("*") if not path.is_dir()]
            for path in files:
                check_regular(path)
                if path.suffix == ".arrow":
                    _check_arrow(path)
            rows = tables.dataset(f"{data}/{index}", format=metadata["data_format"], ignore_prefixes=_NO_ROWS)
            num_rows = rows.count_rows()
            if num_rows == 0:  # Minari would pass over it, and the episodes after it get other numbers
                raise InputError(f"{data / str(index)}: holds no rows, but total_episodes says {len(episodes)}")
            check_claim(f"{data / str(index)}", 8 * num_rows, sum(path.stat().st_size for path in files))
        for episode in MinariStorage.read(data).get_episodes(episodes):
            yield _stored_arrays(episode, info)
    except InputError:
        raise
    except (*damage, ArrowException) as error:
        raise InputError(f"{name}: damaged Minari data in {data}: {one_line(error)}") from error


def minari_facts(place: str, name: str) -> dict[int, Any]:
    """The last value of `infos/NAME` in each episode, where each of Minari's is one of ours."""
    data = _data_folder(place)
    metadata, found = _read_metadata(place, data), []
    for steps, values in _read_infos(place, data, metadata, name):
        if steps is None or values is None or (steps.ndim, values.ndim) != (1, 1) or not len(values):
            return {}
        if np.asarray(steps[:-1]).any():  # it goes on after a terminal, and is read as several
            return {}
        if len(steps):  # others make no episode
            found.append(values[-1])
    return dict(enumerate(np.asarray(found).tolist()))


def _read_infos(place: str, data: Path, metadata: dict[str, Any], name: str) -> Iterator[tuple[Any, Any]]:
    """The terminations and `infos/NAME` of each episode; of HDF5 as they are stored."""
    if metadata["data_format"] != "hdf5":
        for episode in _read_episodes(place, data, metadata, None, f"infos/{name}"):
            yield episode["terminations"], episode.get(f"infos/{name}")
        return
    with open_hdf5(data / "main_data.hdf5") as file:
        for index in range(metadata["total_episodes"]):
            episode = f"episode_{index}"
            yield find_hdf5(file, f"{episode}/terminations"), find_hdf5(file, f"{episode}/infos/{name}")


def minari_fact_names(place: str) -> list[str]:
    data = _data_folder(place)
    if _read_metadata(place, data)["data_format"] != "hdf5":
        return []
    with open_hdf5(data / "main_data.hdf5") as file:
        first = enter_hdf5(file, "episode_0") if "episode_0" in file else None
        infos = enter_hdf5(first, "infos") if isinstance(first, h5py.Group) and "infos" in first else None
        return list(infos) if isinstance(infos, h5py.Group) else []


def _check_arrow(path: Path) -> None:
    """Where a part of a damaged file is shorter than nothing, Arrow ends the process, unless it has looked first."""
    from pyarrow import ipc

    with open_regular(path) as source, ipc.open_file(source) as file:
        for index in range(file.num_record_batches):
            file.get_batch(index).validate(full=True)


def _stored_arrays(episode: Mapping[str, Any], info: str = _ORIGIN) -> dict[str, np.ndarray]:
    arrays = {key: np.asarray(episode[key]) for key in _KEYS}
    told = (episode.get("infos") or {}).get(info.removeprefix("infos/"))
    return arrays if told is None else {**arrays, info: np.asarray(told)}


def _rows(
    name: str, index: int, episode: dict[str, np.ndarray], discrete: bool, with_origin: bool
) -> dict[str, np.ndarray]:
    """An episode of T steps and T + 1 states as T rows."""
    steps, obs, actions = len(episode["rewards"]), episode["observations"], episode["actions"]
    lengths = {key: len(episode[key]) - (key == "observations") for key in _KEYS}
    for key, length in lengths.items():
        if length != steps:
            raise InputError(f"{name}: {key}: episode {index} has {len(episode[key])}, for {steps} rewards")
    timeouts = as_flags(f"{name}: episode {index}", "truncations", episode["truncations"]).copy()
    timeouts[-1] = True  # an episode that simply stops ends here too; a terminal takes precedence
    rows = {
        "observations": obs[:-1],
        "actions": actions if discrete else actions.astype(np.float32),
        "rewards": episode["rewards"],
        "next_observations": obs[1:],
        "terminals": as_flags(f"{name}: episode {index}", "terminations", episode["terminations"]),
        "timeouts": timeouts,
    }
    if with_origin:
        if _ORIGIN not in episode:
            raise InputError(f"{name}: {_ORIGIN}: episode {index} has none")
        rows[_ORIGIN] = np.atleast_1d(episode[_ORIGIN])[:steps]
    return rows


def _read_environment(name: str, metadata: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    if metadata.get("env_spec") is None:
        return None, {}
    spec = parse_json(metadata["env_spec"], f"{name}: env_spec")
    place = mismatch(spec, {"id": str, "kwargs": (None, dict)})
    if place is not None:
        raise InputError(f"{name}: env_spec: cannot read: {place or 'it'} is missing or malformed")
    return spec["id"], spec.get("kwargs") or {}


def write_minari(dataset: Dataset, target: str | os.PathLike[str]) -> None:
    """Writes a new local Minari dataset, whole or not at all; an existing one is refused.

    A Minari episode is a chain of states. Where a row's successor is not the next row's state (rows were filtered out),
    the chain is cut and a new episode starts, so that every row is kept as it is.
    """
    from gymnasium.spaces import Box, Discrete
    from minari.dataset.minari_storage import MinariStorage

    folder, dataset_id = locate(target)
    bounds = dataset.bounds or Bounds((-1.0,) * dataset.action_dim, (1.0,) * dataset.action_dim)
    if dataset.discrete:
        action_space = Discrete(dataset.action_dim)
    else:
        action_space = Box(np.array(bounds.low, np.float32), np.array(bounds.high, np.float32), dtype=np.float32)
    metadata: dict[str, Any] = {
        "dataset_id": dataset_id,
        "minari_version": importlib.metadata.version("minari"),
        "demosift_attributes": dict(dataset.attributes),
    }
    if dataset.origin is not None:
        metadata["demosift_origin_names"] = list(dataset.origin.names)
    # Minari's chunks are at most half empty, and an episode's headers take some 20 kB.
    ends = _chain_ends(dataset)
    num_bytes = 2 * sum(array.nbytes for array in dataset.transitions) + 32768 * len(ends)
    with atomic_folder(folder, num_bytes=num_bytes) as temporary:
        storage = MinariStorage.new(
            temporary / "data",
            observation_space=Box(-np.inf, np.inf, (dataset.obs_dim,), np.float32),
            action_space=action_space,
            env_spec=None if dataset.environment is None else _env_spec(dataset.environment),
        )
        storage.update_metadata(metadata)
        storage.update_episodes(_episode_buffers(dataset, ends))


def _chain_ends(dataset: Dataset) -> Shaped[np.ndarray, "episodes"]:
    """One past the last row of each chain of states: where an episode ends, or is interrupted."""
    obs, _, _, next_obs, terminal = dataset.transitions
    end = terminal | dataset.timeout
    end[:-1] |= (next_obs[:-1] != obs[1:]).any(axis=1)
    end[-1] = True
    return np.flatnonzero(end) + 1


def _episode_buffers(dataset: Dataset, ends: Shaped[np.ndarray, "episodes"]) -> "Iterator[EpisodeBuffer]":
    from minari.data_collector.episode_buffer import EpisodeBuffer

    obs, _, reward, next_obs, terminal = dataset.transitions
    actions = stored_actions(dataset)
    start = 0
    for stop in ends:
        rows = slice(start, stop)
        truncated = np.zeros(stop - start, bool)
        truncated[-1] = not terminal[stop - 1]
        origin = None if dataset.origin is None else dataset.origin.code[rows]
        yield EpisodeBuffer(
            observations=np.concatenate([obs[rows], next_obs[stop - 1 : stop]]),  # pyright: ignore[reportArgumentType]
            actions=actions[rows],  # pyright: ignore[reportArgumentType]
            rewards=reward[rows],  # pyright: ignore[reportArgumentType]
            terminations=terminal[rows],  # pyright: ignore[reportArgumentType]
            truncations=truncated,  # pyright: ignore[reportArgumentType]
            # One entry per state, as Minari's own collector writes infos: the last repeats.
            infos=None if origin is None else {"origin": np.append(origin, origin[-1:])},
        )
        start = stop


def _env_spec(environment: EnvironmentSpec) -> "EnvSpec":
    """Gymnasium's specification of the environment, or the bare id where it is not registered here."""
    from gymnasium.envs.registration import EnvSpec, registry
    from gymnasium.error import Error

    registered = registry.get(environment.id)
    if registered is None:
        try:
            return EnvSpec(environment.id, kwargs=dict(environment.kwargs))
        except Error as error:
            raise InputError(f"environment {environment.id!r}: not a name that Minari can hold") from error
    return replace(registered, kwargs={**registered.kwargs, **environment.kwargs})


def _is_id(name: str) -> bool:
    from minari.dataset.minari_dataset import DATASET_ID_RE

    match = DATASET_ID_RE.fullmatch(name)
    return match is not None and match["version"] is not None


def keep_minari(place: str, target: str, selection: Selection) -> None:
    """The kept part of a Minari dataset. Whole episodes of HDF5 storage keep whatever was recorded with them.

    A stretch of single steps becomes an episode that holds only what demosift reads; so does every episode if one of
    them goes on after a terminal, and is read as several.
    """
    data, (folder, dataset_id) = _data_folder(place), locate(target)
    metadata, main = _read_metadata(place, data), data / "main_data.hdf5"
    stored = _stored_lengths(main, metadata) if metadata["data_format"] == "hdf5" else {}
    if not selection.whole or [*stored.values()] != selection.lengths.tolist():
        return write_minari(selection.apply(assemble(check_recording(record_minari(place)))), target)
    lengths = selection.lengths[selection.episodes]
    metadata |= {"dataset_id": dataset_id, "total_episodes": len(lengths), "total_steps": int(lengths.sum())}
    with open_hdf5(main) as file, atomic_folder(folder, num_bytes=main.stat().st_size) as temporary:
        (temporary / "data").mkdir()
        with h5py.File(temporary / "data" / "main_data.hdf5", "w") as copy:
            copy_attributes(file, copy)
            names = [*stored]
            for new, old in enumerate(selection.episodes):
                episode: Any = enter_hdf5(file, names[old])
                copy_tree(episode, copy.create_group(f"episode_{new}"), -1, np.zeros(0, int))
                copy[f"episode_{new}"].attrs["id"] = new
        (temporary / "data" / "metadata.json").write_text(to_json(metadata, indent=2), encoding="utf-8")
    return None


def find_pictures(place: str) -> tuple[Path, list[str]]:
    """The HDF5 file of a dataset, and the observations in it of the episodes that `read_dataset` gives."""
    data = _data_folder(place)
    metadata = _read_metadata(place, data)
    if metadata["data_format"] != "hdf5":
        raise InputError(f"{place}: pictures are read from Minari data in HDF5, not in Arrow")
    main = data / "main_data.hdf5"
    return main, [f"{name}/observations" for name in _stored_lengths(main, metadata)]


def _stored_lengths(main: Path, metadata: dict[str, Any]) -> dict[str, int]:
    """The steps of each episode in the HDF5 file; one without a step is not part of the dataset."""
    with open_hdf5(main) as file:
        names = [f"episode_{index}" for index in range(min(metadata["total_episodes"], len(file)))]
        rewards = {name: find_hdf5(file, f"{name}/rewards") for name in names}
        return {name: len(array) for name, array in rewards.items() if array is not None and array.size}


FORMAT = Format(
    "minari", is_minari, minari_parts, write_minari, minari_files, keep_minari, minari_facts, minari_fact_names
)
