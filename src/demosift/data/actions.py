"""Actions in demosift's units: float32 in [-1, 1], or one-hot rows of a discrete space.

Files hold actions in the environment's own units. Where its bounds are known they are mapped linearly, and mapped back
on writing; bounds of -1 and 1 leave every bit as it is.
"""

from typing import Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Float32, Int8, Shaped

from demosift.data.checks import check_memory
from demosift.types import InputError

ActionMode = Literal["check", "clip", "rescale"]

# Beyond the rounding of float32 and of a stored text or bound, well below anything a controller would notice.
TOLERANCE = 1e-4


class Bounds(NamedTuple):
    """The action that each column's -1 and +1 stand for. Equal where data never moved a column: it maps to 0."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of_data(cls, action: Shaped[np.ndarray, "rows *action"]) -> "Bounds":
        low, high = (np.atleast_1d(extreme(axis=0)) for extreme in (action.min, action.max))
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    def joined(self, other: "Bounds") -> "Bounds":
        return Bounds(tuple(map(min, self.low, other.low)), tuple(map(max, self.high, other.high)))

    @property
    def unit(self) -> bool:
        return all(x == -1 for x in self.low) and all(x == 1 for x in self.high)

    def close_to(self, other: "Bounds") -> bool:
        """Equal up to the float32 rounding that some formats store bounds with."""
        return len(self.low) == len(other.low) and np.allclose(self, other, rtol=1e-5)

    def to_unit(self, action: Float[np.ndarray, "rows action"]) -> Float32[np.ndarray, "rows action"]:
        if self.unit:
            return action.astype(np.float32, copy=False)
        centre, half = self._centre_and_half()
        return ((action - centre) / np.where(half > 0, half, 1.0)).astype(np.float32)

    def from_unit(self, action: Float[np.ndarray, "rows action"]) -> Float32[np.ndarray, "rows action"]:
        if self.unit:
            return action.astype(np.float32, copy=False)
        centre, half = self._centre_and_half()
        return (centre + half * action).astype(np.float32)

    def _centre_and_half(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        return (high + low) / 2, (high - low) / 2


class StatesActions(Protocol):
    """What is known of a file's actions, whether it is read whole or in blocks. None is what the file does not say."""

    @property
    def source(self) -> str: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def action_columns(self) -> int: ...
    @property
    def bounds(self) -> Bounds | None: ...
    @property
    def num_actions(self) -> int | None: ...
    def action_range(self) -> Bounds:
        """The least and largest stored value of each column, or of the index where actions are discrete."""
        ...


def shared_action_space(a: StatesActions, b: StatesActions, mode: ActionMode) -> tuple[Bounds | None, int | None]:
    """The bounds or the number of actions of both files; nothing where they differ in kind, which is checked later."""
    if a.discrete and b.discrete:
        stated = {file.num_actions for file in (a, b) if file.num_actions is not None}
        if len(stated) == 2:
            return None, None
        return None, max(stated) if stated else max(count_actions(file.action_range()) for file in (a, b))
    if a.discrete or b.discrete or a.action_columns != b.action_columns:
        return None, None
    if mode == "rescale":
        return a.action_range().joined(b.action_range()), None
    if a.bounds is not None and b.bounds is not None and not a.bounds.close_to(b.bounds):
        raise InputError(f"{b.source}: actions: bounds differ from those of {a.source}; use files of one environment")
    return a.bounds or b.bounds, None


def scale_actions(
    source: str, action: Float[np.ndarray, "rows action"], bounds: Bounds | None, mode: ActionMode, first: int = 0
) -> Float32[np.ndarray, "rows action"]:
    """Maps actions from `bounds` to [-1, 1]. What lies outside by more than `TOLERANCE` is refused, unless clipped.

    `first` is the file's number of the first row, for the message.
    """
    if bounds is not None and len(bounds.low) != action.shape[1]:
        raise InputError(f"{source}: actions: has {action.shape[1]} columns, its bounds have {len(bounds.low)}")
    unit = action if bounds is None else bounds.to_unit(action)
    size = np.abs(unit)
    if mode == "check" and (size > 1 + TOLERANCE).any():
        row, column = np.argwhere(size > 1 + TOLERANCE)[0]
        low, high = (-1, 1) if bounds is None else (bounds.low[column], bounds.high[column])
        raise InputError(
            f"{source}: actions: row {first + row}, column {column}: {action[row, column]:g} is outside "
            f"[{low:g}, {high:g}]; "
            'clip it (actions="clip", --actions clip) or rescale to the range of the data (actions="rescale", '
            "--actions rescale)"
        )
    return np.clip(unit, -1, 1) if (size > 1).any() else unit


def count_actions(indices: Bounds) -> int:
    return max(int(indices.high[0]) + 1, 1)


def one_hot(
    source: str, action: Shaped[np.ndarray, "rows"], num_actions: int, first: int = 0
) -> Int8[np.ndarray, "rows action"]:
    wrong = (action < 0) | (action >= num_actions)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{source}: actions: row {first + row}: {action[row]} is not one of the {num_actions} discrete actions"
        )
    check_memory(source, len(action) * num_actions)
    rows = np.zeros((len(action), num_actions), np.int8)
    rows[np.arange(len(action)), action] = 1
    return rows
