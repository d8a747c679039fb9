"""Nearest neighbours: the search, and log-ratios that come from it without training.

`find_nearest` is exact, in float64, and can leave rows out; it serves where a few thousand rows are compared. Scoring
compares every row of a large set and spends most of its time on that, so `nearest` is a compiled program. It is
exhaustive too, but works in float32 and does not see differences of about a thousandth. A library's search would be a
few times slower: here one matrix product gives the distances of a few reference rows from thousands of others, and
minima and maxima alone keep each row's nearest so far in order, which a processor does for many rows at once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from demosift.sift.training import in_pieces
from demosift.sift.training_sample import TrainingSample

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

LARGEST_REFERENCE = 4_096
AT_A_TIME = 16  # reference rows
CHUNK = 1_000  # rows whose distances from every reference row are in memory together, in the exact search
FARTHEST = 1e6  # in deviations; a number beyond it is clipped, so that squares stay finite


def find_nearest(
    states: Float[np.ndarray, "rows obs"],
    reference: Float[np.ndarray, "references obs"],
    count: int,
    left_out: Callable[[slice], Bool[np.ndarray, "part references"]] | None = None,
) -> tuple[Int[np.ndarray, "rows neighbours"], Float[np.ndarray, "rows neighbours"]]:
    """The nearest reference rows of each state, in no order, and their distances.

    `left_out` marks the reference rows that do not count for a slice of the states; where too few are left, the
    distance is infinite.
    """
    count = min(count, len(reference))
    index, distance = np.empty((len(states), count), np.int64), np.empty((len(states), count))
    squares = (reference**2).sum(axis=1)
    for start in range(0, len(states), CHUNK):
        part = slice(start, min(start + CHUNK, len(states)))
        square = (states[part] ** 2).sum(axis=1)[:, None] + squares[None] - 2 * states[part] @ reference.T
        if left_out is not None:
            square[left_out(part)] = np.inf
        if count == 1:  # the first of equally near rows
            index[part, 0] = square.argmin(axis=1)
        else:
            index[part] = np.argpartition(square, count - 1, axis=1)[:, :count]
        # The product above loses digits where states are nearly equal; the few that matter are measured again.
        exact = np.sqrt(((reference[index[part]] - states[part, None]) ** 2).sum(axis=-1))
        distance[part] = np.where(np.isfinite(np.take_along_axis(square, index[part], axis=1)), exact, np.inf)
    return index, distance


class References(NamedTuple):
    """Rows that each model compares others with, padded to a common number."""

    obs: Float[Array, "models rows obs"]
    action: Float[Array, "models rows action"]
    size: Int[Array, "models"]
    neighbours: int


def make_references(sample: TrainingSample, rows: Sequence[np.ndarray], neighbours: int) -> References:
    """Every model is given its own list of rows; a long list is thinned evenly."""
    rows = [own[np.linspace(0, len(own) - 1, min(len(own), LARGEST_REFERENCE)).astype(int)] for own in rows]
    sizes = list(map(len, rows))
    padded = -(-max(sizes) // AT_A_TIME) * AT_A_TIME

    def stack(values: Shaped[np.ndarray, "rows columns"]) -> Float[Array, "models rows columns"]:
        return jnp.asarray(
            np.stack([np.pad(values[own].astype(np.float32), ((0, padded - len(own)), (0, 0))) for own in rows])
        )

    obs = stack(np.clip(sample.obs, -FARTHEST, FARTHEST))
    return References(obs, stack(sample.action), jnp.asarray(sizes, jnp.int32), min(neighbours, *sizes))


def nearest(
    reference: Float[Array, "references obs"], size: Int[Array, ""], obs: Float[Array, "rows obs"], neighbours: int
) -> Int[Array, "neighbours rows"]:
    """Which of the first `size` reference rows are nearest, in order.

    The number of a row takes the place of the last bits of its squared distance. So of two rows whose distances differ
    by less than about a thousandth, either may come first.
    """
    bits = len(reference).bit_length()
    number = jnp.arange(len(reference), dtype=jnp.int32)
    squares = jnp.where(number < size, jnp.sum(reference**2, axis=1), jnp.inf)
    own_squares, columns = jnp.sum(obs**2, axis=1), obs.T

    def step(found: tuple[Array, ...], part: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        rows, row_squares, row_number = part
        squared = jnp.maximum(row_squares[:, None] + own_squares[None] - 2 * (rows @ columns), 0.0)
        # Floats that are not negative have the same order as their bits.
        key = (jax.lax.bitcast_convert_type(squared, jnp.int32) & jnp.int32(-(1 << bits))) | row_number[:, None]
        kept = list(found)
        for new in key:
            for place, old in enumerate(kept):
                kept[place], new = jnp.minimum(old, new), jnp.maximum(old, new)
        return tuple(kept), None

    parts = (array.reshape(-1, AT_A_TIME, *array.shape[1:]) for array in (reference, squares, number))
    none = jnp.full(len(obs), np.iinfo(np.int32).max, jnp.int32)
    found, _ = jax.lax.scan(step, (none,) * neighbours, tuple(parts))
    return jnp.stack(found) & jnp.int32((1 << bits) - 1)


@functools.partial(jax.jit, static_argnames="neighbours")
def _state_distance(
    reference: Array, size: Array, model: Array, obs: Array, action: Array, neighbours: int
) -> Float[Array, "rows"]:
    """The squared distance from the last of the nearest states."""
    del action
    obs = jnp.clip(obs, -FARTHEST, FARTHEST)
    index = nearest(reference[model], size[model], obs, neighbours)
    return jnp.max(jnp.sum((reference[model][index] - obs[None]) ** 2, axis=-1), axis=0)


@functools.partial(jax.jit, static_argnames="neighbours")
def _action_distance(
    reference: Array, taken: Array, size: Array, model: Array, obs: Array, action: Array, neighbours: int
) -> Float[Array, "rows"]:
    """The squared distance from the most similar action taken in the nearest states."""
    index = nearest(reference[model], size[model], jnp.clip(obs, -FARTHEST, FARTHEST), neighbours)
    return jnp.min(jnp.sum((taken[model][index] - action.astype(jnp.float32)[None]) ** 2, axis=-1), axis=0)


def closeness(squared_distance: Float[np.ndarray, "rows"]) -> Features:
    """Minus the logarithm of a distance; the small number keeps it finite where the distance is zero."""
    return -0.5 * np.log(squared_distance + 1e-6)[None]


def state_closeness(references: References, model: int, obs: Obs, action: Action) -> Features:
    """How near the nearest reference states are: the last of them, which depends least on chance."""
    reference, _, size, neighbours = references
    distance = functools.partial(_state_distance, reference, size, jnp.int32(model), neighbours=neighbours)
    return closeness(in_pieces(distance, obs, action))


def action_closeness(references: References, model: int, obs: Obs, action: Action) -> Features:
    """How near the action is to the most similar one taken in the nearest reference states."""
    *arrays, neighbours = references
    distance = functools.partial(_action_distance, *arrays, jnp.int32(model), neighbours=neighbours)
    return closeness(in_pieces(distance, obs, action))
