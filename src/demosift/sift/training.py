"""Trains every model of every member, stopped by the rows that each model leaves out.

The models are members of programs like any others (`learning.members`), trained by the runner. All models train for the
same number of iterations: until their mean held-out loss is least. Nothing else is chosen by held-out rows.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from demosift.algorithms import Batch
from demosift.learning.cohort import Cohort
from demosift.learning.members import Draw, Members, init_members, over_members
from demosift.learning.pieces import in_pieces
from demosift.learning.runner import Callback, HostMetrics, Schedule, Trainee, run
from demosift.sift.discriminators import Part
from demosift.sift.training_sample import TrainingSample
from demosift.types import Transitions

HELD_OUT = 2_048  # rows of each set that a held-out loss is taken over

Report = Callable[[int], None]


class RowList(NamedTuple):
    """A list of rows for each model, padded to equal lengths, and how many of them count."""

    row: Int[Any, "*models rows"]
    count: Int[Any, "*models"]


class Slots(NamedTuple):
    """Which rows of the sample a model may draw."""

    expert: RowList
    union: RowList
    supplementary: RowList


class SharedRows(NamedTuple):
    """The sample on the device, which all models share."""

    obs: Float[Any, "rows obs"]
    action: Shaped[Any, "rows action"]

    def of(self, slots: Slots) -> "ModelRows":
        return ModelRows(self, slots)


class ModelRows(NamedTuple):
    """One model's data: the rows that it may draw."""

    rows: SharedRows
    slots: Slots

    def draws(self, key: PRNGKeyArray, iterations: Int[Array, "steps"], size: int) -> tuple[Draw, PRNGKeyArray]:
        keys = jax.vmap(lambda iteration: jax.random.fold_in(key, iteration))(iterations)
        return jax.vmap(lambda key: self.draw(key, size))(keys), keys

    def draw(self, key: PRNGKeyArray, size: int) -> Draw:
        def rows(stream: int, own: RowList) -> Array:
            return own.row[jax.random.randint(jax.random.fold_in(key, stream), (size,), 0, own.count)]

        uniform = jax.random.uniform(jax.random.fold_in(key, 3), (2, size, 1))
        expert, union, supplementary = (rows(stream, own) for stream, own in enumerate(self.slots))
        return Draw(expert, union, supplementary, union, uniform)

    def batch(self, draw: Draw) -> Batch:
        def take(index: Array) -> Transitions:
            obs, action = (array.at[index].get(mode="promise_in_bounds") for array in self.rows)
            return Transitions(obs, action, jnp.zeros(len(index)), obs, jnp.zeros(len(index), bool))

        union = take(draw.union)
        return Batch(take(draw.expert), union, take(draw.supplementary), union, draw.uniform)


def make_slots(expert: Sequence[np.ndarray], union: Sequence[np.ndarray], supplementary: Sequence[np.ndarray]) -> Slots:
    """From a list of rows per model for each set. A model without supplementary rows draws from the union."""
    supplementary = [own if len(own) else everything for own, everything in zip(supplementary, union, strict=True)]

    def stack(lists: Sequence[np.ndarray]) -> RowList:
        longest = max(map(len, lists))
        padded = np.stack([np.pad(rows, (0, longest - len(rows))) for rows in lists])
        return RowList(jnp.asarray(padded, jnp.int32), jnp.asarray([len(rows) for rows in lists], jnp.int32))

    return Slots(stack(expert), stack(union), stack(supplementary))


def split(sample: TrainingSample, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those of the expert set, all of them (the union's), and those of the supplementary set."""
    return rows[rows < sample.num_expert], rows, rows[rows >= sample.num_expert]


def training_rows(sample: TrainingSample) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """For every model, the expert, union and supplementary rows that it may be trained on."""
    kept = (np.flatnonzero(~sample.plan.left_out(model, slice(None))) for model in range(sample.plan.num_models))
    expert, union, supplementary = map(list, zip(*(split(sample, rows) for rows in kept), strict=True))
    return expert, union, supplementary


def held_out_rows(sample: TrainingSample, seed: int) -> Slots:
    """For every model, `HELD_OUT` of the rows of each set that it leaves out, drawn once."""
    rng = np.random.default_rng([seed, 2])
    drawn = []
    for model in range(sample.plan.num_models):
        rows = np.flatnonzero(sample.plan.left_out(model, slice(None)))
        drawn.append([rng.choice(own if len(own) else rows, HELD_OUT) for own in split(sample, rows)])
    return make_slots(*zip(*drawn, strict=True))


@jax.jit
def _held_out_loss(members: Members, state: Any) -> Float[Array, ""]:
    """The mean over models, whose data here are the rows that they leave out."""

    def one(part: Part, seed: Array, data: ModelRows, state: Any) -> Float[Array, ""]:
        expert, union, supplementary = (own.row for own in data.slots)
        return part.loss(state, data.batch(Draw(expert, union, supplementary, union, jnp.zeros((2, HELD_OUT, 1)))))

    return jnp.mean(over_members(one, members, state))


class Trained(NamedTuple):
    """One part of every model, as it was when the held-out loss was least."""

    part: Part  # stacked, like the state
    state: Any
    iteration: int
    loss: float


class Models(Trainee):
    """All models of a part."""

    def __init__(self, members: Members, state: Any, held_out: Members, first: int) -> None:
        self.cohort, self.size, self.first = Cohort(members, state), len(members.seed), first
        self.held_out = self.cohort.cut(held_out)

    def __len__(self) -> int:
        return self.size

    def advance(self, position: int, steps: int) -> dict[str, Any]:
        def loss(place: int) -> float:
            return float(_held_out_loss(self.held_out[place], self.cohort.states[place]))

        self.cohort.advance(self.first + position, steps)
        return {"held_out_loss": np.mean(self.cohort.over_parts(loss))}


class EarlyStopping(Callback):
    """Keeps the models as they were when the held-out loss was least, and stops when it fails to improve."""

    def __init__(self, part: Part, models: Models, patience: int, best: Trained | None, report: Report) -> None:
        self.part, self.models, self.patience, self.best, self.report = part, models, patience, best, report
        self.position = 0

    def on_log(self, position: int, metrics: HostMetrics) -> bool:
        iteration, loss = self.models.first + position, float(metrics["held_out_loss"])
        if self.best is None or loss < self.best.loss:
            self.best = Trained(self.part, jax.tree.map(jnp.copy, self.models.cohort.state), iteration, loss)
        self.report(position - self.position)
        self.position = position
        return iteration - self.best.iteration >= self.patience


class Trainer:
    """Trains parts on a sample. `report` counts every iteration that is done or turns out not to be needed."""

    def __init__(self, sample: TrainingSample, seed: int, report: Report) -> None:
        self.sample, self.report = sample, report
        self.rows = SharedRows(jnp.asarray(sample.obs), jnp.asarray(sample.action))
        seeds = np.random.SeedSequence([seed, 3]).generate_state(sample.plan.num_models) >> 1
        self.seeds = jnp.asarray(seeds.astype(np.int32))
        self.held_out = held_out_rows(sample, seed)

    def train(
        self, part: Part, slots: Slots, iterations: int, every: int, patience: int, since: Trained | None = None
    ) -> Trained:
        """At most `iterations`, from the start or from the models of an earlier training."""
        part = jax.tree.map(lambda value: jnp.full(len(self.seeds), value, jnp.float32), part)
        members = Members(part, self.seeds, self.rows, slots)
        state = init_members(members) if since is None else jax.tree.map(jnp.copy, since.state)
        first = 0 if since is None else since.iteration
        models = Models(members, state, members._replace(own=self.held_out), first)
        stopping = EarlyStopping(part, models, patience * every, since, self.report)
        run(models, Schedule(iterations, chunk=every), callbacks=[stopping])
        self.report(iterations - stopping.position)
        assert stopping.best is not None
        return stopping.best


@jax.jit
def _logit(part: Part, state: Any, model: Array, obs: Array, action: Array) -> Float[Array, "rows"]:
    own_part, own_state = jax.tree.map(lambda array: array[model], (part, state))
    return own_part.logit(own_state, obs, action)


def logit(
    trained: Trained, model: int, obs: Float[np.ndarray, "rows obs"], action: Shaped[np.ndarray, "rows action"]
) -> Float[np.ndarray, "rows"]:
    """One model's log-ratios."""
    return in_pieces(functools.partial(_logit, trained.part, trained.state, jnp.int32(model)), obs, action)
