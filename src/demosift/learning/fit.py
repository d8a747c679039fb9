"""`fit`: trains every setting with every seed together, and keeps the run's folder, metrics and checkpoints."""

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from demosift.data import check_pair
from demosift.data.formats.hdf5 import action_bounds
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.files import plain, provenance
from demosift.learning import networks
from demosift.learning.algorithm import Algorithm, Batch, State, make_algorithm
from demosift.learning.members import (
    Precision,
    advance,
    check_precision,
    fill,
    init_members,
    named_arrays,
    stack_members,
    stated,
)
from demosift.policy import Layer, Policy
from demosift.results.run import Row, Run, RunFolder
from demosift.types import Demonstrations, EnvironmentSpec, InputError, Transitions

HostMetrics = dict[str, Float[np.ndarray, "members"]]


class Evaluator(Protocol):
    """Evaluates a policy while training goes on (`demosift.simulation.evaluation.Evaluator` is one)."""

    every: int

    def describe(self) -> Row:
        """What identifies the evaluation: environment, episodes, seed."""
        ...

    def submit(self, policy: Policy, iteration: int) -> Callable[[], list[Row]]:
        """Start evaluating; the result, when called, waits for a row per member."""
        ...


class Tracker(Protocol):
    """Somewhere else to send metrics (`demosift.learning.trackers` has TensorBoard and W&B)."""

    def log(self, rows: list[Row]) -> None: ...


def fit(
    algorithm: Algorithm | Sequence[Algorithm],
    data: Demonstrations | Sequence[Demonstrations],
    *,
    seeds: int | Sequence[int] = 1,
    iterations: int = 100_000,
    normalise: NormaliseOver = "supplementary",
    precision: Precision = "float32",
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
    checkpoints every `checkpoint_every` iterations, and with `resume` continues from there. `precision`: bfloat16 is
    faster on a GPU. `progress`: None shows a bar on a terminal.
    """
    settings = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    seeds = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    sources = list(data) if isinstance(data, Sequence) else [data]
    log_every = min(log_every, iterations)
    check_precision(precision)
    check_request(settings, sources, seeds, iterations, log_every, checkpoint_every, evaluator)
    normalisers = [fit_normaliser(source, normalise) for source in sources]
    environment = with_bounds_of(sources[0], environment or sources[0].environment)
    config = {
        "algorithm": settings[0].name,
        "members": [{**describe(setting), "seed": seed} for setting in settings for seed in seeds],
        "data": [describe_data(source) for source in sources],
        "sources": [[part.source for part in (s.expert, s.supplementary) if part is not None] for s in sources],
        "normalise": normalise,
        **stated(precision),
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
            state, metrics = advance(members, state, position, steps, precision)
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
    check_weights(settings[0], sources)
    sizes = {(source.expert.obs_dim, source.expert.action_dim, source.expert.discrete) for source in sources}
    if len(sizes) > 1:
        raise InputError(f"fit: the datasets differ in observation or action size: {sorted(sizes)}")
    if settings[0].needs_supplementary:
        for source in sources:
            if source.supplementary is None:
                raise InputError(
                    f"{settings[0].name}: needs a supplementary dataset beside {source.expert.source}; bc does not"
                )


def check_weights(setting: Algorithm, sources: Sequence[Demonstrations]) -> None:
    given = [source.weight for source in sources if source.weight is not None]
    if not given:
        return
    if not getattr(setting, "takes_weights", False):
        raise InputError(f"{setting.name}: finds its own weights; those given with the data are for wbcu-two-stage")
    if len(given) < len(sources):
        raise InputError("fit: some of the datasets come with weights and some do not")
    for source, weight in zip(sources, given, strict=True):
        rows = len(source.expert) + len(source.supplementary or ())
        if weight.shape != (rows,) or not np.isfinite(weight).all() or (weight < 0).any() or not (weight > 0).any():
            raise InputError(f"fit: the weights must be {rows} finite numbers, none negative and not all zero")


def with_bounds_of(source: Demonstrations, environment: EnvironmentSpec | None) -> EnvironmentSpec | None:
    """The environment with the bounds that the data's actions were scaled by, where the data states them."""
    bounds = action_bounds(source.expert)
    if environment is None or bounds is None:
        return environment
    return dataclasses.replace(environment, action_low=tuple(bounds.low), action_high=tuple(bounds.high))


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


WEIGH_ROWS = 16_384  # at a time, so that a pile of millions needs little memory


def weigh(run: Run, data: Demonstrations) -> Float[np.ndarray, "members rows"]:
    """How much each row of the union is worth imitating, by each member's networks at the end of the run."""
    if run.state is None:
        raise InputError("weigh: the run has no checkpoint, so its discriminator is gone")
    if any("weight_sha256" in source for source in run.config["data"]):
        raise InputError("weigh: the run was trained on given weights; its discriminator never was")
    members = [dict(member) for member in run.members]
    seeds = [member.pop("seed") for member in members]
    settings = [make_algorithm(member.pop("algorithm"), member) for member in members]
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
    given = {} if source.weight is None else {"weight_sha256": hashlib.sha256(source.weight.tobytes()).hexdigest()}
    return {
        "sha256": sha.hexdigest(),
        **given,
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
