"""Members: seeds and settings that share shapes, trained by one compiled program.

    jit(vmap(scan(step)))

Data stays on the device, batches are drawn inside the program, and everything random in iteration i of a member depends
on (seed, i) alone. So a run that is cut into pieces, or killed and resumed, is the same run.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt

from demosift.data.normaliser import Normaliser
from demosift.learning.algorithm import Algorithm, Batch, Metrics, State
from demosift.learning.networks import in_bf16
from demosift.types import Demonstrations, EnvironmentSpec, InputError, Transitions

# The type in which hidden activations are computed and kept. Parameters, outputs and the optimiser are always float32;
# a float32 product is whatever the device makes of it (TF32 on a GPU).
Precision = Literal["float32", "bfloat16"]

MOST = 2**32 - 1


class TrainingData(NamedTuple):
    """One member's data on the device: the union, expert rows first, padded to the length of other members' data."""

    union: Transitions
    num_expert: Int[Any, ""]
    num_rows: Int[Any, ""]
    starts: Int[Any, "starts"]  # rows that begin an episode
    num_starts: Int[Any, ""]
    weight: Float[Any, "rows"] | None = None
    cumulative: UInt[Any, "rows"] | None = None  # of the weights, as shares of their sum, in parts of 2^32

    def draws(self, key: PRNGKeyArray, iterations: Int[Array, "steps"], batch_size: int) -> tuple["Draw", PRNGKeyArray]:
        """The draws of these iterations, and a key for each of their steps."""
        keys = jax.vmap(lambda iteration: jax.random.split(jax.random.fold_in(key, iteration)))(iterations)
        return jax.vmap(lambda key: self.draw(key, batch_size))(keys[:, 0]), keys[:, 1]

    def draw(self, key: PRNGKeyArray, batch_size: int) -> "Draw":
        """Rows of each set, uniformly with replacement."""

        def rows(stream: int, low: Array | int, high: Array) -> Int[Array, "rows"]:
            return jax.random.randint(jax.random.fold_in(key, stream), (batch_size,), low, high)

        return Draw(
            expert=rows(0, 0, self.num_expert),
            union=rows(1, 0, self.num_rows),
            supplementary=rows(2, self.num_expert, self.num_rows),
            initial=rows(3, 0, self.num_starts),
            uniform=jax.random.uniform(jax.random.fold_in(key, 4), (2, batch_size, 1)),
            weighted=None if self.cumulative is None else self.draw_weighted(jax.random.fold_in(key, 5), batch_size),
        )

    def draw_weighted(self, key: PRNGKeyArray, batch_size: int) -> Int[Array, "rows"]:
        """Rows in proportion to their weights: less noise than weighting the loss where the weights are uneven.

        In integers, since float32 has 2^23 numbers between 0 and 1: too few to draw one of ten million rows by.
        """
        assert self.cumulative is not None
        at = jnp.minimum(jax.random.bits(key, (batch_size,), jnp.uint32), jnp.uint32(MOST - 1))
        return jnp.searchsorted(self.cumulative, at, side="right")

    def batch(self, draw: "Draw") -> Batch:
        return self.gather(draw, lambda array, index: array.at[index].get(mode="promise_in_bounds"))

    def gather(self, draw: "Draw", take: Callable[[Array, Int[Array, "rows"]], Array]) -> Batch:
        """A batch of the rows that `take` finds in each array."""

        def rows(index: Int[Array, "rows"]) -> Transitions:
            return Transitions(*(take(array, index) for array in self.union))

        return Batch(
            expert=rows(draw.expert),
            union=rows(draw.union),
            supplementary=rows(draw.supplementary),
            initial=rows(take(self.starts, draw.initial)),
            uniform=draw.uniform,
            weight=None if self.weight is None else take(self.weight, draw.union),
            weighted=None if draw.weighted is None else rows(draw.weighted),
        )


class SharedSets(NamedTuple):
    """Data that several members share, such as the networks of an ensemble: on the device once."""

    sets: TrainingData  # stacked

    def of(self, which: Int[Array, ""]) -> "SharedSet":
        return SharedSet(self.sets, which)


class SharedSet(NamedTuple):
    """One member's data among those of all. No array of rows is ever taken out whole."""

    sets: TrainingData
    which: Int[Array, ""]

    def draws(self, key: PRNGKeyArray, iterations: Int[Array, "steps"], batch_size: int) -> tuple["Draw", PRNGKeyArray]:
        return self.counts.draws(key, iterations, batch_size)

    def draw(self, key: PRNGKeyArray, batch_size: int) -> "Draw":
        return self.counts.draw(key, batch_size)

    def batch(self, draw: "Draw") -> Batch:
        return self.sets.gather(draw, lambda array, index: array.at[self.which, index].get(mode="promise_in_bounds"))

    @property
    def counts(self) -> TrainingData:
        """What its draws need, which is all but the rows."""
        own = jax.tree.map(lambda array: array[self.which], tuple(self.sets[1:]))
        return TrainingData(self.sets.union, *own)


class Draw(NamedTuple):
    """The random numbers of a batch.

    Drawn for many iterations at once: on a CPU a call of the generator inside the loop costs as much as a product.
    """

    expert: Int[Array, "rows"]
    union: Int[Array, "rows"]
    supplementary: Int[Array, "rows"]
    initial: Int[Array, "rows"]
    uniform: Float[Array, "2 rows 1"]
    weighted: Int[Array, "rows"] | None = None


class Member(NamedTuple):
    """One setting with one seed, its data, and how its states are scaled."""

    algorithm: Algorithm
    seed: int
    data: Demonstrations
    normaliser: Normaliser
    environment: EnvironmentSpec | None = None


class Members(NamedTuple):
    """Everything that differs between members, stacked, and what they share.

    `shared` and `own` are a member's data: one of them is None, or `shared.of(own)` puts the two together.
    """

    algorithm: Any
    seed: Int[Array, "members"]
    shared: Any
    own: Any = None


def load_data(source: Demonstrations, normaliser: Normaliser, num_rows: int, num_starts: int) -> TrainingData:
    """Normalise and pad one member's data."""

    def pad(array: np.ndarray, length: int) -> np.ndarray:
        return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])

    union = source.union
    union = union._replace(obs=normaliser.apply(union.obs), next_obs=normaliser.apply(union.next_obs))
    starts = episode_starts(source)
    return TrainingData(
        union=Transitions(*(pad(array, num_rows) for array in union)),
        num_expert=np.int32(len(source.expert)),
        num_rows=np.int32(len(union.reward)),
        starts=pad(starts, num_starts),
        num_starts=np.int32(len(starts)),
        weight=None if source.weight is None else pad(source.weight.astype(np.float32), num_rows),
        cumulative=None if source.weight is None else shares(source.weight, num_rows),
    )


def shares(weight: Float[np.ndarray, "rows"], num_rows: int) -> UInt[np.ndarray, "padded"]:
    """The running sum of the weights, from 0 to `MOST`, with which it is padded: padding is never drawn."""
    running = np.cumsum(weight, dtype=np.float64)
    parts = np.round(running / running[-1] * MOST)
    return np.pad(parts, (0, num_rows - len(weight)), constant_values=MOST).astype(np.uint32)


def episode_starts(source: Demonstrations) -> Int[np.ndarray, "starts"]:
    starts = [source.expert.episode_starts]
    if source.supplementary is not None:
        starts.append(source.supplementary.episode_starts + len(source.expert))
    return np.concatenate(starts).astype(np.int32)


def every_member(
    settings: Sequence[Algorithm],
    seeds: Sequence[int],
    sources: Sequence[Demonstrations],
    normalisers: Sequence[Normaliser],
    environment: EnvironmentSpec | None = None,
) -> list[Member]:
    """Every setting with every seed; `sources` is one for all, or one per seed."""
    return [
        Member(setting, seed, sources[place % len(sources)], normalisers[place % len(sources)], environment)
        for setting in settings
        for place, seed in enumerate(seeds)
    ]


def with_ensemble(members: Sequence[Member], size: int) -> list[Member]:
    """Each member as so many networks on the same data, one after the other; the first has the member's own seed."""
    return [each._replace(seed=ensemble_seed(each.seed, place)) for each in members for place in range(size)]


def ensemble_seed(seed: int, place: int) -> int:
    return seed if place == 0 else int(np.random.SeedSequence([seed, place]).generate_state(1)[0] >> 1)


def load_members(members: Sequence[Member]) -> list[TrainingData]:
    """Each member's data in a common length; members of the same data get the same object."""
    num_rows = max(len(each.data.expert) + len(each.data.supplementary or ()) for each in members)
    num_starts = max(len(episode_starts(each.data)) for each in members)
    loaded: dict[tuple[int, int], TrainingData] = {}
    for each in members:
        key = (id(each.data), id(each.normaliser))
        if key not in loaded:
            loaded[key] = load_data(each.data, each.normaliser, num_rows, num_starts)
    return [loaded[id(each.data), id(each.normaliser)] for each in members]


def stack_members(members: Sequence[Member], data: Sequence[TrainingData] | None = None) -> Members:
    """Members with data of their own each, or shared where several have the same."""
    data = load_members(members) if data is None else data
    algorithm = jax.tree.map(lambda *values: jnp.asarray(values, jnp.float32), *(each.algorithm for each in members))
    seeds = jnp.asarray([each.seed for each in members])
    sets = {id(each): each for each in data}
    if len(sets) == 1:
        return Members(algorithm, seeds, shared=jax.tree.map(jnp.asarray, data[0]))
    stacked = jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays)), *sets.values())
    if len(sets) == len(data):
        return Members(algorithm, seeds, shared=None, own=stacked)
    places = {key: place for place, key in enumerate(sets)}
    which = jnp.asarray([places[id(each)] for each in data], jnp.int32)
    return Members(algorithm, seeds, shared=SharedSets(stacked), own=which)


def over_members(function: Callable, members: Members, *stacked: Any) -> Any:
    """Call a function for every member: vmapped on a GPU, one after another inside the program on a CPU.

    On a CPU batched matrix products are slower than plain ones, and a member that runs alone keeps its parameters in
    the cache.
    """

    def call(algorithm: Any, seed: Array, own: Any, *rest: Any) -> Any:
        data = own if members.shared is None else members.shared if own is None else members.shared.of(own)
        return function(algorithm, seed, data, *rest)

    varying = (members.algorithm, members.seed, members.own, *stacked)
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda arguments: call(*arguments), varying)
    return jax.vmap(call)(*varying)


def member_keys(seed: Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """One key for the networks, one for the iterations. Settings with the same seed share both and can be compared."""
    init_key, train_key = jax.random.split(jax.random.key(seed))
    return init_key, train_key


@jax.jit
def init_members(members: Members) -> State:
    def one(algorithm: Algorithm, seed: Array, data: Any) -> State:
        init_key, _ = member_keys(seed)
        return algorithm.init(data.batch(data.draw(init_key, 1)), init_key)

    return over_members(one, members)


@functools.partial(jax.jit, static_argnames="steps", donate_argnames="state")
def _advance(members: Members, state: State, first: Array, steps: int) -> tuple[State, Metrics]:
    def one(algorithm: Algorithm, seed: Array, data: Any, state: State) -> tuple[State, Metrics]:
        _, train_key = member_keys(seed)
        iterations = first + jnp.arange(steps)
        draws, keys = data.draws(train_key, iterations, algorithm.batch_size)

        def step(state: State, inputs: tuple[Array, Any, PRNGKeyArray]) -> tuple[State, Metrics]:
            iteration, draw, key = inputs
            return algorithm.step(state, data.batch(draw), iteration, key)

        def body(carry: tuple[State, Metrics], inputs: tuple[Array, Any, PRNGKeyArray]):
            state, total = carry
            state, metrics = step(state, inputs)
            return (state, jax.tree.map(jnp.add, total, metrics)), None

        inputs = (iterations, draws, keys)
        shapes = jax.eval_shape(step, state, jax.tree.map(lambda each: each[0], inputs))
        zeros = jax.tree.map(jnp.zeros_like, shapes[1])
        (state, total), _ = jax.lax.scan(body, (state, zeros), inputs)
        return state, jax.tree.map(lambda value: value / steps, total)

    return over_members(one, members, state)


def advance(
    members: Members, state: State, first: int, steps: int, precision: Precision = "float32"
) -> tuple[State, Metrics]:
    """`steps` iterations of all members, and the metrics averaged over them. The old state's memory is reused."""
    with products_in(precision):
        return _advance(members, state, jnp.int32(first), steps)


def check_precision(precision: str) -> None:
    if precision not in get_args(Precision):
        raise InputError(f"precision must be {' or '.join(get_args(Precision))}, not {precision!r}")
    if precision == "float32" and in_bf16():
        raise InputError("JAX is set to multiply in bfloat16; ask for that precision, or unset the option")


def products_in(precision: Precision) -> AbstractContextManager[Any]:
    """Sets what `networks.in_bf16` reads. JAX compiles a program anew for another setting."""
    return jax.default_matmul_precision("bfloat16") if precision == "bfloat16" else nullcontext()


def stated(precision: Precision) -> dict[str, str]:
    """How a config states the precision. float32 is left out, so that ids from before there was a choice still hold."""
    return {} if precision == "float32" else {"precision": precision}


def named_arrays(state: State) -> dict[str, np.ndarray]:
    flat, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(state))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def fill(state: State, arrays: Mapping[str, np.ndarray]) -> State:
    """A state of the same structure, with these arrays as leaves."""
    flat, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = []
    for path, leaf in flat:
        name = jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise InputError(f"the checkpoint does not fit this run: {name}")
        leaves.append(jnp.asarray(arrays[name]))
    return jax.tree_util.tree_unflatten(structure, leaves)
