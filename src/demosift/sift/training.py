"""Training every model of every member, stopped by the rows that each of them leaves out.

As in `learning.members`: data on the device, batches drawn inside the program, everything random in iteration i of a
model a function of (seed, i). How long to train is one number for all models: the iteration at which the held-out loss,
averaged over them, was least. Nothing else is chosen by held-out rows.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from demosift.algorithms import Batch
from demosift.learning.members import Members, member_keys, over_members
from demosift.sift.discriminators import Part
from demosift.sift.sample import Pool
from demosift.types import Transitions

HELD_OUT = 2_048  # rows of each set that a held-out loss is taken over
APPLY_ROWS = 4_096  # rows that a compiled function is given at a time

Rows = tuple[Array, Array]
Report = Callable[[int], None]


class Slots(NamedTuple):
    """Which rows of the pool a model may draw, as lists that are padded to equal lengths."""

    expert: Int[Any, "*models rows"]
    num_expert: Int[Any, "*models"]
    union: Int[Any, "*models rows"]
    num_union: Int[Any, "*models"]
    pile: Int[Any, "*models rows"]
    num_pile: Int[Any, "*models"]

    def draw(self, key: PRNGKeyArray, size: int) -> tuple[Array, Array, Array, Array]:
        def rows(stream: int, index: Array, count: Array) -> Array:
            return index[jax.random.randint(jax.random.fold_in(key, stream), (size,), 0, count)]

        uniform = jax.random.uniform(jax.random.fold_in(key, 3), (2, size, 1))
        expert, union = rows(0, self.expert, self.num_expert), rows(1, self.union, self.num_union)
        return expert, union, rows(2, self.pile, self.num_pile), uniform


def make_slots(expert: Sequence[np.ndarray], union: Sequence[np.ndarray], pile: Sequence[np.ndarray]) -> Slots:
    """A list of rows per model for each set. A model without rows of the pile draws from the union."""
    pile = [own if len(own) else everything for own, everything in zip(pile, union, strict=True)]

    def stack(lists: Sequence[np.ndarray]) -> tuple[Array, Array]:
        longest = max(map(len, lists))
        padded = np.stack([np.pad(rows, (0, longest - len(rows))) for rows in lists])
        return jnp.asarray(padded, jnp.int32), jnp.asarray([len(rows) for rows in lists], jnp.int32)

    return Slots(*stack(expert), *stack(union), *stack(pile))


def training_rows(pool: Pool) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Per model: expert rows, union rows and rows of the pile that it may be trained on."""
    kept = [np.flatnonzero(~pool.plan.left_out(model, slice(None))) for model in range(pool.plan.num_models)]
    return [rows[rows < pool.num_expert] for rows in kept], kept, [rows[rows >= pool.num_expert] for rows in kept]


def held_out_rows(pool: Pool, seed: int) -> Slots:
    """Per model: as many rows that it leaves out, drawn once."""
    rng = np.random.default_rng([seed, 2])
    expert, union, pile = [], [], []
    for model in range(pool.plan.num_models):
        rows = np.flatnonzero(pool.plan.left_out(model, slice(None)))
        for sets, own in ((expert, rows[rows < pool.num_expert]), (union, rows), (pile, rows[rows >= pool.num_expert])):
            sets.append(rng.choice(own if len(own) else rows, HELD_OUT))
    return make_slots(expert, union, pile)


def gather(rows: Rows, expert: Array, union: Array, pile: Array, uniform: Array) -> Batch:
    def take(index: Array) -> Transitions:
        obs, action = (array.at[index].get(mode="promise_in_bounds") for array in rows)
        return Transitions(obs, action, jnp.zeros(len(index)), obs, jnp.zeros(len(index), bool))

    drawn = take(union)
    return Batch(take(expert), drawn, take(pile), drawn, uniform)


@jax.jit
def _init(part: Part, seed: Array, rows: Rows, slots: Slots) -> Any:
    def one(part: Part, seed: Array, rows: Rows, slots: Slots) -> Any:
        key, _ = member_keys(seed)
        return part.init(gather(rows, *slots.draw(key, 1)), key)

    return over_members(one, _members(part, seed, rows), slots)


@functools.partial(jax.jit, static_argnames="steps", donate_argnames="state")
def _advance(part: Part, seed: Array, rows: Rows, slots: Slots, state: Any, first: Array, steps: int) -> Any:
    def one(part: Part, seed: Array, rows: Rows, slots: Slots, state: Any) -> Any:
        _, key = member_keys(seed)
        iterations = first + jnp.arange(steps)
        draws = jax.vmap(lambda i: slots.draw(jax.random.fold_in(key, i), part.batch_size))(iterations)

        def step(state: Any, inputs: tuple[Array, tuple[Array, ...]]) -> tuple[Any, None]:
            iteration, draw = inputs
            return part.step(state, gather(rows, *draw), iteration), None  # type: ignore[arg-type]

        return jax.lax.scan(step, state, (iterations, draws))[0]

    return over_members(one, _members(part, seed, rows), slots, state)


@jax.jit
def _held_out_loss(part: Part, seed: Array, rows: Rows, held_out: Slots, state: Any) -> Float[Array, ""]:
    def one(part: Part, seed: Array, rows: Rows, held_out: Slots, state: Any) -> Float[Array, ""]:
        batch = gather(rows, held_out.expert, held_out.union, held_out.pile, jnp.zeros((2, HELD_OUT, 1)))
        return part.loss(state, batch)

    return jnp.mean(over_members(one, _members(part, seed, rows), held_out, state))


def _members(part: Part, seed: Array, rows: Rows) -> Members:
    return Members(part, seed, rows, own_data=False)  # type: ignore[arg-type]


class Trained(NamedTuple):
    """One part of every model, as it was when the held-out loss was least."""

    part: Part  # stacked, like the state
    state: Any
    iteration: int
    loss: float


class Trainer:
    """Trains parts on a pool. `report` is told of every iteration that is done or will not be needed.

    On a CPU each model is a program of its own, as many at a time as there are cores: their products are too small to
    be shared among cores.
    """

    def __init__(self, pool: Pool, seed: int, report: Report) -> None:
        self.pool, self.report = pool, report
        self.rows = (jnp.asarray(pool.obs), jnp.asarray(pool.action))
        seeds = np.random.SeedSequence([seed, 3]).generate_state(pool.plan.num_models) >> 1
        self.seeds = jnp.asarray(seeds.astype(np.int32))
        self.held_out = held_out_rows(pool, seed)
        together = 1 if jax.default_backend() == "cpu" else len(seeds)
        self.groups = [slice(first, first + together) for first in range(0, len(seeds), together)]

    def train(
        self, part: Part, slots: Slots, iterations: int, every: int, patience: int, since: Trained | None = None
    ) -> Trained:
        """Up to that many iterations, from the start or from where another training was stopped."""
        part = jax.tree.map(lambda value: jnp.full(len(self.seeds), value, jnp.float32), part)
        given = [jax.tree.map(lambda array, own=own: array[own], (part, self.seeds, slots)) for own in self.groups]
        held_out = [jax.tree.map(lambda array, own=own: array[own], self.held_out) for own in self.groups]
        if since is None:
            states = [_init(part, seeds, self.rows, slots) for part, seeds, slots in given]
        else:
            states = [jax.tree.map(lambda array, own=own: jnp.copy(array[own]), since.state) for own in self.groups]
        first = 0 if since is None else since.iteration
        best, position, steps = since, first, 0

        def advance(group: int) -> float:
            part, seeds, slots = given[group]
            states[group] = _advance(part, seeds, self.rows, slots, states[group], jnp.int32(position), steps)
            return float(_held_out_loss(part, seeds, self.rows, held_out[group], states[group]))

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            while position < first + iterations:
                steps = min(every, first + iterations - position)
                loss = float(np.mean(list(threads.map(advance, range(len(states))))))
                position += steps
                if best is None or loss < best.loss:
                    state = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *states)
                    best = Trained(part, state, position, loss)
                self.report(steps)
                if position - best.iteration >= patience * every:
                    break
        self.report(first + iterations - position)
        assert best is not None
        return best


@jax.jit
def _logit(part: Part, state: Any, model: Array, obs: Array, action: Array) -> Float[Array, "rows"]:
    own_part, own_state = jax.tree.map(lambda array: array[model], (part, state))
    return own_part.logit(own_state, obs, action)


def logit(
    trained: Trained, model: int, obs: Float[np.ndarray, "rows obs"], action: Shaped[np.ndarray, "rows action"]
) -> Float[np.ndarray, "rows"]:
    """One model's log-ratios."""
    return in_pieces(functools.partial(_logit, trained.part, trained.state, jnp.int32(model)), obs, action)


def in_pieces(
    function: Callable[..., Array], obs: Float[np.ndarray, "rows obs"], action: Shaped[np.ndarray, "rows action"]
) -> Float[np.ndarray, "rows"]:
    """A number for every row, by a compiled function that is given pieces of one size: nothing is compiled twice."""
    out = np.empty(len(obs))
    for start in range(0, len(obs), APPLY_ROWS):
        piece = slice(start, min(start + APPLY_ROWS, len(obs)))
        padding = ((0, start + APPLY_ROWS - piece.stop), (0, 0))
        given = (np.pad(array[piece], padding) if padding[0][1] else array[piece] for array in (obs, action))
        out[piece] = np.asarray(function(*given))[: piece.stop - start]
    return out
