"""`fit`: draw a batch, step, repeat; scanned over iterations, vmapped over members, compiled once.

A member is one seed of one setting. All members of a run share shapes, so they train in one program:

    jit(vmap(scan(step)))

Data lies on the device, batches are drawn inside the compiled loop, and everything random in iteration i of a member
follows from (seed, i) alone. So a run that was cut into pieces, killed or resumed is the same run.
"""

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from demosift import networks
from demosift.algorithms import REGISTRY, Algorithm, Batch, Metrics, State
from demosift.data import check_pair
from demosift.data.hdf5 import action_bounds
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.policy import Layer, Policy
from demosift.runs import Row, Run, RunFolder, plain, provenance
from demosift.types import Demonstrations, EnvironmentSpec, InputError, Transitions

HostMetrics = dict[str, Float[np.ndarray, "members"]]


class TrainingData(NamedTuple):
    """One member's data on the device:

    the union, expert rows first, perhaps padded to the size of other members' data.
    """

    union: Transitions
    num_expert: Int[Any, ""]
    num_rows: Int[Any, ""]
    starts: Int[Any, "starts"]  # rows that begin an episode
    num_starts: Int[Any, ""]

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


class Evaluator(Protocol):
    """Evaluates a policy while training goes on (`demosift.evaluation.Evaluator` is one)."""

    every: int

    def describe(self) -> Row:
        """What identifies the evaluation: environment, episodes, seed."""
        ...

    def submit(self, policy: Policy, iteration: int) -> Callable[[], list[Row]]:
        """Start evaluating; the result, when called, waits for a row per member."""
        ...


class Tracker(Protocol):
    """Somewhere else to send metrics (`demosift.trackers` has TensorBoard and W&B)."""

    def log(self, rows: list[Row]) -> None: ...


def fit(
    algorithm: Algorithm | Sequence[Algorithm],
    data: Demonstrations | Sequence[Demonstrations],
    *,
    seeds: int | Sequence[int] = 1,
    iterations: int = 100_000,
    normalise: NormaliseOver = "supplementary",
    environment: EnvironmentSpec | None = None,
    evaluator: Evaluator | None = None,
    log_every: int = 500,
    checkpoint_every: int = 5_000,
    out: str | Path | None = None,
    resume: bool = False,
    tracker: Tracker | None = None,
    progress: bool | None = None,
) -> Run:
    """Train every setting with every seed, together.

    `algorithm`: one, or several of the same class that differ in numbers only (penalties, thresholds, learning rates).
    `data`: one for all, or one per seed. `seeds`: how many, or which. With `out` the run streams to that folder,
    checkpoints every `checkpoint_every` iterations, and with `resume` continues from there. `progress`: None shows a
    bar on a terminal.
    """
    settings = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    seeds = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    sources = list(data) if isinstance(data, Sequence) else [data]
    log_every = min(log_every, iterations)
    check_request(settings, sources, seeds, iterations, log_every, checkpoint_every, evaluator)
    normalisers = [fit_normaliser(source, normalise) for source in sources]
    environment = with_bounds_of(sources[0], environment or sources[0].environment)
    config = {
        "algorithm": settings[0].name,
        "members": [{**describe(setting), "seed": seed} for setting in settings for seed in seeds],
        "data": [describe_data(source) for source in sources],
        "normalise": normalise,
        "iterations": iterations,
        "log_every": log_every,
        "checkpoint_every": checkpoint_every,
        "evaluation": None if evaluator is None else evaluator.describe(),
        "environment": None if environment is None else dataclasses.asdict(environment),
        **provenance(),
        "device": jax.devices()[0].device_kind,
    }
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.claim(config, resume)

    members = stack_members(settings, seeds, sources, normalisers)
    state = init_members(members)
    to_policy = functools.partial(make_policy, settings[0], normalisers, len(settings), environment, config)
    position, rows = 0, []
    if folder is not None and (checkpoint := folder.read_checkpoint()):
        position, arrays = checkpoint
        state = fill(state, arrays)
        rows = folder.cut_metrics(position)
    elif folder is not None:
        rows = folder.cut_metrics(0)

    def record(new: list[Row]) -> None:
        rows.extend(new)
        if folder is not None:
            folder.append_metrics(new)
        if tracker is not None:
            tracker.log(new)

    began = time.monotonic()
    pending: Callable[[], list[Row]] | None = None
    with progress_bar(settings[0].name, position, iterations, progress) as advance_bar:
        if evaluator is not None and position and (position % evaluator.every == 0 or position == iterations):
            pending = evaluator.submit(to_policy(state), position)  # the checkpoint was written before its result
        while position < iterations:
            steps = min(log_every - position % log_every, iterations - position)
            state, metrics = advance(members, state, position, steps)
            metrics = {name: np.asarray(values) for name, values in metrics.items()}
            if pending is not None:
                record(pending())
                pending = None
            position += steps
            record(metric_rows(position, metrics))
            advance_bar(position, metrics, len(config["members"]))
            last = position == iterations
            if folder is not None and (position % checkpoint_every == 0 or last):
                folder.write_checkpoint(position, named_arrays(state))
            if evaluator is not None and (position % evaluator.every == 0 or last):
                pending = evaluator.submit(to_policy(state), position)
        if pending is not None:
            record(pending())
    config["wall_seconds"] = round(time.monotonic() - began, 1)
    run = Run(config, to_policy(state), rows, named_arrays(state))
    if folder is not None:
        folder.finish(run)
    return run


def check_request(
    settings: Sequence[Algorithm],
    sources: Sequence[Demonstrations],
    seeds: Sequence[int],
    iterations: int,
    log_every: int,
    checkpoint_every: int,
    evaluator: Evaluator | None,
) -> None:
    if not settings or not sources or not seeds:
        raise InputError("fit: needs at least one algorithm, one dataset and one seed")
    if iterations < 1 or log_every < 1:
        raise InputError(f"fit: iterations ({iterations}) and log_every ({log_every}) must be at least 1")
    if len(sources) not in (1, len(seeds)):
        raise InputError(f"fit: {len(sources)} datasets for {len(seeds)} seeds; give one for all, or one per seed")
    if not all(0 <= seed < 2**31 for seed in seeds):
        raise InputError(f"fit: seeds must be between 0 and 2**31 - 1, not {list(seeds)}")
    if len(set(seeds)) < len(seeds) and len(sources) == 1:
        raise InputError(f"fit: the seeds repeat ({list(seeds)}); repeated members would be identical")
    # Numbers are leaves and may differ; everything else is part of the tree's structure and may not.
    if len({jax.tree.structure(setting) for setting in settings}) > 1:
        raise InputError(
            "fit: algorithms trained together must be of one class and share sizes; call fit once per class"
        )
    for every, name in (
        (checkpoint_every, "checkpoint_every"),
        (evaluator.every if evaluator else log_every, "evaluate_every"),
    ):
        if every < 1 or (every % log_every and iterations > every):
            raise InputError(f"fit: {name} ({every}) must be a positive multiple of log_every ({log_every})")
    for source in sources:
        if source.supplementary is not None:
            check_pair(source.expert, source.supplementary)
    sizes = {(source.expert.obs_dim, source.expert.action_dim, source.expert.discrete) for source in sources}
    if len(sizes) > 1:
        raise InputError(f"fit: the datasets differ in observation or action size: {sorted(sizes)}")
    if settings[0].needs_supplementary:
        for source in sources:
            if source.supplementary is None:
                raise InputError(
                    f"{settings[0].name}: needs a supplementary dataset beside {source.expert.source}; bc does not"
                )


def with_bounds_of(source: Demonstrations, environment: EnvironmentSpec | None) -> EnvironmentSpec | None:
    """The environment with the bounds that the data's actions were scaled by, where the data states them."""
    bounds = action_bounds(source.expert)
    if environment is None or bounds is None:
        return environment
    return dataclasses.replace(environment, action_low=tuple(bounds.low), action_high=tuple(bounds.high))


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


def advance(members: Members, state: State, first: int, steps: int) -> tuple[State, Metrics]:
    """`steps` iterations of all members, and the metrics averaged over them. The old state's memory is reused."""
    return _advance(*members, state, jnp.int32(first), steps)


WEIGH_ROWS = 16_384  # at a time, so that a pile of millions needs little memory


def weigh(run: Run, data: Demonstrations) -> Float[np.ndarray, "members rows"]:
    """How much each row of the union is worth imitating, by each member's networks at the end of the run."""
    if run.state is None:
        raise InputError("weigh: the run has no checkpoint, so its discriminator is gone")
    members = [dict(member) for member in run.members]
    seeds = [member.pop("seed") for member in members]
    classes = {REGISTRY[member.pop("algorithm")] for member in members}
    (cls,) = classes
    settings = [cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in m.items()}) for m in members]
    algorithm = jax.tree.map(lambda *values: jnp.asarray(values, jnp.float32), *settings)
    union = data.union
    shapes = Transitions(*(jnp.zeros((1, *array.shape[1:]), array.dtype) for array in union))
    batch = Batch(shapes, shapes, shapes, shapes, jnp.zeros((2, 1, 1)))
    state = jax.eval_shape(jax.vmap(lambda a, s: a.init(batch, jax.random.key(s))), algorithm, jnp.asarray(seeds))
    state = fill(state, run.state)
    normaliser = Normaliser(run.policy.shift, run.policy.scale)

    @jax.jit
    def weigh_rows(rows: Transitions) -> Float[Array, "members rows"]:
        def one(algorithm: Algorithm, state: State, normaliser: Normaliser) -> Float[Array, "rows"]:
            obs, next_obs = normaliser.apply(rows.obs), normaliser.apply(rows.next_obs)
            return algorithm.weigh(state, rows._replace(obs=obs, next_obs=next_obs))

        return jax.vmap(one)(algorithm, state, normaliser)

    starts = range(0, len(union.reward), WEIGH_ROWS)
    parts = [weigh_rows(Transitions(*(array[i : i + WEIGH_ROWS] for array in union))) for i in starts]
    return np.concatenate([np.asarray(part) for part in parts], axis=1)


def make_policy(
    setting: Algorithm,
    normalisers: Sequence[Normaliser],
    num_settings: int,
    environment: EnvironmentSpec | None,
    config: Row,
    state: State,
) -> Policy:
    """The members' policies as the NumPy object that acts, is saved and travels."""
    network = jax.device_get(setting.policy(state))
    kind = "tanh-gaussian" if isinstance(network, networks.TanhGaussian) else "categorical"
    num_members = len(config["members"])
    stacked = [np.stack(parts) for parts in zip(*normalisers, strict=True)]
    shift, scale = (np.tile(part, (num_members // len(part), 1)) for part in stacked)
    return Policy(
        kind=kind,
        layers=tuple(Layer(np.asarray(layer.kernel), np.asarray(layer.bias)) for layer in network.layers),
        shift=shift,
        scale=scale,
        mean_limit=setting.mean_limit if kind == "tanh-gaussian" else None,
        environment=environment,
        metadata={"algorithm": setting.name, "iterations": str(config["iterations"])},
    )


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


def metric_rows(iteration: int, metrics: HostMetrics) -> list[Row]:
    num_members = len(next(iter(metrics.values())))
    return [
        {"iteration": iteration, "member": member, **{name: plain(float(v[member])) for name, v in metrics.items()}}
        for member in range(num_members)
    ]


def describe(setting: Algorithm) -> Row:
    """The algorithm's name and hyper-parameters, as plain JSON values."""
    values = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}  # type: ignore
    return {"algorithm": setting.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}}


def describe_data(source: Demonstrations) -> Row:
    """Enough to recognise the data again: sizes and a fingerprint of what is trained on."""
    sha = hashlib.sha256()
    for array in source.union:
        sha.update(np.ascontiguousarray(array).tobytes())
    parts = {"expert": source.expert, "supplementary": source.supplementary}
    return {
        "sha256": sha.hexdigest(),
        **{
            name: {"rows": len(part), "episodes": part.num_episodes} for name, part in parts.items() if part is not None
        },
    }


@contextlib.contextmanager
def progress_bar(
    name: str, position: int, iterations: int, show: bool | None
) -> Iterator[Callable[[int, HostMetrics, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}  {task.fields[rate]}  {task.fields[losses]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (console.is_terminal if show is None else show)) as bar:
        task = bar.add_task(name, total=iterations, completed=position, rate="compiling", losses="")
        started, start = time.monotonic(), position

        def advance(position: int, metrics: HostMetrics, num_members: int) -> None:
            nonlocal started, start
            rate = (position - start) * num_members / (time.monotonic() - started)
            losses = "  ".join(
                f"{key.removesuffix('_loss')} {np.nanmean(value):.3g}"
                for key, value in metrics.items()
                if key.endswith("_loss") and not np.isnan(value).all()
            )
            bar.update(task, completed=position, rate=f"{rate:,.0f} it/s", losses=losses)

        yield advance
