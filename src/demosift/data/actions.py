"""Actions in demosift's units: float32 in [-1, 1], or one-hot rows of a discrete space.

Files hold actions in the environment's own units. Where its bounds are known, `Bounds` maps them to [-1, 1] on reading
and back on writing.
"""

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Int8, Shaped

from demosift.data.checks import Stated, check_memory
from demosift.types import Bounds, Dataset, InputError

ActionMode = Literal["check", "clip", "rescale"]

# Above the rounding of float32 and of stored bounds, far below anything a controller would notice.
TOLERANCE = 1e-4


def check_mode(mode: str, name: str = "actions") -> None:
    if mode not in ("check", "clip", "rescale"):
        raise InputError(f"{name}: {mode!r} is unknown; choose check, clip or rescale")


def shared_action_space(files: Sequence[Stated], mode: ActionMode) -> tuple[Bounds | None, int | None]:
    """The bounds or the number of actions of all files; neither where they differ in kind, which is checked later."""
    if all(file.discrete for file in files):
        stated = {file.num_actions for file in files if file.num_actions is not None}
        if len(stated) > 1:
            return None, None
        return None, max(stated) if stated else max(count_actions(file.action_range()) for file in files)
    if any(file.discrete for file in files) or len({file.action_columns for file in files}) > 1:
        return None, None
    if mode == "rescale":
        return functools.reduce(Bounds.joined, (file.action_range() for file in files)), None
    shared, whose = None, ""
    for file in files:
        if shared is not None and file.bounds is not None and not shared.close_to(file.bounds):
            raise InputError(
                f"{file.source}: actions: bounds differ from those of {whose}; use files of one environment"
            )
        if shared is None:
            shared, whose = file.bounds, file.source
    return shared, None


def scale_actions(
    source: str, action: Float[np.ndarray, "rows action"], bounds: Bounds | None, mode: ActionMode, first: int = 0
) -> Float32[np.ndarray, "rows action"]:
    """Maps actions from `bounds` to [-1, 1]. An action further outside than `TOLERANCE` is refused, unless clipped.

    `first` is the number of the first row in its file, for the message.
    """
    if bounds is not None and len(bounds.low) != action.shape[1]:
        raise InputError(f"{source}: actions: has {action.shape[1]} columns, its bounds have {len(bounds.low)}")
    unit = action if bounds is None else bounds.to_unit(action)
    size = np.abs(unit)
    if bounds is not None:  # a column with equal bounds never moves
        low, high = np.array(bounds.low), np.array(bounds.high)
        still = np.flatnonzero(low == high)
        moved = np.abs(action[:, still] - low[still]) > TOLERANCE * np.maximum(np.abs(low[still]), 1)
        size[:, still] = np.where(moved, np.inf, 0)
        unit = np.where(low == high, np.float32(0), unit) if len(still) else unit
    if mode == "check" and (size > 1 + TOLERANCE).any():
        row, column = np.argwhere(size > 1 + TOLERANCE)[0]
        low, high = (-1, 1) if bounds is None else (bounds.low[column], bounds.high[column])
        raise InputError(
            f"{source}: actions: row {first + row}, column {column}: {action[row, column]:g} is outside "
            f"[{low:g}, {high:g}]; "
            'clip it (actions="clip", --actions clip) or rescale to the range of the data (actions="rescale", '
            "--actions rescale; action_mode for data from memory)"
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


def stored_actions(dataset: Dataset) -> np.ndarray:
    """Actions as files hold them: the environment's units, or one index per row."""
    action = dataset.transitions.action
    if dataset.discrete:
        return np.argmax(action, axis=1).astype(np.int32)
    bounds = dataset.bounds
    return np.asarray(action, np.float32) if bounds is None else bounds.from_unit(action)
