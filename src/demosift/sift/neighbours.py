"""Log-ratios that come from nearest neighbours, without training."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from demosift.learning.neighbours import AT_A_TIME, nearest
from demosift.learning.pieces import in_pieces
from demosift.sift.training_sample import TrainingSample

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

LARGEST_REFERENCE = 4_096
FARTHEST = 1e6  # in deviations; a number beyond it is clipped, so that squares stay finite


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
