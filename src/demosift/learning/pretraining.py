"""Discriminators that are trained to the end before a policy is, and are then asked about every row.

    z = network(x),    min  loss(z_expert, z_other) + coefficient * mean( (||dz/dx|| - 1)^2 )

The penalty's points are mixes of an expert's row and another one. Networks, initialisation and Adam are PyTorch's
(ReLU between the layers), since the methods that are made of such stages were written in it. Training goes through the
one runner: it shows its progress, and with a folder it leaves checkpoints there, from which it continues bit for bit.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demosift.learning.algorithm import Metrics
from demosift.learning.learner import TORCH_ADAM_EPSILON, Learner, descend, start
from demosift.learning.losses import discriminator_accuracy, gradient_penalty, mix
from demosift.learning.members import Members, advance, fill, init_members, named_arrays
from demosift.learning.networks import Perceptron, fan_in_uniform, init_perceptron, scalar, value_and_slope
from demosift.learning.pieces import in_pieces
from demosift.learning.runner import Bar, Schedule, Trainee, run
from demosift.progress import Progress
from demosift.results.checkpoint import Arrays, Checkpoint, CheckpointFolder
from demosift.types import InputError

CHUNK = 500  # iterations in one call
CHECKPOINT_SECONDS = 30.0

Rows = Float[Array, "rows"]
Loss = Callable[[Rows, Rows], Float[Array, ""]]  # of the logits of expert rows and of the others


class Pair(NamedTuple):
    """A batch: rows of either side, and an amount of mixing for each pair of them."""

    expert: Float[Array, "rows inputs"]
    other: Float[Array, "rows inputs"]
    amount: Float[Array, "rows 1"]


class PairDraw(NamedTuple):
    expert: Int[Array, "rows"]
    other: Int[Array, "rows"]
    amount: Float[Array, "rows 1"]


class Sides(NamedTuple):
    """The rows to be told apart, on the device."""

    expert: Float[Any, "expert_rows inputs"]
    other: Float[Any, "other_rows inputs"]

    def draws(self, key: PRNGKeyArray, iterations: Int[Array, "steps"], size: int) -> tuple[PairDraw, Array]:
        keys = jax.vmap(lambda iteration: jax.random.fold_in(key, iteration))(iterations)
        return jax.vmap(lambda key: self.draw(key, size))(keys), keys

    def draw(self, key: PRNGKeyArray, size: int) -> PairDraw:
        """Rows of each side, uniformly with replacement."""
        expert, other, amount = jax.random.split(key, 3)
        return PairDraw(
            jax.random.randint(expert, (size,), 0, len(self.expert)),
            jax.random.randint(other, (size,), 0, len(self.other)),
            jax.random.uniform(amount, (size, 1)),
        )

    def batch(self, draw: PairDraw) -> Pair:
        expert = self.expert.at[draw.expert].get(mode="promise_in_bounds")
        return Pair(expert, self.other.at[draw.other].get(mode="promise_in_bounds"), draw.amount)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Discriminator:
    """How one is trained. Its `init` and `step` are like an algorithm's; nothing in it differs between members."""

    loss: Loss
    learning_rate: float
    weight_decay: float = 0.0  # L2 in the gradient
    gradient_penalty: float = 0.0
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Pair, key: PRNGKeyArray) -> Learner:
        sizes = (batch.expert.shape[-1], *self.hidden, 1)
        return start(init_perceptron(key, sizes, [fan_in_uniform] * (len(sizes) - 1)))

    def step(self, state: Learner, batch: Pair, iteration: Array, key: PRNGKeyArray) -> tuple[Learner, Metrics]:
        def total(network: Perceptron):
            z_expert, z_other = jnp.split(scalar(network, jnp.concatenate([batch.expert, batch.other])), 2)
            value = self.loss(z_expert, z_other)
            if self.gradient_penalty:
                _, slope = value_and_slope(network, mix(batch.amount, batch.expert, batch.other))
                value += self.gradient_penalty * gradient_penalty(jnp.ones(slope.shape[0]), slope)
            return value, discriminator_accuracy(z_expert, z_other)

        (value, accuracy), gradient = jax.value_and_grad(total, has_aux=True)(state.params)
        state = descend(state, gradient, self.learning_rate, epsilon=TORCH_ADAM_EPSILON, weight_decay=self.weight_decay)
        return state, {"discriminator_loss": value, "discriminator_accuracy": accuracy}


class Pretraining(Trainee):
    """One discriminator."""

    def __init__(self, discriminator: Discriminator, sides: Sides, seed: int) -> None:
        self.members = Members(discriminator, jnp.asarray([seed]), shared=jax.tree.map(jnp.asarray, sides))
        self.state = init_members(self.members)

    def __len__(self) -> int:
        return 1

    def advance(self, position: int, steps: int) -> dict[str, Any]:
        self.state, metrics = advance(self.members, self.state, position, steps)
        return metrics

    def capture(self) -> Arrays:
        return named_arrays(self.state)

    def restore(self, checkpoint: Checkpoint) -> None:
        self.state = fill(self.state, checkpoint.arrays)


def pretrain(
    discriminator: Discriminator,
    expert: Float[np.ndarray, "expert_rows inputs"],
    other: Float[np.ndarray, "other_rows inputs"],
    iterations: int,
    *,
    name: str,
    seed: int = 0,
    folder: Path | None = None,
) -> Perceptron:
    """The network after so many iterations. `name` is what the display and messages call it.

    With a folder it continues from a checkpoint there, if one is left; `CheckpointFolder(folder).discard()` removes
    them when they are no longer needed.
    """
    trainee = Pretraining(discriminator, Sides(expert, other), seed)
    with Progress(transient=True) as display:
        run(
            trainee,
            Schedule(iterations, chunk=min(CHUNK, iterations), checkpoint_seconds=CHECKPOINT_SECONDS),
            checkpoints=None if folder is None else CheckpointFolder(folder),
            callbacks=[Bar(display, name, iterations, 1)],
        )
    network = jax.tree.map(lambda leaf: leaf[0], trainee.state.params)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(network)):
        raise InputError(f"{name}: diverged; choose a smaller learning rate for it")
    return network


_scalar = jax.jit(scalar)


def logits(network: Perceptron, x: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, "rows"]:
    """What the network says about every row."""
    return in_pieces(functools.partial(_scalar, network), x)
