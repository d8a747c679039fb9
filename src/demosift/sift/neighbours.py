"""Comparing rows with their nearest neighbours: log-ratios that take no training.

The search is exhaustive, and most of what scoring a large pile costs. A library's would be a few times slower: here the
distances of a few reference rows from thousands of others are one product, and each row's nearest so far are kept in
order by minima and maxima alone, which a processor does for many rows at once.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from demosift.sift.sample import Pool
from demosift.sift.training import in_pieces

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

LARGEST_REFERENCE = 4_096
AT_A_TIME = 16  # reference rows
FARTHEST = 1e6  # in deviations; what is beyond that in one number counts as there, so that squares stay finite


class References(NamedTuple):
    """Rows that each model compares others with, padded to a common number."""

    obs: Float[Array, "models rows obs"]
    action: Float[Array, "models rows action"]
    size: Int[Array, "models"]
    neighbours: int


def make_references(pool: Pool, rows: Sequence[np.ndarray], neighbours: int) -> References:
    """For every model, of the rows given for it."""
    rows = [own[np.linspace(0, len(own) - 1, min(len(own), LARGEST_REFERENCE)).astype(int)] for own in rows]
    sizes = list(map(len, rows))
    padded = -(-max(sizes) // AT_A_TIME) * AT_A_TIME

    def stack(values: Shaped[np.ndarray, "rows columns"]) -> Float[Array, "models rows columns"]:
        return jnp.asarray(
            np.stack([np.pad(values[own].astype(np.float32), ((0, padded - len(own)), (0, 0))) for own in rows])
        )

    obs = stack(np.clip(pool.obs, -FARTHEST, FARTHEST))
    return References(obs, stack(pool.action), jnp.asarray(sizes, jnp.int32), min(neighbours, *sizes))


def nearest(
    reference: Float[Array, "references obs"], size: Int[Array, ""], obs: Float[Array, "rows obs"], neighbours: int
) -> Int[Array, "neighbours rows"]:
    """Which of the first `size` reference rows are nearest, in order.

    A squared distance is kept together with the number of its row, in place of its last bits: of two rows that are
    equally near to about a thousandth, either may come first.
    """
    bits = len(reference).bit_length()
    number = jnp.arange(len(reference), dtype=jnp.int32)
    squares = jnp.where(number < size, jnp.sum(reference**2, axis=1), jnp.inf)
    own_squares, columns = jnp.sum(obs**2, axis=1), obs.T

    def step(found: tuple[Array, ...], part: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        rows, row_squares, row_number = part
        squared = jnp.maximum(row_squares[:, None] + own_squares[None] - 2 * (rows @ columns), 0.0)
        # The bits of floats that are not negative have the order of the floats.
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
    """Squared, from the last of the nearest."""
    del action
    obs = jnp.clip(obs, -FARTHEST, FARTHEST)
    index = nearest(reference[model], size[model], obs, neighbours)
    return jnp.max(jnp.sum((reference[model][index] - obs[None]) ** 2, axis=-1), axis=0)


@functools.partial(jax.jit, static_argnames="neighbours")
def _action_distance(
    reference: Array, taken: Array, size: Array, model: Array, obs: Array, action: Array, neighbours: int
) -> Float[Array, "rows"]:
    """Squared, from the most similar of the actions taken in the nearest states."""
    index = nearest(reference[model], size[model], jnp.clip(obs, -FARTHEST, FARTHEST), neighbours)
    return jnp.min(jnp.sum((taken[model][index] - action.astype(jnp.float32)[None]) ** 2, axis=-1), axis=0)


def closeness(squared_distance: Float[np.ndarray, "rows"]) -> Features:
    """Minus the logarithm of a distance; the small number is that of a step that moves nothing."""
    return -0.5 * np.log(squared_distance + 1e-6)[None]


@dataclass(frozen=True)
class StateCloseness:
    """How near the nearest of the reference's states are: the last of them, which depends least on chance."""

    references: References

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        reference, _, size, neighbours = self.references
        distance = functools.partial(_state_distance, reference, size, jnp.int32(model), neighbours=neighbours)
        return closeness(in_pieces(distance, obs, action))

    def describe(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class ActionCloseness:
    """How near the most similar of the actions is that were taken in the nearest of the reference's states."""

    references: References

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        *arrays, neighbours = self.references
        distance = functools.partial(_action_distance, *arrays, jnp.int32(model), neighbours=neighbours)
        return closeness(in_pieces(distance, obs, action))

    def describe(self) -> dict[str, float]:
        return {}
