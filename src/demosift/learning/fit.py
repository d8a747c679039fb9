"""`fit` trains every setting with every seed together, and keeps the run's folder, metrics and checkpoints."""

import dataclasses
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from demosift.data import check_pair, digest_source
from demosift.data.folds import hash_rows
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.files import provenance
from demosift.learning.algorithm import (
    REGISTRY,
    Algorithm,
    Batch,
    Method,
    State,
    check_expert_actions,
    check_length,
    check_settings,
    describe,
    make_algorithm,
)
from demosift.learning.cloning import with_own_decays
from demosift.learning.held_out import HeldOut, choose, choose_held_out, without
from demosift.learning.members import Precision, check_precision, every_member, fill, stated
from demosift.learning.prepared import digest
from demosift.learning.program import Program
from demosift.learning.runner import (
    Bar,
    Callback,
    Evaluator,
    HostMetrics,
    Schedule,
    Trainee,
    due,
    finite_members,
    metric_rows,
    run,
)
from demosift.policy import Network, Policy
from demosift.progress import Progress
from demosift.ranges import MEMBERS, SEED, STEPS
from demosift.registry import NETWORKS, register
from demosift.results.checkpoint import Note
from demosift.results.run import METRICS, Row, Run, RunFolder
from demosift.types import Bounds, Dataset, Demonstrations, EnvironmentSpec, InputError, Transitions


def fit(
    algorithm: Method | Sequence[Method],
    data: Demonstrations | Sequence[Demonstrations],
    *,
    weights: Any = None,
    seeds: int | Sequence[int] = 1,
    iterations: int | None = None,
    ensemble: int | None = None,
    network: str | Network | None = None,
    normalise: NormaliseOver = "supplementary",
    precision: Precision = "float32",
    environment: EnvironmentSpec | None = None,
    evaluator: Evaluator | None = None,
    held_out: float | None = None,
    patience: int | None = None,
    log_every: int = 500,
    checkpoint_every: int = 5_000,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    task: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Train every setting with every seed, together.

    `algorithm`: one, or several of the same class that differ in numbers only (penalties, thresholds, learning rates).
    `data`: one dataset for all seeds, or one per seed. `weights`: what each row of the union is worth, as `score` gives
    it or as an array, expert rows first; one per dataset where `data` is a list. `seeds`: how many, or which.
    `iterations` and `ensemble` default to the algorithm's own; with an ensemble of K each member is K networks on the
    same data, which act as one policy by the mean of their actions. `network`: the policy's body, by its registered
    name, or a `Network`, which is registered; by default the algorithm's own, a perceptron. With `out` the run is
    written to that folder as it goes, with a checkpoint every `checkpoint_every` iterations, from which `resume`
    continues. `held_out` leaves this share of the expert's rows out of training; the loss of each policy on them is
    logged every `log_every` iterations as `held_out_loss`, and `config["chosen"]` names the member to use. With
    `patience` the run ends when the loss of no member has improved in so many rows of the log, and each member's policy
    is that of its least loss. `precision`: bfloat16 is faster on a GPU. `task` names the task from which the data was
    drawn, so that a report can group its seeds. `callbacks` hear what happens, in order, and may stop the run: trackers
    are callbacks. `progress`: None shows a bar on a terminal.

    A member whose parameters are no longer finite is left out of the policy, with a warning; the reason is in
    `config["failures"]`.
    """
    settings = cast("list[Algorithm]", list(algorithm) if isinstance(algorithm, Sequence) else [algorithm])
    if isinstance(seeds, int):
        MEMBERS.check("fit: seeds", seeds)
        seeds = range(seeds)
    seeds = [int(seed) for seed in seeds]
    sources = list(data) if isinstance(data, Sequence) else [data]
    if not settings or not sources or not seeds:
        raise InputError("fit: needs at least one algorithm, one dataset and one seed")
    if network is not None:
        settings = [with_network(setting, network) for setting in settings]
    if weights is not None:
        sources = with_weights(sources, list(weights) if isinstance(data, Sequence) else [weights])
    iterations = settings[0].about.iterations if iterations is None else iterations
    ensemble = settings[0].about.ensemble if ensemble is None else ensemble
    log_every = min(log_every, iterations)
    check_precision(precision)
    check_request(with_own_decays(settings), sources, seeds, iterations, log_every, checkpoint_every, evaluator)
    MEMBERS.check("fit: ensemble", ensemble)
    for setting in settings:
        check_setting(setting, sources[0].expert.discrete)
    check_memory(settings[0], sources[0], len(settings) * len(seeds) * ensemble)
    check_patience(patience, held_out)
    known = all(source.expert_actions for source in sources)
    if held_out is not None and not known:
        raise InputError("held_out: judges policies by the expert's actions, which are unknown")
    for setting in settings if not resume else []:  # a run that was begun may go on as it was begun
        check_length(setting, iterations, all(source.weight is not None for source in sources))
    settings = [with_horizon(setting, iterations) for setting in settings]
    normalisers = [fit_normaliser(source, normalise) for source in sources]
    left_out = [] if held_out is None else [choose_held_out(source, held_out) for source in sources]
    environment = with_bounds_of(sources[0], environment or sources[0].environment)
    config = {
        "algorithm": settings[0].name,
        "members": [{**describe(setting), "seed": seed} for setting in settings for seed in seeds],
        "data": [describe_data(source) for source in sources],
        "sources": [[part.source for part in (s.expert, s.supplementary) if part is not None] for s in sources],
        "normalise": normalise,
        **stated(precision),
        **({} if ensemble == 1 else {"ensemble": ensemble}),
        **({} if known else {"expert_actions": False}),
        **({} if held_out is None else {"held_out": held_out}),
        **({} if patience is None else {"patience": patience}),
        "iterations": iterations,
        "log_every": log_every,
        "checkpoint_every": checkpoint_every,
        "evaluation": None if evaluator is None else evaluator.describe(),
        "environment": None if environment is None else dataclasses.asdict(environment),
        **({} if task is None else {"task": task}),
        **provenance(),
        "device": jax.devices()[0].device_kind,
    }
    folder = None if out is None else RunFolder(out)
    with nullcontext() if folder is None else folder.claim(config, resume):
        own = [None if folder is None else folder.path / "scores" / f"{i}" for i in range(len(sources))]
        sources = [settings[0].prepare(source, place) for source, place in zip(sources, own, strict=True)]
        judged = [
            source.expert.take(rows[: len(source.expert)]) for source, rows in zip(sources, left_out, strict=False)
        ]
        if judged:
            sources = [without(source, rows) for source, rows in zip(sources, left_out, strict=True)]
            check_weight_values(sources)
        members = every_member(with_own_decays(settings), seeds, sources, normalisers, environment)
        program = Program(members, precision, ensemble)
        every = None if evaluator is None else evaluator.every
        trainee, over = program, lambda: False
        if judged:
            # A run ends with an evaluation, so that a report can use it.
            trainee = HeldOut(program, judged * (len(program) // len(judged)), patience, every or log_every)
            over = trainee.is_over
        found = None if folder is None or patience is None else folder.checkpoints.read()
        if found is not None:
            trainee.restore(found)
        until = found.position if found is not None and over() else iterations  # a run that ended early has ended
        recorder = Recorder(folder, len(program), lambda position: due(position, every, iterations))
        began = time.monotonic()
        with Progress(progress) as display:
            outcome = run(
                trainee,
                Schedule(until, chunk=log_every, checkpoint_every=checkpoint_every),
                evaluator=evaluator,
                evaluated=recorder.evaluated,
                checkpoints=None if folder is None else folder.checkpoints,
                callbacks=[recorder, Bar(display, settings[0].name, iterations, len(program)), *callbacks],
                stopped=over,
            )
        config["wall_seconds"] = round(time.monotonic() - began, 1)
        policy, failures = finite_policy(trainee, settings[0].name, outcome.failures)
        if failures:
            config["failures"] = {str(member): reason for member, reason in failures.items()}
            for member, reason in failures.items():
                warnings.warn(f"{settings[0].name}, member {member}: {reason}", stacklevel=2)
        config["iterations"] = outcome.position  # fewer where patience or a callback ended the run
        if held_out is not None:
            config["chosen"] = choose(recorder.rows, failures, len(seeds), patience is not None)
        metadata = {"algorithm": settings[0].name, "iterations": str(outcome.position)}
        units = sources[0].expert.bounds if environment is None else None
        policy = dataclasses.replace(policy, metadata=metadata, stated_bounds=units)
        trained = Run(config, policy, recorder.rows, trainee.capture())
        if folder is not None:
            folder.finish(trained)
    return trained


class Recorder(Callback):
    """Keeps what is measured: in memory, and in the run's folder."""

    def __init__(self, folder: RunFolder | None, num_members: int, due: Callable[[int], bool]) -> None:
        """`due` says which iterations this run evaluates; a shorter run that it continues had one more, at its end."""
        self.folder, self.num_members, self.due = folder, num_members, due
        self.rows: list[Row] = []
        self.failures: set[int] = set()

    def on_start(self, position: int, note: Note) -> None:
        self.failures = {int(member) for member in note.get("failures", {})}
        if self.folder is not None:
            self.rows = self.folder.cut_metrics(position, self.due(position), note.get(METRICS))

    def evaluated(self, position: int) -> bool:
        """Whether every member's evaluation is there. If a kill cut some off, the others are dropped as well."""
        own = {row["member"] for row in self.rows if "returns" in row and row["iteration"] == position}
        complete = own | self.failures == set(range(self.num_members))
        if own and not complete and self.folder is not None:
            self.rows = self.folder.cut_metrics(position, evaluated=False)
        return complete

    def record(self, rows: list[Row]) -> None:
        self.rows.extend(rows)
        if self.folder is not None:
            self.folder.append_metrics(rows)

    def on_log(self, position: int, metrics: HostMetrics) -> None:
        self.record(metric_rows(position, metrics))

    def on_evaluation(self, position: int, rows: list[Row]) -> None:
        self.record(rows)

    def on_failure(self, member: int, reason: str) -> None:
        self.failures.add(member)

    def on_checkpoint(self, position: int, note: Note) -> None:
        if self.folder is not None:
            note[METRICS] = list(self.rows)


def finite_policy(trainee: Trainee, name: str, failures: Mapping[int, str]) -> tuple[Policy, dict[int, str]]:
    """The policy of the members that did not diverge, and why the others failed."""
    ((members, policy),) = trainee.policies()
    finite = finite_members(policy)
    found = dict(failures)
    for member in np.array(members)[~finite].tolist():
        found.setdefault(member, "diverged: at the end the policy's parameters are not finite")
    alive = [member for member in members if member not in found]
    if not alive:
        raise InputError(f"{name}: every member diverged; {next(iter(found.values()))}")
    return (policy if not found else policy.members(alive)), dict(sorted(found.items()))


def check_request(
    settings: Sequence[Algorithm],
    sources: Sequence[Demonstrations],
    seeds: Sequence[int],
    iterations: int,
    log_every: int,
    checkpoint_every: int,
    evaluator: Evaluator | None,
) -> None:
    STEPS.check("fit: iterations", iterations)
    STEPS.check("fit: log_every", log_every)
    if len(sources) not in (1, len(seeds)):
        raise InputError(f"fit: {len(sources)} datasets for {len(seeds)} seeds; give one for all, or one per seed")
    SEED.check("fit: seeds", *seeds)
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
        check_expert_actions(settings[0], source.expert_actions)
    if len({source.expert_actions for source in sources}) > 1:
        raise InputError("fit: the expert's actions are known in some of the datasets and unknown in others")
    check_bad(settings[0], sources)
    check_weights(settings[0], sources)
    sizes = {(source.expert.obs_dim, source.expert.action_dim, source.expert.discrete) for source in sources}
    if len(sizes) > 1:
        raise InputError(f"fit: the datasets differ in observation or action size: {sorted(sizes)}")
    check_units([source.expert for source in sources])
    if settings[0].needs_supplementary:
        for source in sources:
            if source.supplementary is None:
                raise InputError(
                    f"{settings[0].name}: needs a supplementary dataset beside {source.expert.source}; bc does not"
                )
    for source in sources:
        settings[0].check_data(source)


def check_units(experts: Sequence[Dataset]) -> None:
    """All members are one policy, which has one environment: actions of [-1, 1] must mean the same to all of them."""
    one = (1.0,) * experts[0].action_dim
    plain = Bounds(tuple(-end for end in one), one)  # what actions whose bounds are unknown are taken for
    for other in experts[1:]:
        if not (other.bounds or plain).close_to(experts[0].bounds or plain):
            raise InputError(
                f"fit: {other.source}: actions: bounds differ from those of {experts[0].source}; call fit once for each"
            )


def check_setting(setting: Algorithm, discrete: bool) -> None:
    """Refuse settings that are out of range, or contradict each other or the actions."""
    check_settings(setting)
    setting.check()
    if setting.cloner is not None:
        setting.cloner.check(discrete)


def check_memory(setting: Algorithm, source: Demonstrations, num_networks: int) -> None:
    """Refuse what cannot fit into this machine: the system would end the process, and say nothing."""
    state = jax.eval_shape(lambda: setting.init(batch_like(source.expert.transitions), jax.random.key(0)))
    values = sum(leaf.size for leaf in jax.tree.leaves(state)) + setting.batch_size * sum(setting.hidden)
    needed, here = 4 * num_networks * values, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > here:
        raise InputError(
            f"fit: {num_networks} networks of these sizes need {needed / 1e9:,.0f} GB or more, and this machine has "
            f"{here / 1e9:,.0f}; take fewer seeds, or smaller layers and batches"
        )


def batch_like(rows: Transitions) -> Batch:
    """A batch of one row of zeros, in the sizes and types of these rows: enough to know an algorithm's networks."""
    zeros = Transitions(*(jnp.zeros((1, *array.shape[1:]), array.dtype) for array in rows))
    return Batch(zeros, zeros, zeros, zeros, jnp.zeros((2, 1, 1)))


def check_patience(patience: int | None, held_out: float | None) -> None:
    if patience is not None and held_out is None:
        raise InputError("patience: needs held_out, the share of the expert's rows by whose loss training is stopped")
    if patience is not None:
        STEPS.check("patience", patience)


def with_network(setting: Algorithm, network: str | Network) -> Algorithm:
    """The setting with this body of its policy."""
    if not isinstance(network, str) and NETWORKS.get(network.name) != network:
        register(network)
    if setting.cloner is None:
        raise InputError(f"{setting.name}: makes its own policy network, and takes no other")
    name = network if isinstance(network, str) else network.name
    return dataclasses.replace(setting, cloner=dataclasses.replace(setting.cloner, network=name))  # type: ignore


def with_horizon(setting: Algorithm, iterations: int) -> Algorithm:
    """A falling learning rate reaches zero where the run ends."""
    cloner = setting.cloner
    if cloner is None or cloner.rate_schedule == "constant":
        return setting
    return dataclasses.replace(setting, cloner=dataclasses.replace(cloner, horizon=iterations))  # type: ignore


def check_weights(setting: Algorithm, sources: Sequence[Demonstrations]) -> None:
    given = [source.weight for source in sources if source.weight is not None]
    if not given:
        return
    if not setting.takes_weights:
        takers = ", ".join(name for name, cls in REGISTRY.loaded().items() if cls.takes_weights)
        raise InputError(f"{setting.name}: finds its own weights; those given with the data are for {takers}")
    check_weight_values(sources)


def check_weight_values(sources: Sequence[Demonstrations]) -> None:
    """Of weights that were given with the data or prepared from them."""
    given = [source.weight for source in sources if source.weight is not None]
    if 0 < len(given) < len(sources):
        raise InputError("fit: some of the datasets come with weights and some do not")
    for source, weight in zip(sources, given, strict=False):
        rows = len(source.expert) + len(source.supplementary or ())
        if weight.shape != (rows,) or not np.isfinite(weight).all() or (weight < 0).any() or not (weight > 0).any():
            raise InputError(f"fit: the weights must be {rows} finite numbers, none negative and not all zero")


def check_bad(setting: Algorithm, sources: Sequence[Demonstrations]) -> None:
    """Data that are known to be bad must have someone who uses them: nothing that is given is ignored."""
    for source in sources:
        if source.bad is None:
            continue
        if not setting.takes_bad:
            takers = ", ".join(name for name, cls in REGISTRY.loaded().items() if cls.takes_bad)
            raise InputError(f"{setting.name}: cannot use bad data ({source.bad.source}); {takers} can")
        if source.weight is not None:
            raise InputError("bad: the data come with weights, which bad data no longer change; give them to score")
        check_pair(source.expert, source.bad)


def with_weights(sources: Sequence[Demonstrations], weights: Sequence[Any]) -> list[Demonstrations]:
    """The data with weights that belong to them: those of a `Scored`, or an array."""
    if len(weights) != len(sources):
        raise InputError(f"weights: {len(weights)} of them for {len(sources)} datasets; give one per dataset")
    found = []
    for source, given in zip(sources, weights, strict=True):
        if source.weight is not None:
            raise InputError("weights: the data come with weights already; give one or the other")
        try:
            weight = np.array(getattr(given, "weight", given), np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"weights: a {type(given).__name__} is neither scores nor an array of numbers") from error
        rows = len(source.expert) + len(source.supplementary or ())
        if weight.shape != (rows,):
            raise InputError(f"weights: of shape {weight.shape}; the union has {rows} rows, expert first")
        check_scored(source, getattr(given, "summary", {}))
        found.append(dataclasses.replace(source, weight=weight))
    return found


def check_scored(source: Demonstrations, summary: Mapping[str, Any]) -> None:
    """What was scored is this data: the same rows, or the files that they were read from."""
    for name, part in (("expert", source.expert), ("supplementary", source.supplementary)):
        scored = summary.get(name)
        if part is None or scored is None:
            continue
        if scored["rows"] != len(part):
            raise InputError(
                f"weights: {scored['rows']} rows of the {name} set were scored; {part.source} has {len(part)}"
            )
        rows = hash_rows(part.transitions.obs, part.transitions.action)
        if scored["digest"] == hashlib.sha256(rows.tobytes()).hexdigest():
            continue
        try:
            same = scored["digest"] == digest_source(part.source)
        except InputError:  # not from a file
            same = False
        if not same:
            raise InputError(
                f"weights: of other rows than those of the {name} set {part.source}; score the data itself"
            )


def with_bounds_of(source: Demonstrations, environment: EnvironmentSpec | None) -> EnvironmentSpec | None:
    """The environment with the bounds by which the data's actions were scaled, where they are known."""
    bounds = source.expert.bounds
    if environment is None or bounds is None:
        return environment
    return dataclasses.replace(environment, action_low=tuple(bounds.low), action_high=tuple(bounds.high))


WEIGH_ROWS = 16_384  # rows at a time, so that millions of them need little memory


def weigh(run: Run, data: Demonstrations) -> Float[np.ndarray, "members rows"]:
    """How much each row of the union is worth imitating, according to each of the policy's members."""
    if run.state is None:
        raise InputError("weigh: the run has no checkpoint, so its discriminator is gone")
    if any("weight_sha256" in source for source in run.config["data"]):
        raise InputError("weigh: the run was trained on given weights; its discriminator was never trained")
    members = [dict(member) for member in run.members]
    size = run.config.get("ensemble", 1)  # networks of a member stand together
    seeds = [member.pop("seed") for member in members]
    failed = run.config.get("failures", {})
    alive = [size * i + place for i in range(len(members)) if str(i) not in failed for place in range(size)]
    each = [make_algorithm(member.pop("algorithm"), member) for member in members]
    settings = with_own_decays([setting for setting in each for _ in range(size)])
    algorithm = jax.tree.map(lambda *values: jnp.asarray(values, jnp.float32), *settings)
    union = data.union
    batch = batch_like(union)
    keys = jnp.repeat(jnp.asarray(seeds), size)
    state = jax.eval_shape(jax.vmap(lambda a, s: a.init(batch, jax.random.key(s))), algorithm, keys)
    algorithm, state = jax.tree.map(lambda leaf: leaf[np.array(alive)], (algorithm, fill(state, run.state)))
    first = slice(None, None, run.policy.ensemble)
    normaliser = Normaliser(*(np.repeat(part[first], size, axis=0) for part in (run.policy.shift, run.policy.scale)))

    @jax.jit
    def weigh_rows(rows: Transitions) -> Float[Array, "members rows"]:
        def one(algorithm: Algorithm, state: State, normaliser: Normaliser) -> Float[Array, "rows"]:
            obs, next_obs = normaliser.apply(rows.obs), normaliser.apply(rows.next_obs)
            return algorithm.weigh(state, rows._replace(obs=obs, next_obs=next_obs))

        return jax.vmap(one)(algorithm, state, normaliser)

    starts = range(0, len(union.reward), WEIGH_ROWS)
    parts = [weigh_rows(Transitions(*(array[i : i + WEIGH_ROWS] for array in union))) for i in starts]
    weights = np.concatenate([np.asarray(part) for part in parts], axis=1)
    return weights if size == 1 else np.nanmean(weights.reshape(-1, size, weights.shape[1]), axis=1)


def describe_data(source: Demonstrations) -> Row:
    """Enough to recognise the data: sizes, and digests of the rows and of where sets and episodes end."""
    sha = hashlib.sha256()
    for array in source.union:
        sha.update(np.ascontiguousarray(array).tobytes())
    parts = {"expert": source.expert, "supplementary": source.supplementary}
    ends = hashlib.sha256()
    for part in parts.values():
        ends.update(b"none" if part is None else np.packbits(part.timeout).tobytes() + str(len(part)).encode())
    given: Row = {} if source.weight is None else {"weight_sha256": hashlib.sha256(source.weight.tobytes()).hexdigest()}
    if source.bad is not None:
        given["bad"] = {"sha256": digest(source.bad), "rows": len(source.bad), "episodes": source.bad.num_episodes}
    return {
        "sha256": sha.hexdigest(),
        "ends_sha256": ends.hexdigest(),
        **given,
        **{
            name: {"rows": len(part), "episodes": part.num_episodes} for name, part in parts.items() if part is not None
        },
    }
