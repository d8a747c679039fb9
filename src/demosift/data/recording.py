"""From what a file says to a `Dataset`: the same checks and conventions whatever the format.

A format's reader only fills a `Recording`, arrays as stored. Everything that could be got wrong once per format is done
here once: types, lengths, where episodes end, which state follows which, and the units of actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from demosift.data.actions import ActionMode, Bounds, count_actions, one_hot, scale_actions
from demosift.data.checks import as_flags, as_matrix, as_vector, check_columns, check_lengths
from demosift.types import Dataset, EnvironmentSpec, InputError, Origin, Transitions


@dataclass(frozen=True)
class Recording:
    """A file's content under D4RL's names. None is what the file does not hold."""

    source: str
    observations: np.ndarray
    actions: np.ndarray  # in the environment's units; one integer per row where they are discrete
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

    @property
    def discrete(self) -> bool:
        return self.actions.dtype.kind in "iu"

    @property
    def obs_keys(self) -> Mapping[str, int] | None:
        """The columns of each part that observations were joined of, where the format has parts."""
        stated = self.attributes.get("obs_keys")
        return stated if isinstance(stated, dict) else None

    @property
    def action_columns(self) -> int:
        return 1 if self.discrete else self.actions.shape[1]

    def action_range(self) -> Bounds:
        return Bounds.of_data(self.actions)


def check_recording(raw: Recording) -> Recording:
    """The same content with the types and shapes that `assemble` relies on, or the first thing wrong with it."""
    source = raw.source

    def matrix(key: str, array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else as_matrix(source, key, array)

    rewards = None if raw.rewards is None else as_vector(source, "rewards", raw.rewards).astype(np.float32)
    checked = replace(
        raw,
        observations=as_matrix(source, "observations", raw.observations),
        actions=as_actions(source, raw.actions),
        terminals=as_flags(source, "terminals", raw.terminals),
        rewards=rewards,
        next_observations=matrix("next_observations", raw.next_observations),
        timeouts=None if raw.timeouts is None else as_flags(source, "timeouts", raw.timeouts),
        origin=None if raw.origin is None else as_origin(source, raw.origin),
    )
    arrays = {key: getattr(checked, key) for key in _KEYS}
    check_lengths(source, arrays | {"infos/origin": None if checked.origin is None else checked.origin.code})
    following = checked.next_observations
    if following is not None:
        check_columns(source, checked.observations, following)
    if checked.num_actions is not None and not checked.discrete:
        raise InputError(f"{source}: actions: the file states num_actions, but they are not one integer per row")
    return checked


def join_recordings(source: str, parts: Sequence[Recording]) -> Recording:
    """Parts of one source, each already checked and made of whole episodes, as one recording.

    What is not an array (environment, bounds, attributes) is the same in all of them and taken from the first.
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
    return replace(first, source=source, origin=origin, **columns)


def check_alike(first: Recording, part: Recording) -> None:
    """Parts of one source hold the same keys, with as many columns."""
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


def as_actions(source: str, actions: np.ndarray, first: int = 0) -> np.ndarray:
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
    if absent:  # zero rewards are not a reward of zero: whoever reports returns can tell
        attributes["absent_keys"] = sorted(absent)
    if actions != "check" and not recording.discrete:
        attributes["actions"] = actions
    low, high = bounds or (None, None)
    environment = None
    if recording.environment_id is not None:
        kwargs = dict(recording.environment_kwargs)
        environment = EnvironmentSpec(recording.environment_id, kwargs, low, high, num_actions)
    elif bounds is not None and not bounds.unit:
        attributes["action_bounds"] = {"low": list(bounds.low), "high": list(bounds.high)}

    stored = recording.next_observations
    next_obs = _successors(obs, terminal) if stored is None else stored
    transitions = Transitions(obs, action, reward, next_obs, terminal)
    dataset = Dataset(transitions, timeout, environment, recording.origin, attributes, source)
    return dataset if stored is not None else _drop_unfollowed(dataset)


def mark_episode_ends(recording: Recording, max_episode_steps: int | None) -> Bool[np.ndarray, "rows"]:
    """Marks the last row of every episode.

    Without stored timeouts, a successor that is not the next row's observation shows a break; without successors
    either, only terminals and `max_episode_steps` tell.
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


def _successors(
    obs: Float32[np.ndarray, "rows obs"], terminal: Bool[np.ndarray, "rows"]
) -> Float32[np.ndarray, "rows obs"]:
    """The following row. A terminal state's value is masked wherever it is used, so its own state stands in."""
    following = np.concatenate([obs[1:], obs[-1:]])
    following[terminal] = obs[terminal]
    return following


def followed_rows(recording: Recording, max_episode_steps: int | None = None) -> Bool[np.ndarray, "rows"]:
    """The rows of a checked recording that become rows of a dataset: all, or those whose successor is known."""
    if recording.next_observations is not None:
        return np.ones(len(recording.observations), bool)
    return ~mark_episode_ends(recording, max_episode_steps) | recording.terminals


def _drop_unfollowed(dataset: Dataset) -> Dataset:
    """Without stored successors, drops the last row of every episode that a timeout or the recording's end cut short.

    Nobody knows the state that followed it. DemoDICE bootstraps from that state: the following episode's first state
    or the row itself would be a made-up transition, and D4RL's own `qlearning_dataset` drops the row as well. The row
    before it becomes the last of its episode, with the dropped observation as its true successor.
    """
    terminal, timeout = dataset.transitions.terminal, dataset.timeout
    followed = ~timeout
    if not followed.any():
        raise InputError(
            f"{dataset.source}: next_observations: absent, and no row is followed by another of its episode: "
            "the set is empty"
        )
    shortened = np.zeros_like(timeout)
    shortened[:-1] = timeout[1:] & ~(terminal | timeout)[:-1]
    kept = replace(dataset, timeout=shortened).take(followed)
    dropped = int(timeout.sum())
    return replace(kept, attributes={**dataset.attributes, "dropped_rows": dropped}) if dropped else kept
