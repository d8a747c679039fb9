"""Actions in demosift's units: float32 in [-1, 1], or one-hot rows of a discrete space.

Files hold actions in the environment's own units. Where its bounds are known they are mapped linearly, and mapped back
on writing; bounds of -1 and 1 leave every bit as it is.
"""

from typing import Literal, NamedTuple

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
    def of_data(cls, *actions: Float[np.ndarray, "rows action"]) -> "Bounds":
        low = np.min([a.min(axis=0) for a in actions], axis=0)
        high = np.max([a.max(axis=0) for a in actions], axis=0)
        return cls(tuple(low.tolist()), tuple(high.tolist()))

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


def scale_actions(
    source: str, action: Float[np.ndarray, "rows action"], bounds: Bounds | None, mode: ActionMode
) -> Float32[np.ndarray, "rows action"]:
    """Maps actions from `bounds` to [-1, 1]. What lies outside by more than `TOLERANCE` is refused, unless clipped."""
    if bounds is not None and len(bounds.low) != action.shape[1]:
        raise InputError(f"{source}: actions: has {action.shape[1]} columns, its bounds have {len(bounds.low)}")
    unit = action if bounds is None else bounds.to_unit(action)
    size = np.abs(unit)
    if mode == "check" and (size > 1 + TOLERANCE).any():
        row, column = np.argwhere(size > 1 + TOLERANCE)[0]
        low, high = (-1, 1) if bounds is None else (bounds.low[column], bounds.high[column])
        raise InputError(
            f"{source}: actions: row {row}, column {column}: {action[row, column]:g} is outside [{low:g}, {high:g}]; "
            'clip it (actions="clip", --actions clip) or rescale to the range of the data (actions="rescale", '
            "--actions rescale)"
        )
    return np.clip(unit, -1, 1) if (size > 1).any() else unit


def count_actions(action: Shaped[np.ndarray, "rows"]) -> int:
    return int(action.max()) + 1


def one_hot(source: str, action: Shaped[np.ndarray, "rows"], num_actions: int) -> Int8[np.ndarray, "rows action"]:
    wrong = (action < 0) | (action >= num_actions)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{source}: actions: row {row}: {action[row]} is not one of the {num_actions} discrete actions"
        )
    check_memory(source, len(action) * num_actions)
    rows = np.zeros((len(action), num_actions), np.int8)
    rows[np.arange(len(action)), action] = 1
    return rows
