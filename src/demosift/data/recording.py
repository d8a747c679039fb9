"""From the content of a file to a `Dataset`, with the same checks and conventions for every format.

A format's reader only fills a `Recording` with arrays as stored. What every format would have to get right is done here
once: types, lengths, where episodes end, which state follows which, and the units of actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from demosift.data.actions import ActionMode, count_actions, one_hot, scale_actions
from demosift.data.checks import as_flags, as_matrix, as_vector, check_lengths
from demosift.types import Bounds, Dataset, EnvironmentSpec, InputError, Origin, Transitions


@dataclass(frozen=True)
class Recording:
    """A file's content under D4RL's names; None where the file does not hold something."""

    source: str
    observations: np.ndarray
    # In the environment's units; one integer per row where they are discrete; no columns where the file has none.
    actions: np.ndarray
    terminals: np.ndarray
    rewards: np.ndarray | None = None
    next_observations: np.ndarray | None = None
    timeouts: np.ndarray | None = None
    origin: Origin | None = None
    environment_id: str | None = None
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bounds: Bounds | None = None
    num_actions: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    number: np.ndarray | None = None  # the file's own number of each row's episode, where it has one

    @property
    def discrete(self) -> bool:
        return self.actions.dtype.kind in "iu"

    @property
    def obs_keys(self) -> Mapping[str, int] | None:
        """The widths of the keys that observations were joined from, where the format has several."""
        stated = self.attributes.get("obs_keys")
        return stated if isinstance(stated, dict) else None

    @property
    def action_columns(self) -> int:
        return 1 if self.discrete else self.actions.shape[1]

    def action_range(self) -> Bounds:
        return Bounds.of_data(self.actions)


def check_recording(raw: Recording) -> Recording:
    """The same content with the types and shapes that `assemble` relies on, or the first thing wrong with it."""
    checked = check_types(raw)
    arrays = {key: getattr(checked, key) for key in _KEYS}
    check_lengths(raw.source, arrays | {"infos/origin": None if checked.origin is None else checked.origin.code})
    return checked


def check_types(raw: Recording) -> Recording:
    """Everything that `check_recording` checks except how many rows there are."""
    source = raw.source
    rewards, timeouts, following = raw.rewards, raw.timeouts, raw.next_observations
    checked = replace(
        raw,
        observations=as_matrix(source, "observations", raw.observations),
        actions=as_actions(source, raw.actions),
        terminals=as_flags(source, "terminals", raw.terminals),
        rewards=None if rewards is None else as_vector(source, "rewards", rewards).astype(np.float32),
        next_observations=None if following is None else as_matrix(source, "next_observations", following),
        timeouts=None if timeouts is None else as_flags(source, "timeouts", timeouts),
        origin=None if raw.origin is None else as_origin(source, raw.origin),
    )
    columns = checked.observations.shape[1]
    if columns == 0 and following is not None and following.shape[1] > 0:
        raise InputError(f"{source}: observations: has no columns")
    if following is not None and following.shape[1] != columns:
        raise InputError(f"{source}: next_observations: has {following.shape[1]} columns, observations has {columns}")
    names = () if raw.origin is None else raw.origin.names
    if any("\0" in name for name in (raw.environment_id or "", *names)):  # which HDF5 and the system do not take
        raise InputError(f"{source}: the name of an environment or origin has a character of code 0 in it")
    if checked.num_actions is not None and not checked.discrete:
        raise InputError(f"{source}: actions: the file states num_actions, but they are not one integer per row")
    return checked


def join_recordings(source: str, parts: Sequence[Recording]) -> Recording:
    """Parts of one source, each already checked and made of whole episodes, as one recording.

    Everything but the arrays (environment, bounds, attributes) is the same in all parts and taken from the first.
    """
    first = parts[0]
    if len(parts) == 1:
        return replace(first, source=source)
    for part in parts:
        check_alike(first, part)
    columns: dict[str, Any] = {
        key: None if getattr(first, key) is None else np.concatenate([getattr(part, key) for part in parts])
        for key in _KEYS
    }
    origin = None
    if first.origin is not None:
        codes = [part.origin.code for part in parts if part.origin is not None]
        origin = Origin(np.concatenate(codes), first.origin.names)
    numbers = [part.number for part in parts if part.number is not None]
    number = np.concatenate(numbers) if len(numbers) == len(parts) else None
    return replace(first, source=source, origin=origin, number=number, **columns)


def check_alike(first: Recording, part: Recording) -> None:
    """Parts of one source hold the same keys, with the same number of columns."""
    for key in _KEYS:
        a, b = getattr(first, key), getattr(part, key)
        if (a is None) != (b is None):
            with_it, without = (first, part) if b is None else (part, first)
            raise InputError(f"{without.source}: {key}: absent, but {with_it.source} has it")
        if a is not None and (a.shape[1:] != b.shape[1:] or (key == "actions" and first.discrete != part.discrete)):
            shapes = (f"{x.dtype}{list(x.shape[1:])}" for x in (b, a))
            raise InputError("{}: {}: rows of {}, but {} in {}".format(part.source, key, *shapes, first.source))
    if (first.origin is None) != (part.origin is None) or (
        first.origin is not None and part.origin is not None and first.origin.names != part.origin.names
    ):
        raise InputError(f"{part.source}: infos/origin: not the same as in {first.source}")


_KEYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


def no_actions(num_rows: int) -> np.ndarray:
    """What a reader gives for the actions of a file that has none."""
    return np.zeros((num_rows, 0), np.float32)


def without_actions(recording: Recording) -> Recording:
    """The recording of an expert whose actions are unknown: a column of zeros, until `with_actions_like`."""
    return replace(recording, actions=np.zeros((*recording.observations.shape[:1], 1), np.float32), num_actions=None)


def with_actions_like(recording: Recording, other: Recording) -> Recording:
    """The recording with actions of another's kind and units, which pass the same checks and mean nothing.

    The bounds that it states itself count only where the other states none and they fit.
    """
    bounds = other.bounds
    if bounds is None and recording.bounds is not None and len(recording.bounds.low) == other.action_columns:
        bounds = None if other.discrete else recording.bounds
    actions = np.repeat(other.actions[:1], len(recording.observations), axis=0)
    return replace(recording, actions=actions, bounds=bounds, num_actions=other.num_actions)


def as_actions(source: str, actions: np.ndarray, first: int = 0) -> np.ndarray:
    if actions.ndim == 2 and actions.shape[1] == 0:
        raise InputError(
            f"{source}: actions: the file has no such key (or no columns in it); only an expert's actions may be "
            "unknown (train --expert-observations)"
        )
    if actions.dtype.kind not in "iu":
        return as_matrix(source, "actions", actions, first)
    if actions.ndim == 2 and actions.shape[1] > 1:
        raise InputError(
            f"{source}: actions: {actions.shape[1]} columns of integers; store continuous actions as floats, "
            "discrete ones as one index per row"
        )
    return as_vector(source, "actions", actions, first)


def as_origin(source: str, origin: Origin) -> Origin:
    code = as_vector(source, "infos/origin", origin.code)
    wrong = (code < 0) | (code >= min(len(origin.names), 128))  # codes are int8
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{source}: infos/origin: row {row}: {code[row]} is no code of the {len(origin.names)} names")
    return Origin(code.astype(np.int8), origin.names)


def assemble(
    recording: Recording,
    actions: ActionMode = "check",
    max_episode_steps: int | None = None,
    bounds: Bounds | None = None,
    num_actions: int | None = None,
) -> Dataset:
    """A checked recording as a `Dataset`.

    `bounds` and `num_actions` replace what the file states, for files that are read together. With actions="rescale"
    the data's own range becomes the bounds, so that a policy's output is mapped back to the units of the data.
    """
    source = recording.source
    if recording.discrete:
        bounds = None
        num_actions = num_actions or recording.num_actions or count_actions(recording.action_range())
        action = one_hot(source, recording.actions, num_actions)
    else:
        own = recording.action_range() if actions == "rescale" else recording.bounds
        bounds, num_actions = bounds or own, None
        action = scale_actions(source, recording.actions, bounds, actions)

    obs, terminal = recording.observations, recording.terminals
    timeout = mark_episode_ends(recording, max_episode_steps) & ~terminal
    absent = {key for key in _KEYS if getattr(recording, key) is None}
    reward = np.zeros(len(obs), np.float32) if recording.rewards is None else recording.rewards
    attributes = dict(recording.attributes)
    if absent:  # so that returns made of missing rewards can be told from returns of zero
        attributes["absent_keys"] = sorted(absent)
    if actions != "check" and not recording.discrete:
        attributes["actions"] = actions
    low, high = bounds or (None, None)
    environment = stated = None
    if recording.environment_id is None:
        stated = None if bounds is None or bounds.unit else bounds
    else:
        kwargs = dict(recording.environment_kwargs)
        environment = EnvironmentSpec(recording.environment_id, kwargs, low, high, num_actions)

    if recording.next_observations is not None:
        transitions = Transitions(obs, action, reward, recording.next_observations, terminal)
        return Dataset(transitions, timeout, environment, recording.origin, attributes, source, stated)
    followed, shortened = drop_unfollowed(source, terminal, timeout)
    if timeout.any():
        attributes["dropped_rows"] = int(timeout.sum())
    # A terminal state's value is masked wherever it is used, so its own state stands in for its successor.
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[terminal] = obs[terminal]
    transitions = Transitions(obs, action, reward, next_obs, terminal)
    dataset = Dataset(transitions, shortened, environment, recording.origin, attributes, source, stated)
    return dataset.take(followed)


def mark_episode_ends(recording: Recording, max_episode_steps: int | None) -> Bool[np.ndarray, "rows"]:
    """Marks the last row of every episode.

    Without stored timeouts, an episode also ends where a row's successor is not the next row's observation; without
    successors either, only terminals and `max_episode_steps` decide.
    """
    end = recording.terminals.copy()
    if recording.timeouts is not None:
        end |= recording.timeouts
    elif recording.next_observations is not None:
        end[:-1] |= (recording.next_observations[:-1] != recording.observations[1:]).any(axis=1)
    return cut_episodes(recording.source, end, max_episode_steps)


def cut_episodes(source: str, end: Bool[np.ndarray, "rows"], max_episode_steps: int | None) -> Bool[np.ndarray, "rows"]:
    """The last row ends an episode too, and so does every `max_episode_steps`-th of a longer one."""
    end[-1] = True
    if max_episode_steps is not None:
        if max_episode_steps < 1:
            raise InputError(f"{source}: max_episode_steps must be at least 1, not {max_episode_steps}")
        last = np.flatnonzero(end)
        lengths = np.diff(last, prepend=-1)
        step = np.arange(len(end)) - np.repeat(last - lengths + 1, lengths)
        end |= (step + 1) % max_episode_steps == 0
    return end


def followed_rows(recording: Recording, max_episode_steps: int | None = None) -> Bool[np.ndarray, "rows"]:
    """The rows of a checked recording that become rows of a dataset: all, or those whose successor is known."""
    if recording.next_observations is not None:
        return np.ones(len(recording.observations), bool)
    return ~mark_episode_ends(recording, max_episode_steps) | recording.terminals


def episode_numbers(recording: Recording, max_episode_steps: int | None = None) -> Int[np.ndarray, "episodes"]:
    """The numbers of a checked recording's episodes with at least one row; counted from 0 where the file has none."""
    followed = followed_rows(recording, max_episode_steps)
    end = mark_episode_ends(recording, max_episode_steps)
    episode = np.concatenate([[0], np.cumsum(end)[:-1]])[followed]
    last = np.append(np.flatnonzero(np.diff(episode)), len(episode) - 1)
    if recording.number is None:
        return np.arange(len(last))
    return recording.number[followed][last].astype(np.int64)


def drop_unfollowed(
    source: str, terminal: Bool[np.ndarray, "rows"], timeout: Bool[np.ndarray, "rows"]
) -> tuple[Bool[np.ndarray, "rows"], Bool[np.ndarray, "rows"]]:
    """Which rows are kept where no successors are stored, and the timeouts that this leaves.

    The last row of every episode that a timeout or the recording's end cut short is dropped: nobody knows the state
    that followed it. DemoDICE bootstraps from that state, so the next episode's first state or the row itself would
    make an invented transition; D4RL's own `qlearning_dataset` drops the row as well. The row before it becomes the
    last of its episode, with the dropped observation as its true successor.
    """
    if timeout.all():
        raise InputError(
            f"{source}: next_observations: absent, and no row is followed by another of its episode: the set is empty"
        )
    shortened = np.zeros_like(timeout)
    shortened[:-1] = timeout[1:] & ~(terminal | timeout)[:-1]
    return ~timeout, shortened
