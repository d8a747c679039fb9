"""The data's types, and the shape letters every other module uses.

Shape letters: `rows` transitions (or a batch of them), `obs` observation size, `action` action size, `members`
policies that train together in one program. Arrays are NumPy on the host and JAX on the device; this module imports
neither JAX nor Gymnasium.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int8, Shaped

from demosift.errors import InputError as InputError

if TYPE_CHECKING:
    from demosift.data import memory


class Transitions(NamedTuple):
    """A structure of arrays: a whole dataset, a batch of it, or (without the leading axes) one transition.

    Actions are float32 in [-1, 1], or int8 one-hot rows where the action space is discrete.
    """

    obs: Float[Any, "*rows obs"]
    action: Shaped[Any, "*rows action"]
    reward: Float[Any, "*rows"]
    next_obs: Float[Any, "*rows obs"]
    terminal: Bool[Any, "*rows"]


LARGEST_BOUND = 1e9  # no actuator has more, and float32 keeps no detail of what is scaled by it


class Bounds(NamedTuple):
    """The actions that the -1 and +1 of each column stand for; equal where a column never moved, which maps to 0.

    This is the one place where actions change units, be it for files or for environments. Bounds of -1 and 1 leave
    every bit as it is.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def parse(cls, low: Any, high: Any) -> "Bounds":
        """Bounds that a file states, be they numbers or lists; ValueError where they are none."""
        try:
            ends = [np.atleast_1d(np.asarray(end)) for end in (low, high)]
            numeric = all(end.ndim == 1 and end.dtype.kind in "iuf" for end in ends)
            if numeric and len(ends[0]) == len(ends[1]) and len(ends[0]) > 0:
                low, high = (end.astype(np.float64) for end in ends)
                if np.isfinite([low, high]).all() and (low <= high).all():
                    if np.abs([low, high]).max() > LARGEST_BOUND:
                        raise ValueError(f"action_low, action_high: beyond {LARGEST_BOUND:g}")
                    return cls(tuple(low.tolist()), tuple(high.tolist()))
        except (TypeError, OverflowError):
            pass
        raise ValueError("action_low, action_high: not two equally long lists of numbers, low below high")

    @classmethod
    def of_data(cls, action: Shaped[np.ndarray, "rows *action"]) -> "Bounds":
        """The least and the largest action of each column."""
        low, high = (np.atleast_1d(extreme(axis=0)) for extreme in (action.min, action.max))
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    def joined(self, other: "Bounds") -> "Bounds":
        """The narrowest bounds that contain both."""
        return Bounds(tuple(map(min, self.low, other.low)), tuple(map(max, self.high, other.high)))

    @property
    def unit(self) -> bool:
        """Whether they are -1 and 1."""
        return all(x == -1 for x in self.low) and all(x == 1 for x in self.high)

    def close_to(self, other: "Bounds") -> bool:
        """Equal up to the float32 rounding that some formats store bounds with."""
        return len(self.low) == len(other.low) and np.allclose(self, other, rtol=1e-5)

    def to_unit(self, action: Float[np.ndarray, "*rows action"]) -> Float32[np.ndarray, "*rows action"]:
        """From these bounds to [-1, 1]."""
        scale = _centre_and_half(self)
        if scale is None:
            return action.astype(np.float32, copy=False)
        centre, half = scale
        return ((action - centre) / np.where(half > 0, half, 1.0)).astype(np.float32)

    def from_unit(self, action: Float[np.ndarray, "*rows action"]) -> Float32[np.ndarray, "*rows action"]:
        """From [-1, 1] to these bounds."""
        scale = _centre_and_half(self)
        if scale is None:
            return action.astype(np.float32, copy=False)
        centre, half = scale
        return (centre + half * action).astype(np.float32)


@cache  # an environment is stepped with the same bounds many thousand times a second
def _centre_and_half(bounds: Bounds) -> tuple[np.ndarray, np.ndarray] | None:
    """None where the bounds are -1 and 1."""
    if bounds.unit:
        return None
    low, high = np.asarray(bounds.low, np.float64), np.asarray(bounds.high, np.float64)
    return (high + low) / 2, (high - low) / 2


@dataclass(frozen=True)
class EnvironmentSpec:
    """What data and policies store about their environment: enough to make it again and to scale actions."""

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int | None = None  # discrete action spaces only

    @property
    def discrete(self) -> bool:
        """Whether an action is one of `num_actions`."""
        return self.num_actions is not None

    @property
    def bounds(self) -> Bounds | None:
        """None where actions are discrete or no bounds were stated."""
        if self.action_low is None or self.action_high is None:
            return None
        return Bounds(self.action_low, self.action_high)

    def scale_action(self, action: Shaped[np.ndarray, "*rows action"]) -> Shaped[np.ndarray, "*rows_and_action"]:
        """From [-1, 1] to the bounds; from scores or one-hot rows to the index of the largest.

        Data that name an environment but no bounds were not scaled: their -1 and 1 stand for themselves.
        """
        if self.discrete:
            return np.argmax(action, axis=-1)
        # Clipped, because some environments refuse an action that rounding put one unit outside.
        unit, bounds = np.minimum(np.maximum(action, np.float32(-1)), np.float32(1)), self.bounds
        return unit.astype(np.float32) if bounds is None else bounds.from_unit(unit)


class Origin(NamedTuple):
    """Where each row truly came from, as codes into `names`: kept to judge scorers, never shown to them."""

    code: Int8[np.ndarray, "rows"]
    names: tuple[str, ...]


class _InMemory:
    """A function of `demosift.data.memory`, looked up when it is used: this module imports no readers."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, dataset: Any, owner: type) -> Any:
        function = getattr(import_module("demosift.data.memory"), self.name)
        return function if dataset is None or self.name.startswith("from_") else function.__get__(dataset)


@dataclass(frozen=True)
class Dataset:
    """Transitions in episode order, on the host, with what is known about them.

    `timeout` marks rows that end an episode without a terminal state (a time limit, or the end of the recording). An
    episode ends at a terminal or a timeout; the last row of a dataset always ends one.
    """

    transitions: Transitions
    timeout: Bool[np.ndarray, "rows"]
    environment: EnvironmentSpec | None = None
    origin: Origin | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: str = "memory"  # the file it was read from, for messages
    stated_bounds: Bounds | None = None  # those of a file that names no environment

    if TYPE_CHECKING:
        from_arrays = staticmethod(memory.from_arrays)
        from_episodes = staticmethod(memory.from_episodes)
        from_minari = staticmethod(memory.from_minari)
        from_table = staticmethod(memory.from_table)
        to_arrays = memory.to_arrays
        to_pandas = memory.to_pandas
    else:
        from_arrays, from_episodes, from_minari, from_table = (_InMemory() for _ in range(4))
        to_arrays, to_pandas = _InMemory(), _InMemory()

    def __len__(self) -> int:
        return len(self.transitions.reward)

    @property
    def obs_dim(self) -> int:
        """How many numbers an observation has."""
        return self.transitions.obs.shape[-1]

    @property
    def action_dim(self) -> int:
        """How many numbers an action has, or how many actions there are where they are discrete."""
        return self.transitions.action.shape[-1]

    @property
    def discrete(self) -> bool:
        """Whether actions are one-hot rows."""
        return is_one_hot(self.transitions.action)

    @property
    def bounds(self) -> Bounds | None:
        """What the -1 and +1 of its actions stand for; None where that is unknown or actions are discrete."""
        if self.discrete:
            return None
        return (self.environment and self.environment.bounds) or self.stated_bounds

    @property
    def episode_ends(self) -> Shaped[np.ndarray, "episodes"]:
        """One past the last row of each episode."""
        return np.flatnonzero(self.transitions.terminal | self.timeout) + 1

    @property
    def episode_starts(self) -> Shaped[np.ndarray, "episodes"]:
        """The first row of each episode."""
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def num_episodes(self) -> int:
        """How many episodes the rows make up."""
        return len(self.episode_ends)

    def episodes(self) -> Iterator[Transitions]:
        """The transitions of one episode after the other, as views."""
        for start, end in zip(self.episode_starts, self.episode_ends, strict=True):
            yield Transitions(*(array[start:end] for array in self.transitions))

    def returns(self) -> Float[np.ndarray, "episodes"]:
        """The sum of the rewards of each episode."""
        return np.add.reduceat(self.transitions.reward.astype(np.float64), self.episode_starts)

    def take(self, rows: np.ndarray | slice) -> "Dataset":
        """The given rows, in the given order. The caller marks the ends of partial episodes in `timeout`."""
        origin = None if self.origin is None else Origin(self.origin.code[rows], self.origin.names)
        transitions = Transitions(*(array[rows] for array in self.transitions))
        return replace(self, transitions=transitions, timeout=self.timeout[rows], origin=origin)


@dataclass(frozen=True)
class Demonstrations:
    """The expert set and the supplementary set (None for plain BC); `union` joins them, expert first.

    `weight` is how much each row of the union is worth imitating, if that was decided before training.
    `expert_actions` False: nobody knows what the expert did. Its actions are then zeros in the units of the
    supplementary set's, whatever they were, so that nothing can depend on them. `bad` is a set that is known to be bad:
    nobody imitates it, and rows that look like it are worth less.
    """

    expert: Dataset
    supplementary: Dataset | None = None
    weight: Float[np.ndarray, "rows"] | None = None
    expert_actions: bool = True
    bad: Dataset | None = None

    def __post_init__(self) -> None:
        if not self.expert_actions:
            object.__setattr__(self, "expert", self._without_actions())

    def _without_actions(self) -> Dataset:
        """The expert set with zeros for actions. What actions are is what the supplementary set says they are."""
        expert, supplementary = self.expert, self.supplementary
        if supplementary is None:
            raise InputError(f"{expert.source}: its actions are unknown, so it needs a supplementary set that has some")
        action = np.zeros((len(expert), supplementary.action_dim), supplementary.transitions.action.dtype)
        environment, bounds = expert.environment, supplementary.bounds or expert.bounds
        if environment is not None:
            low, high = (None, None) if bounds is None or supplementary.discrete else bounds
            count = supplementary.action_dim if supplementary.discrete else None
            environment = replace(environment, action_low=low, action_high=high, num_actions=count)
        transitions = expert.transitions._replace(action=action)
        return replace(
            expert, transitions=transitions, environment=environment, stated_bounds=supplementary.stated_bounds
        )

    @property
    def union(self) -> Transitions:
        """The rows of both sets, the expert's first."""
        if self.supplementary is None:
            return self.expert.transitions
        pairs = zip(self.expert.transitions, self.supplementary.transitions, strict=True)
        return Transitions(*(np.concatenate(pair) for pair in pairs))

    @property
    def environment(self) -> EnvironmentSpec | None:
        """The environment that the expert set names, or else the supplementary set."""
        given = (d.environment for d in (self.expert, self.supplementary) if d is not None)
        return next((spec for spec in given if spec is not None), None)


def is_one_hot(action: Any) -> bool:
    """Whether actions are one-hot rows of a discrete space, which the integer type shows."""
    return np.dtype(action.dtype).kind in "iu"
