"""Datasets from what a program holds already (arrays, episodes, Minari objects, tables), and back.

`Dataset` has all of these as methods. Each fills a `Recording`, as the readers of files do, so the same functions check
it and the messages are the same, with `source` in the place of a file's name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from demosift.data.actions import ActionMode, check_mode, count_actions, stored_actions
from demosift.data.checks import as_flags, as_vector, check_lengths, check_numeric, check_state, one_line
from demosift.data.formats.minari import record_minari_object
from demosift.data.formats.npz import record_episode
from demosift.data.formats.sidecar import Sidecar
from demosift.data.recording import Recording, assemble, check_recording, join_recordings
from demosift.types import Bounds, Dataset, EnvironmentSpec, InputError

if TYPE_CHECKING:
    import pandas

_KEYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
_GYMNASIUM = {"terminations": "terminals", "truncations": "timeouts"}  # Gymnasium's and Minari's names
_COLUMNS = {
    "observations": ("observations", "observation", "obs"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_observations": ("next_observations", "next_observation", "next_obs"),
    "terminals": ("terminals", "terminal", "terminations", "terminated"),
    "timeouts": ("timeouts", "timeout", "truncations", "truncated"),
}
_EPISODE = ("episode", "episode_id", "episode_index")


def from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any = None,
    terminals: Any = None,
    timeouts: Any = None,
    *,
    next_observations: Any = None,
    ends: Any = None,
    environment: Any = None,
    action_low: Any = None,
    action_high: Any = None,
    num_actions: int | None = None,
    action_mode: ActionMode = "check",
    max_episode_steps: int | None = None,
    source: str = "memory",
) -> Dataset:
    """A dataset from arrays with an entry per transition, in episode order. The arrays are copied.

    `observations`: (rows, obs). `actions`: (rows, action) floats in [-1, 1], or in the units of the bounds where these
    are given; (rows,) integers where actions are discrete. `rewards`, `terminals`, `timeouts`: (rows,), the last two of
    0 and 1. `next_observations`: (rows, obs); without them the next row follows, and the last row of an episode that
    does not end in a terminal is dropped. `ends`: one past the last row of each episode, in place of `timeouts`.

    `environment`: a Gymnasium environment, or an `EnvironmentSpec` as `resolve` gives it; both state the action bounds.
    A bare id states none. `action_low` and `action_high` state bounds, `num_actions` the size of a discrete action
    space. `action_mode` says what to do with actions outside their bounds: "check" refuses them, "clip" and "rescale"
    are as in `read_dataset`. `source` names the data in messages.
    """
    given = dict(zip(_KEYS, (observations, actions, rewards, next_observations, terminals, timeouts), strict=True))
    arrays = {key: _as_array(source, key, value) for key, value in given.items() if value is not None}
    for key in ("observations", "actions"):
        if key not in arrays:
            raise InputError(f"{source}: {key}: absent")
    if ends is not None:
        if timeouts is not None:
            raise InputError(f"{source}: ends: given, though timeouts says where episodes end too")
        arrays["timeouts"] = _flags_of(source, _as_array(source, "ends", ends), len(np.atleast_1d(arrays["actions"])))
    known = arrays.keys() & {"terminals", "timeouts", "next_observations"}
    if not known and max_episode_steps is None:
        raise InputError(f"{source}: terminals: absent; say where episodes end by ends, terminals or timeouts")
    arrays.setdefault("terminals", np.zeros(arrays["actions"].shape[:1], bool))
    facts = _facts(source, environment, action_low, action_high, num_actions)
    return _assembled([facts.recording(source, None, **arrays)], source, action_mode, max_episode_steps)


def from_episodes(
    episodes: Iterable[Mapping[str, Any]],
    *,
    environment: Any = None,
    action_low: Any = None,
    action_high: Any = None,
    num_actions: int | None = None,
    action_mode: ActionMode = "check",
    max_episode_steps: int | None = None,
    source: str = "memory",
) -> Dataset:
    """A dataset from a dictionary per episode, with the keys and shapes of a folder of `.npz` episodes.

    `observations` may hold one row more than `actions`, the state after the last step. `terminals` may be one flag for
    the last step. Gymnasium's names `terminations` and `truncations` are taken too. The options are as in
    `from_arrays`.
    """
    facts = _facts(source, environment, action_low, action_high, num_actions)
    recordings = []
    for number, episode in enumerate(episodes):
        name = f"{source}: episode {number}"
        if not isinstance(episode, Mapping):
            raise InputError(f"{name}: is a {type(episode).__name__}, not a dictionary of arrays")
        arrays = {}
        for key, value in episode.items():
            key = _GYMNASIUM.get(key, key)
            if key == "infos" or value is None:
                continue
            if key not in _KEYS or key in arrays:
                known = ", ".join((*_KEYS, *_GYMNASIUM))
                raise InputError(f"{name}: {key}: {'given twice' if key in arrays else f'unknown; known are {known}'}")
            arrays[key] = _as_array(name, key, value)
        recordings.append(record_episode(name, arrays, facts, holder="dictionary"))
    if not recordings:
        raise InputError(f"{source}: episodes: the set is empty")
    return _assembled(recordings, source, action_mode, max_episode_steps)


def from_minari(dataset: Any, *, action_mode: ActionMode = "check", max_episode_steps: int | None = None) -> Dataset:
    """A dataset from a `minari.MinariDataset`, with those of its episodes that it was filtered to.

    By its id, `read_dataset("minari:ID")` reads it without Minari's own readers.
    """
    recording = record_minari_object(dataset)
    return _assembled([recording], recording.source, action_mode, max_episode_steps)


def from_table(
    table: Any,
    *,
    observations: str | Sequence[str] | None = None,
    actions: str | Sequence[str] | None = None,
    rewards: str | None = None,
    next_observations: str | Sequence[str] | None = None,
    terminals: str | None = None,
    timeouts: str | None = None,
    episode: str | None = None,
    environment: Any = None,
    action_low: Any = None,
    action_high: Any = None,
    num_actions: int | None = None,
    action_mode: ActionMode = "check",
    max_episode_steps: int | None = None,
    source: str = "memory",
) -> Dataset:
    """A dataset from a table with a row per transition: pandas, Arrow, Polars, or a dictionary of columns.

    Each name is a column (of numbers, or of lists of numbers), the prefix of numbered columns ("obs" for `obs_0`,
    `obs_1`, ...), or a list of columns. By default `observations`, `observation` or `obs`, `actions` or `action`, and
    so on are looked for. `episode` names a column whose value changes where a new episode starts (by default `episode`,
    `episode_id` or `episode_index`, if there). The other options are as in `from_arrays`.
    """
    columns = [str(name) for name in getattr(table, "column_names", getattr(table, "columns", table))]
    named = (observations, actions, rewards, next_observations, terminals, timeouts)
    arrays: dict[str, Any] = {}
    for key, names in zip(_KEYS, named, strict=True):
        found = _find_columns(source, key, columns, names)
        if found:
            arrays[key] = _read_columns(source, key, table, found)
    where = episode or next((name for name in _EPISODE if name in columns), None)
    if where is not None:
        if where not in columns:
            raise InputError(f"{source}: episode: the table has no column {where!r}")
        ends = _episode_ends(source, where, np.asarray(table[where]))
        if "timeouts" in arrays:
            stored = as_flags(source, "timeouts", arrays["timeouts"])
            check_lengths(source, {"episode": ends, "timeouts": stored})
            ends |= stored
        arrays["timeouts"] = ends
    return from_arrays(
        arrays.pop("observations", None),
        arrays.pop("actions", None),
        **arrays,
        environment=environment,
        action_low=action_low,
        action_high=action_high,
        num_actions=num_actions,
        action_mode=action_mode,
        max_episode_steps=max_episode_steps,
        source=source,
    )


def to_arrays(dataset: Dataset) -> dict[str, Any]:
    """Copies of the arrays, under the names that `from_arrays` takes and in the units that files have.

    Actions are in the units of the dataset's bounds, or one integer per row.
    """
    transitions = dataset.transitions
    arrays = (
        transitions.obs,
        stored_actions(dataset),
        transitions.reward,
        transitions.next_obs,
        transitions.terminal,
        dataset.timeout,
    )
    return {key: np.array(array) for key, array in zip(_KEYS, arrays, strict=True)}


def to_columns(dataset: Dataset) -> dict[str, np.ndarray]:
    """The columns of `to_pandas`, by name: `episode`, `obs_0`, ..., `action_0`, ... (or `action`), `reward`, ..."""
    arrays = to_arrays(dataset)
    columns = {"episode": np.repeat(np.arange(dataset.num_episodes), dataset.episode_ends - dataset.episode_starts)}
    for key, name in zip(_KEYS, ("obs", "action", "reward", "next_obs", "terminal", "timeout"), strict=True):
        array = arrays[key]
        columns |= {name: array} if array.ndim == 1 else {f"{name}_{i}": part for i, part in enumerate(array.T)}
    return columns


def to_pandas(dataset: Dataset) -> "pandas.DataFrame":
    """A DataFrame with a row per transition, which `from_table` takes back. pandas must be installed."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_pandas: pandas is not installed: pip install 'demosift[pandas]'") from error
    return pandas.DataFrame(to_columns(dataset))


def record_dataset(dataset: Dataset) -> Recording:
    """A dataset as if it were read from a file, so that it can be read together with one.

    A discrete action space that is as large as the largest index says was most likely counted, not stated.
    """
    environment = dataset.environment
    recording = Recording(
        source=dataset.source,
        **to_arrays(dataset),
        origin=dataset.origin,
        environment_id=None if environment is None else environment.id,
        environment_kwargs={} if environment is None else environment.kwargs,
        bounds=dataset.bounds,
        num_actions=None if environment is None else environment.num_actions,
        attributes=dataset.attributes,
    )
    if len(dataset) == 0:
        raise InputError(f"{dataset.source}: observations: the set is empty")
    if dataset.discrete and dataset.action_dim != count_actions(recording.action_range()):
        recording = Recording(**{**vars(recording), "num_actions": dataset.action_dim})
    return recording


def has_units(dataset: Dataset, bounds: Bounds | None, num_actions: int | None) -> bool:
    """Whether the dataset's actions are already in these units."""
    if dataset.discrete:
        return num_actions in (None, dataset.action_dim)
    own = dataset.bounds
    return bounds is None or (bounds.unit if own is None else own.close_to(bounds))


def _assembled(
    recordings: Sequence[Recording], source: str, mode: ActionMode, max_episode_steps: int | None
) -> Dataset:
    check_mode(mode, "action_mode")
    joined = join_recordings(source, [check_recording(recording) for recording in recordings])
    check_state(source, joined.observations.shape[1])
    return assemble(joined, mode, max_episode_steps)


def _as_array(source: str, key: str, value: Any) -> np.ndarray:
    """A copy, so that a dataset does not change with the program's arrays."""
    try:
        array = np.array(value)
    except ValueError as error:
        raise InputError(f"{source}: {key}: rows differ in length: {one_line(error)}") from error
    check_numeric(source, key, array.dtype)
    return array


def _flags_of(source: str, ends: np.ndarray, num_rows: int) -> Bool[np.ndarray, "rows"]:
    if ends.dtype.kind not in "iu" or ends.ndim != 1 or len(ends) == 0:
        raise InputError(
            f"{source}: ends: is {ends.dtype} of shape {ends.shape}, needs integers, one past the last row of each "
            "episode; a flag per row is called timeouts"
        )
    wrong = np.flatnonzero(np.diff(ends.astype(np.int64), prepend=0) <= 0)
    if len(wrong):
        raise InputError(f"{source}: ends: entry {wrong[0]}: {ends[wrong[0]]} is not above the one before it")
    if ends[-1] != num_rows:
        raise InputError(f"{source}: ends: the last is {ends[-1]}, actions has {num_rows} rows")
    flags = np.zeros(num_rows, bool)
    flags[ends - 1] = True
    return flags


def _facts(source: str, environment: Any, low: Any, high: Any, num_actions: int | None) -> Sidecar:
    """What is stated beside the arrays, in the form that files state it in."""
    spec = _describe(source, environment)
    content: dict[str, Any] = {}
    if spec is not None:
        content = {"env_id": spec.id, "env_kwargs": spec.kwargs, "num_actions": spec.num_actions}
        if spec.bounds is not None:
            content |= {"action_low": spec.action_low, "action_high": spec.action_high}
    stated = {"action_low": low, "action_high": high, "num_actions": num_actions}
    try:
        return Sidecar.parse(content | {key: value for key, value in stated.items() if value is not None})
    except (ValueError, TypeError) as error:
        raise InputError(f"{source}: {one_line(error)}") from error


def _describe(source: str, environment: Any) -> EnvironmentSpec | None:
    if environment is None or isinstance(environment, EnvironmentSpec):
        return environment
    if isinstance(environment, str):
        return EnvironmentSpec(environment)
    spec, space = getattr(environment, "spec", None), getattr(environment, "action_space", None)
    if spec is None or space is None:
        raise InputError(
            f"{source}: environment: is a {type(environment).__name__}, "
            "not a registered Gymnasium environment, an EnvironmentSpec or an id"
        )
    kwargs = dict(spec.kwargs)
    if hasattr(space, "n"):
        return EnvironmentSpec(spec.id, kwargs, num_actions=int(space.n))
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not np.isfinite([low, high]).all():
        return EnvironmentSpec(spec.id, kwargs)
    return EnvironmentSpec(spec.id, kwargs, tuple(low.ravel().tolist()), tuple(high.ravel().tolist()))


def _find_columns(source: str, key: str, columns: Sequence[str], named: str | Sequence[str] | None) -> list[str]:
    """The columns that hold this key: one, or those whose numbers follow a prefix. None is fine unless it was named."""
    if named is not None and not isinstance(named, str):
        missing = [name for name in named if name not in columns]
        if missing or not named:
            raise InputError(f"{source}: {key}: the table has no column {missing[0] if missing else ''!r}")
        return list(named)
    for name in _COLUMNS[key] if named is None else (named,):
        if name in columns:
            return [name]
        if f"{name}_0" in columns:
            count = sum(column.startswith(f"{name}_") and column[len(name) + 1 :].isdigit() for column in columns)
            numbered = [f"{name}_{i}" for i in range(count)]
            if missing := [each for each in numbered if each not in columns]:
                raise InputError(f"{source}: {key}: the table has no column {missing[0]!r}, but later ones")
            return numbered
    if named is not None or key in ("observations", "actions"):
        names = " or ".join(repr(name) for name in (_COLUMNS[key] if named is None else (named,)))
        raise InputError(f"{source}: {key}: the table has no column {names}, nor numbered ones of that name")
    return []


def _read_columns(source: str, key: str, table: Any, names: Sequence[str]) -> np.ndarray:
    parts = [_read_cells(source, key, name, np.asarray(table[name])) for name in names]
    if len(parts) > 1 or (names[0].endswith("_0") and parts[0].ndim == 1):
        if any(part.ndim != 1 for part in parts):
            raise InputError(f"{source}: {key}: column {names[0]!r}: holds lists; name it alone")
        return np.stack(parts, axis=1)
    return parts[0]


def _read_cells(source: str, key: str, name: str, cells: np.ndarray) -> np.ndarray:
    """A column whose cells may be lists, which tables hand out as objects."""
    if cells.dtype != object or len(cells) == 0:
        return cells
    try:
        return np.stack([np.asarray(cell) for cell in cells])
    except ValueError as error:
        raise InputError(f"{source}: {key}: column {name!r}: cells differ in length") from error


def _episode_ends(source: str, name: str, ids: np.ndarray) -> Bool[np.ndarray, "rows"]:
    if ids.ndim != 1 or len(ids) == 0:
        raise InputError(f"{source}: episode: column {name!r}: has shape {ids.shape}, needs a value per row")
    if ids.dtype.kind in "biuf":
        as_vector(source, "episode", ids)
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    seen: set[Any] = set()
    for row in starts.tolist():
        if ids[row] in seen:
            raise InputError(f"{source}: episode: row {row}: {ids[row]} comes back; sort the rows by episode")
        seen.add(ids[row])
    ends = np.zeros(len(ids), bool)
    ends[np.append(starts[1:], len(ids)) - 1] = True
    return ends
