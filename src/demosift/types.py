"""The data's types, and the shape letters every other module uses.

Shape letters: `rows` transitions (or a batch of them), `obs` observation size, `action` action size, `members`
policies that train together in one program. Arrays are NumPy on the host and JAX on the device; this module imports
neither JAX nor Gymnasium.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int8, Shaped


class InputError(Exception):
    """Something the user gave is wrong.

    The message is one line that says what and where; the command line exits with 2.
    """


class Transitions(NamedTuple):
    """A structure of arrays: a whole dataset, a batch of it, or (without the leading axes) one transition.

    Actions are float32 in [-1, 1], or int8 one-hot rows where the action space is discrete.
    """

    obs: Float[Any, "*rows obs"]
    action: Shaped[Any, "*rows action"]
    reward: Float[Any, "*rows"]
    next_obs: Float[Any, "*rows obs"]
    terminal: Bool[Any, "*rows"]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What data and policies remember of their environment:

    enough to make it again and to scale actions to its bounds.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int | None = None  # discrete action spaces only

    @property
    def discrete(self) -> bool:
        return self.num_actions is not None


class Origin(NamedTuple):
    """Where each row truly came from: codes into `names`. Kept to judge scorers, never shown to them."""

    code: Int8[np.ndarray, "rows"]
    names: tuple[str, ...]


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

    def __len__(self) -> int:
        return len(self.transitions.reward)

    @property
    def obs_dim(self) -> int:
        return self.transitions.obs.shape[-1]

    @property
    def action_dim(self) -> int:
        return self.transitions.action.shape[-1]

    @property
    def discrete(self) -> bool:
        return is_one_hot(self.transitions.action)

    @property
    def episode_ends(self) -> Shaped[np.ndarray, "episodes"]:
        """One past the last row of each episode."""
        return np.flatnonzero(self.transitions.terminal | self.timeout) + 1

    @property
    def episode_starts(self) -> Shaped[np.ndarray, "episodes"]:
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def num_episodes(self) -> int:
        return len(self.episode_ends)

    def episodes(self) -> Iterator[Transitions]:
        for start, end in zip(self.episode_starts, self.episode_ends, strict=True):
            yield Transitions(*(array[start:end] for array in self.transitions))

    def returns(self) -> Float[np.ndarray, "episodes"]:
        return np.add.reduceat(self.transitions.reward.astype(np.float64), self.episode_starts)

    def take(self, rows: np.ndarray | slice) -> "Dataset":
        """The given rows, in the given order. Whoever takes parts of episodes must mark their ends in `timeout`."""
        origin = None if self.origin is None else Origin(self.origin.code[rows], self.origin.names)
        transitions = Transitions(*(array[rows] for array in self.transitions))
        return replace(self, transitions=transitions, timeout=self.timeout[rows], origin=origin)


@dataclass(frozen=True)
class Demonstrations:
    """The expert set, the supplementary set (None for plain BC), and through `union` their concatenation, expert
    first. `weight` is how much each row of the union is worth imitating, where that was settled before training.
    """

    expert: Dataset
    supplementary: Dataset | None = None
    weight: Float[np.ndarray, "rows"] | None = None

    @property
    def union(self) -> Transitions:
        if self.supplementary is None:
            return self.expert.transitions
        pairs = zip(self.expert.transitions, self.supplementary.transitions, strict=True)
        return Transitions(*(np.concatenate(pair) for pair in pairs))

    @property
    def environment(self) -> EnvironmentSpec | None:
        given = (d.environment for d in (self.expert, self.supplementary) if d is not None)
        return next((spec for spec in given if spec is not None), None)


def is_one_hot(action: Any) -> bool:
    """Whether actions are one-hot rows of a discrete space: the integer type says so."""
    return np.dtype(action.dtype).kind in "iu"
