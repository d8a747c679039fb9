"""Members: seeds and settings that share shapes, trained in one compiled program.

    jit(vmap(scan(step)))

Data lies on the device, batches are drawn inside the program, and everything random in iteration i of a member follows
from (seed, i) alone. So a run that was cut into pieces, killed or resumed is the same run.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demosift.data.normaliser import Normaliser
from demosift.learning.algorithm import Algorithm, Batch, Metrics, State
from demosift.learning.networks import in_bf16
from demosift.types import Demonstrations, InputError, Transitions

# What hidden activations are computed and kept in. Parameters, outputs and the optimiser are float32 with either;
# float32 products are as the device makes them (TF32 on a GPU).
Precision = Literal["float32", "bfloat16"]


class TrainingData(NamedTuple):
    """One member's data on the device:

    the union, expert rows first, perhaps padded to the size of other members' data.
    """

    union: Transitions
    num_expert: Int[Any, ""]
    num_rows: Int[Any, ""]
    starts: Int[Any, "starts"]  # rows that begin an episode
    num_starts: Int[Any, ""]
    weight: Float[Any, "rows"] | None = None

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
        )

    def batch(self, draw: "Draw") -> Batch:
        def rows(index: Int[Array, "rows"]) -> Transitions:
            return Transitions(*(array.at[index].get(mode="promise_in_bounds") for array in self.union))

        return Batch(
            expert=rows(draw.expert),
            union=rows(draw.union),
            supplementary=rows(draw.supplementary),
            initial=rows(self.starts[draw.initial]),
            uniform=draw.uniform,
            weight=None if self.weight is None else self.weight[draw.union],
        )


class Draw(NamedTuple):
    """The random numbers of a batch.

    Drawn for many iterations at once: on a CPU a call of the generator inside the loop costs as much as a product.
    """

    expert: Int[Array, "rows"]
    union: Int[Array, "rows"]
    supplementary: Int[Array, "rows"]
    initial: Int[Array, "rows"]
    uniform: Float[Array, "2 rows 1"]


class Members(NamedTuple):
    """Everything that differs between members, stacked. Data is stacked only where members have draws of their own."""

    algorithm: Algorithm
    seed: Int[Array, "members"]
    data: TrainingData
    own_data: bool


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
    )


def episode_starts(source: Demonstrations) -> Int[np.ndarray, "starts"]:
    starts = [source.expert.episode_starts]
    if source.supplementary is not None:
        starts.append(source.supplementary.episode_starts + len(source.expert))
    return np.concatenate(starts).astype(np.int32)


def stack_members(
    settings: Sequence[Algorithm],
    seeds: Sequence[int],
    sources: Sequence[Demonstrations],
    normalisers: Sequence[Normaliser],
) -> Members:
    num_rows = max(len(source.expert) + len(source.supplementary or ()) for source in sources)
    num_starts = max(len(episode_starts(source)) for source in sources)
    loaded = [load_data(s, n, num_rows, num_starts) for s, n in zip(sources, normalisers, strict=True)]
    own_data = len(loaded) > 1
    if own_data:
        data = jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays * len(settings))), *loaded)
    else:
        data = jax.tree.map(jnp.asarray, loaded[0])
    repeated = [setting for setting in settings for _ in seeds]
    algorithm = jax.tree.map(lambda *values: jnp.asarray(values, jnp.float32), *repeated)
    return Members(algorithm, jnp.asarray(list(seeds) * len(settings)), data, own_data)


def over_members(function: Callable, members: Members, *stacked: Any) -> Any:
    """Call a function for every member: vmapped on a GPU, one after another inside the program on a CPU.

    A CPU gains nothing from batches of matrix products, whose kernels are slower there than plain ones; members in turn
    also keep their parameters in the cache.
    """
    if members.own_data:
        varying, call = (members.algorithm, members.seed, members.data, *stacked), function
    else:
        varying = (members.algorithm, members.seed, *stacked)
        call = lambda algorithm, seed, *rest: function(algorithm, seed, members.data, *rest)  # noqa: E731
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda arguments: call(*arguments), varying)
    return jax.vmap(call)(*varying)


def member_keys(seed: Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """For the networks, and for the iterations. Settings that share a seed share both, so that they can be compared."""
    init_key, train_key = jax.random.split(jax.random.key(seed))
    return init_key, train_key


@functools.partial(jax.jit, static_argnames=("own_data",))
def _init(algorithm: Algorithm, seed: Array, data: TrainingData, own_data: bool) -> State:
    def one(algorithm: Algorithm, seed: Array, data: TrainingData) -> State:
        init_key, _ = member_keys(seed)
        return algorithm.init(data.batch(data.draw(init_key, 1)), init_key)

    return over_members(one, Members(algorithm, seed, data, own_data))


def init_members(members: Members) -> State:
    return _init(*members)


@functools.partial(jax.jit, static_argnames=("own_data", "steps"), donate_argnames=("state",))
def _advance(
    algorithm: Algorithm, seed: Array, data: TrainingData, own_data: bool, state: State, first: Array, steps: int
) -> tuple[State, Metrics]:
    def one(algorithm: Algorithm, seed: Array, data: TrainingData, state: State) -> tuple[State, Metrics]:
        _, train_key = member_keys(seed)

        iterations = first + jnp.arange(steps)
        keys = jax.vmap(lambda iteration: jax.random.split(jax.random.fold_in(train_key, iteration)))(iterations)
        draws = jax.vmap(lambda key: data.draw(key, algorithm.batch_size))(keys[:, 0])

        def step(state: State, inputs: tuple[Array, Draw, PRNGKeyArray]) -> tuple[State, Metrics]:
            iteration, draw, key = inputs
            return algorithm.step(state, data.batch(draw), iteration, key)

        def body(carry: tuple[State, Metrics], inputs: tuple[Array, Draw, PRNGKeyArray]):
            state, total = carry
            state, metrics = step(state, inputs)
            return (state, jax.tree.map(jnp.add, total, metrics)), None

        inputs = (iterations, draws, keys[:, 1])
        shapes = jax.eval_shape(step, state, jax.tree.map(lambda each: each[0], inputs))
        zeros = jax.tree.map(jnp.zeros_like, shapes[1])
        (state, total), _ = jax.lax.scan(body, (state, zeros), inputs)
        return state, jax.tree.map(lambda value: value / steps, total)

    return over_members(one, Members(algorithm, seed, data, own_data), state)


def advance(
    members: Members, state: State, first: int, steps: int, precision: Precision = "float32"
) -> tuple[State, Metrics]:
    """`steps` iterations of all members, and the metrics averaged over them. The old state's memory is reused."""
    with products_in(precision):
        return _advance(*members, state, jnp.int32(first), steps)


def check_precision(precision: str) -> None:
    if precision not in get_args(Precision):
        raise InputError(f"precision must be {' or '.join(get_args(Precision))}, not {precision!r}")
    if precision == "float32" and in_bf16():
        raise InputError("JAX is told to multiply in bfloat16; ask for that precision, or unset the option")


def products_in(precision: Precision) -> AbstractContextManager[Any]:
    """Where `networks.in_bf16` looks. JAX compiles a program anew for another setting."""
    return jax.default_matmul_precision("bfloat16") if precision == "bfloat16" else nullcontext()


def stated(precision: Precision) -> dict[str, str]:
    """What a config says of the precision: nothing of float32, so that an id does not depend on there being others."""
    return {} if precision == "float32" else {"precision": precision}


def named_arrays(state: State) -> dict[str, np.ndarray]:
    flat, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(state))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def fill(state: State, arrays: Mapping[str, np.ndarray]) -> State:
    """The state of this structure whose leaves are these arrays."""
    flat, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = []
    for path, leaf in flat:
        name = jax.tree_util.keystr(path)
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise InputError(f"the checkpoint does not fit this run: {name}")
        leaves.append(jnp.asarray(arrays[name]))
    return jax.tree_util.tree_unflatten(structure, leaves)
