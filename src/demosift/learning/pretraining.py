"""Discriminators that are trained to the end before a policy is, and are then asked about every row.

    z = network(x),    min  loss(z_expert, z_other) + coefficient * mean( (||dz/dx|| - 1)^2 )

The penalty's points are mixes of an expert's row and another one. Networks, initialisation and Adam are PyTorch's
(ReLU between the layers), since the methods that are made of such stages were written in it. Training goes through the
one runner: it shows its progress, and with a folder it leaves checkpoints there, from which it continues bit for bit.
Those of many datasets are members of one program (`demosift.learning.stages` brings them together).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demosift.learning.algorithm import Metrics
from demosift.learning.cohort import Cohort, join
from demosift.learning.learner import TORCH_ADAM_EPSILON, Learner, descend, start
from demosift.learning.losses import discriminator_accuracy, gradient_penalty, mix
from demosift.learning.members import Members, fill, init_members, named_arrays
from demosift.learning.networks import Perceptron, fan_in_uniform, init_perceptron, scalar, value_and_slope
from demosift.learning.padding import Padded
from demosift.learning.pieces import in_pieces
from demosift.learning.runner import Bar, Schedule, Trainee, run
from demosift.progress import Progress
from demosift.results.checkpoint import Arrays, Checkpoint, CheckpointFolder

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


class Part(NamedTuple):
    """Rows that stand together among all that are on the device."""

    first: Int[Any, "*members"]
    count: Int[Any, "*members"]

    def draw(self, key: PRNGKeyArray, size: int) -> Int[Array, "rows"]:
        """Uniformly with replacement. The same places within the part, wherever it is: `first` is added last."""
        return self.first + jax.random.randint(key, (size,), 0, self.count)


class Sides(NamedTuple):
    """Which rows one discriminator tells apart."""

    expert: Part
    other: Part


class SharedRows(NamedTuple):
    """The rows of all discriminators on the device, one array after another."""

    x: Float[Any, "rows inputs"]

    def of(self, sides: Sides) -> "OwnRows":
        return OwnRows(self, sides)


class OwnRows(NamedTuple):
    """One discriminator's data."""

    rows: SharedRows
    sides: Sides

    def draws(self, key: PRNGKeyArray, iterations: Int[Array, "steps"], size: int) -> tuple[PairDraw, Array]:
        keys = jax.vmap(lambda iteration: jax.random.fold_in(key, iteration))(iterations)
        return jax.vmap(lambda key: self.draw(key, size))(keys), keys

    def draw(self, key: PRNGKeyArray, size: int) -> PairDraw:
        expert, other, amount = jax.random.split(key, 3)
        return PairDraw(
            self.sides.expert.draw(expert, size),
            self.sides.other.draw(other, size),
            jax.random.uniform(amount, (size, 1)),
        )

    def batch(self, draw: PairDraw) -> Pair:
        expert, other = (self.rows.x.at[row].get(mode="promise_in_bounds") for row in (draw.expert, draw.other))
        return Pair(expert, other, draw.amount)


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


class Stage(NamedTuple):
    """A discriminator to be trained to the end. `name` is what the display and messages call it, `place` a folder."""

    how: Discriminator
    expert: Float[np.ndarray, "expert_rows inputs"]
    other: Float[np.ndarray, "other_rows inputs"]
    iterations: int
    name: str
    place: str
    seed: int = 0

    @property
    def inputs(self) -> int:
        return self.expert.shape[1]


class Stopped(Exception):
    """Training was asked to end before it was done. What it needs to continue is in its checkpoints, if it has any."""


def lay_out(stages: Sequence[Stage]) -> tuple[SharedRows, Sides]:
    """The rows of all stages, and where each one's are. An array that several stages have is there once."""
    arrays = {id(array): array for stage in stages for array in (stage.expert, stage.other)}
    inputs, firsts, total = max(stage.inputs for stage in stages), {}, 0
    for name, array in arrays.items():
        firsts[name], total = total, total + len(array)
    rows = np.zeros((total, inputs), np.float32)  # zeros fill the columns that others have not
    for name, array in arrays.items():
        rows[firsts[name] : firsts[name] + len(array), : array.shape[1]] = array

    def part(sides: Sequence[np.ndarray]) -> Part:
        first, count = [firsts[id(side)] for side in sides], [len(side) for side in sides]
        return Part(jnp.asarray(first, jnp.int32), jnp.asarray(count, jnp.int32))

    return SharedRows(jnp.asarray(rows)), Sides(*map(part, zip(*((s.expert, s.other) for s in stages), strict=True)))


def begin(stage: Stage) -> Learner:
    """The untrained network, as one member."""
    one = Part(jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32))
    blank = SharedRows(jnp.zeros((1, stage.inputs)))
    return init_members(Members(stage.how, jnp.asarray([stage.seed]), blank, Sides(one, one)))


class Pretraining(Trainee):
    """Discriminators that are trained alike, each on rows of its own.

    Those of fewer inputs have columns of zeros beside them, and weights that are zero and are kept so, as members of
    different environments have (`demosift.learning.padding`).
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        rows, sides = lay_out(stages)
        states = [begin(stage) for stage in stages]
        self.own = [jax.tree.map(jnp.shape, state.params) for state in states]
        widest = states[int(np.argmax([stage.inputs for stage in stages]))]
        how: Any = stages[0].how
        if len({stage.inputs for stage in stages}) > 1:
            own = [jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), state) for state in states]
            how = Padded(how, jax.tree.leaves(join([jax.tree.map(widen, mask, widest) for mask in own])))
        state = join([jax.tree.map(widen, state, widest) for state in states])
        seeds = jnp.asarray([stage.seed for stage in stages])
        self.cohort = Cohort(Members(how, seeds, rows, sides), state)

    def __len__(self) -> int:
        return len(self.own)

    def advance(self, position: int, steps: int) -> dict[str, Any]:
        return self.cohort.advance(position, steps)

    def capture(self) -> Arrays:
        return named_arrays(self.cohort.state)

    def restore(self, checkpoint: Checkpoint) -> None:
        self.cohort.state = fill(self.cohort.state, checkpoint.arrays)

    def networks(self) -> list[Perceptron]:
        """Each in its own size."""
        params = self.cohort.state.params
        return [
            jax.tree.map(lambda leaf, shape, i=i: leaf[(i, *map(slice, shape[1:]))], params, shapes)
            for i, shapes in enumerate(self.own)
        ]


def widen(leaf: Array, like: Array) -> Array:
    return jnp.pad(leaf, [(0, wanted - size) for size, wanted in zip(leaf.shape, like.shape, strict=True)])


def pretrain(
    stages: Sequence[Stage], folder: Path | None = None, stopped: Callable[[], bool] = lambda: False
) -> list[Perceptron]:
    """The networks after as many iterations as these stages, which are trained alike, have in common.

    With a folder they continue from a checkpoint there, if one is left; `CheckpointFolder(folder).discard()` removes
    them when they are no longer needed.
    """
    trainee, iterations = Pretraining(stages), stages[0].iterations
    name = stages[0].name + (f", {len(stages)} at once" if len(stages) > 1 else "")
    with Progress(transient=True) as display:
        outcome = run(
            trainee,
            Schedule(iterations, chunk=min(CHUNK, iterations), checkpoint_seconds=CHECKPOINT_SECONDS),
            checkpoints=None if folder is None else CheckpointFolder(folder),
            callbacks=[Bar(display, name, iterations, len(stages))],
            stopped=stopped,
        )
    if not outcome.finished:
        raise Stopped
    return trainee.networks()


_scalar = jax.jit(scalar)


def logits(network: Perceptron, x: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, "rows"]:
    """What the network says about every row."""
    return in_pieces(functools.partial(_scalar, network), x)
