"""`collect`: trains SAC agents and keeps what they leave: an expert, a medium policy, and the whole replay.

All agents, every seed of every environment, train in one compiled program (`sac.py`). A round steps `num_envs` environments per
agent and makes as many updates: act, send the actions to the simulating processes, start the updates on the device, and only then
wait for the simulators. So simulation hides behind learning, or learning behind simulation, and updates lag by one round.

Every policy that is evaluated on the way is kept. At the end the best late ones meet again on fresh episodes, the best of those
becomes the expert, and its reported return comes from episodes that chose nothing: three disjoint sets of seeds.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from demosift import environments
from demosift.collect.checkpoint import Arrays, Checkpoint, Note
from demosift.collect.sac import RUNNING, SAC, TERMINAL, TIMEOUT, Layout, Metrics, State
from demosift.data import write_dataset, write_json
from demosift.data.atomic import atomic_write
from demosift.policy import Layer, Policy
from demosift.runs import json_line, provenance
from demosift.simulate import Episode, Rollouts, Simulators, available_cores
from demosift.types import Dataset, EnvironmentSpec, InputError, Transitions

EVALUATION_SEED, CHOOSING_SEED, REPORTING_SEED = 1_000_000, 2_000_000_000, 3_000_000_000
"""Where the reset seeds of the three sets of episodes begin. Training draws its own below the first."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    """When things happen, in environment steps of one agent, and how expert and medium are chosen."""

    random_steps: int = 5_000  # uniform actions and no updates before
    evaluate_every: int = 10_000
    evaluation_episodes: int = 10
    candidate_share: float = 1 / 3  # evaluations in this last part of training name candidates for the expert
    num_finalists: int = 10  # the best candidates, which are evaluated again
    fresh_episodes: int = 20  # for each finalist, and again to report the expert and the medium policy
    checkpoint_seconds: float = 30.0


class Member(NamedTuple):
    """One agent: the index of its environment, and its seed."""

    environment: int
    seed: int


@dataclass(frozen=True)
class Status:
    """Where a run stands: what the progress bar shows."""

    step: int
    steps: int
    steps_per_second: float  # of one agent
    simulating: float  # share of the time spent waiting for the simulators
    learning: float  # share of the time spent waiting for the device
    seconds_left: float
    returns: dict[str, float]  # the last evaluation of each environment, the mean over its seeds
    lengths: dict[str, float]
    temperature: float

    def __str__(self) -> str:
        returns = " ".join(f"{name} {value:.0f} ({self.lengths[name]:.0f})" for name, value in self.returns.items())
        return (
            f"step {self.step:,}/{self.steps:,}  {self.steps_per_second:.0f} steps/s  left {self.seconds_left:.0f} s  "
            f"waiting for simulation {self.simulating:.0%}, learning {self.learning:.0%}  "
            f"temperature {self.temperature:.3f}  return (length): {returns or 'none yet'}"
        )


Progress = Callable[[Status], None]


@dataclass(frozen=True)
class Collected:
    """What a call did. Not `finished` means that the time limit came first: call again with `resume`."""

    finished: bool
    step: int
    speed: Row
    results: dict[str, Row]  # by environment: what config.json says of the expert and the medium policy


def collect(
    names: Sequence[str],
    out: str | Path,
    *,
    steps: int = 1_000_000,
    seeds: Sequence[int] = (0,),
    num_envs: int = 16,
    sac: SAC = SAC(),  # noqa: B008  frozen
    schedule: Schedule = Schedule(),  # noqa: B008  frozen
    resume: bool = False,
    keep_checkpoint: bool = False,
    time_limit: float | None = None,
    num_workers: int | None = None,
    progress: bool | Progress | None = None,
) -> Collected:
    """Train SAC in the named environments, all seeds and environments together, and write what it makes.

    In `out`, or with several environments in a folder of `out` for each:

        expert.safetensors   the best late policy over all seeds, chosen and reported on different fresh episodes
        medium.safetensors   of the same seed, the earlier policy whose return is nearest a third of the expert's
        replay.hdf5          every transition of that seed in the D4RL layout; see `replay_dataset` for the order
        curve.jsonl          a line per evaluation and seed
        config.json          everything that was asked for, what it ran on, what came out

    `steps` count per agent and are rounded up to whole rounds of `num_envs`. The run checkpoints to `out/checkpoint`; with
    `resume` it continues there, also to more steps than before where `keep_checkpoint` kept the folder of a finished run.
    After `time_limit` seconds it checkpoints and returns unfinished. `progress`: True or None for a bar (None: only on a
    terminal), or a function that is given a `Status` now and then.
    """
    began = time.monotonic()
    specs = _resolve(names)
    seeds = [int(seed) for seed in seeds]
    _check_request(specs, steps, seeds, num_envs, schedule)
    folders = _claim(Path(out), specs, resume)
    labels = [environments.short_name(spec) for spec in specs]
    identity = {
        "environments": [dataclasses.asdict(spec) for spec in specs],
        "seeds": seeds,
        "num_envs": num_envs,
        "random_steps": schedule.random_steps,
        "sac": dataclasses.asdict(sac),
    }
    identity = json.loads(json.dumps(identity))  # as a checkpoint gives it back

    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint(Path(out) / "checkpoint"))
        found = checkpoint.read() if resume else None
        note: Note = {"identity": identity, "curve": [], "cuts": [], "wall_seconds": 0.0} if found is None else found[1]
        if note["identity"] != identity:
            key = next(key for key in identity if note["identity"].get(key) != identity[key])
            raise InputError(f"{out}: the checkpoint is of another run: its {key.replace('_', ' ')} differs")
        total_rounds = -(-steps // num_envs)
        if found is not None and note["num_rounds"] > total_rounds:
            done = note["num_rounds"] * num_envs
            raise InputError(f"{out}: the checkpoint has {done} steps already, more than the {steps} asked for")

        training = stack.enter_context(
            Training(sac, specs, seeds, num_envs, total_rounds, schedule.random_steps, num_workers)
        )
        if found is not None:
            training.restore(found[0], note["num_rounds"], checkpoint.read_rows())
            note["cuts"].append(note["num_rounds"])
        # Half of the cores: evaluation is in no hurry, and the simulators are.
        rollouts = stack.enter_context(Rollouts(num_workers or max(1, available_cores() // 2)))
        evaluations = Evaluations(rollouts, training, schedule, note["curve"])
        for num_rounds in checkpoint.evaluated_rounds():
            if num_rounds <= training.num_rounds and (snapshot := checkpoint.read_policies(num_rounds)) is not None:
                evaluations.submit(num_rounds, snapshot)

        def write_checkpoint() -> None:
            evaluations.gather(wait=False)
            note["wall_seconds"] += time.monotonic() - note.pop("since", began)
            checkpoint.write(training.num_rounds, training.arrays(), training.take_rows(), note)
            note["since"] = time.monotonic()
            for label, folder in zip(labels, folders, strict=True):
                _write_curve(folder, [row for row in note["curve"] if row["environment"] == label])

        show = stack.enter_context(_progress(progress))
        evaluate_rounds = max(1, schedule.evaluate_every // num_envs)
        last_checkpoint = last_shown = time.monotonic()
        out_of_time = False
        while training.num_rounds < total_rounds and not out_of_time:
            training.advance()
            if training.num_rounds % evaluate_rounds == 0 or training.num_rounds == total_rounds:
                snapshot = training.snapshot()
                checkpoint.write_policies(training.num_rounds, snapshot)
                evaluations.submit(training.num_rounds, snapshot)
            now = time.monotonic()
            if now - last_shown > 1.0:
                evaluations.gather(wait=False)
                show(_status(training, note["curve"], total_rounds))
                last_shown = now
            out_of_time = time_limit is not None and now - began > time_limit
            if now - last_checkpoint > schedule.checkpoint_seconds:
                write_checkpoint()
                last_checkpoint = now
        write_checkpoint()
        show(_status(training, note["curve"], total_rounds))
        speed = training.speed()
        if training.num_rounds < total_rounds:
            checkpoint.flush()
            return Collected(False, training.num_rounds * num_envs, speed, {})

        training.close()  # its processes would compete with the last evaluations
        evaluations.gather(wait=True)
        checkpoint.flush()
        results = {}
        for index, (label, folder) in enumerate(zip(labels, folders, strict=True)):
            curve = [row for row in note["curve"] if row["environment"] == label]
            choice = _choose(curve, steps, schedule, partial(_stored_policy, checkpoint, training, index), rollouts)
            rows = np.concatenate([*checkpoint.read_rows(slice(choice.member, choice.member + 1))])[:, :, 0]
            attributes = {"algorithm": "sac", "seed": choice.seed, "steps": rows.shape[0] * num_envs}
            replay = replay_dataset(rows, training.padded, training.sizes[index], note["cuts"])
            replay = dataclasses.replace(replay, environment=specs[index], attributes=attributes)
            results[label] = {"expert": choice.expert.report, "medium": choice.medium.report}
            config = {
                **{key: identity[key] for key in ("seeds", "num_envs", "sac")},
                "environment": dataclasses.asdict(specs[index]),
                "trained_with": labels,
                "steps": steps,
                "schedule": dataclasses.asdict(schedule),
                **provenance(),
                "device": jax.devices()[0].device_kind,
                "command": sys.argv,
                "speed": speed,
                "wall_seconds": round(note["wall_seconds"] + time.monotonic() - note["since"], 1),
                **results[label],
            }
            _write_curve(folder, curve)
            write_dataset(replay, folder / "replay.hdf5")
            for role, chosen in (("medium", choice.medium), ("expert", choice.expert)):
                metadata = {"algorithm": "sac", "role": role, **{k: json.dumps(v) for k, v in chosen.report.items()}}
                dataclasses.replace(chosen.policy, metadata=metadata).save(folder / f"{role}.safetensors")
            write_json(folder / "config.json", config)
        if not keep_checkpoint:
            checkpoint.remove()
        return Collected(True, training.num_rounds * num_envs, speed, results)


class Training:
    """The agents and their environments, moved a round at a time. It knows nothing of files."""

    def __init__(
        self,
        sac: SAC,
        specs: Sequence[EnvironmentSpec],
        seeds: Sequence[int],
        num_envs: int,
        capacity_rounds: int,
        random_steps: int,
        num_workers: int | None = None,
    ):
        self.sac, self.specs, self.num_envs = sac, tuple(specs), num_envs
        self.members = [Member(*pair) for pair in itertools.product(range(len(specs)), seeds)]
        self.sizes = [Layout(*environments.spaces(spec)) for spec in specs]
        self.padded = Layout(*(max(size) for size in zip(*self.sizes, strict=True)))
        self.random_rounds = -(-random_steps // num_envs)
        self.num_rounds = 0
        # Environment by environment, agent by agent within: neighbours share a worker, so each worker has some of every kind.
        member_specs = [specs[member.environment] for member in self.members]
        self.simulators = Simulators(member_specs * num_envs, num_workers)
        self.close = self.simulators.close

        sizes = [self.sizes[member.environment] for member in self.members]
        self._keys = jax.vmap(jax.random.key)(jnp.asarray([member.seed for member in self.members], jnp.uint32))
        self._mask = jnp.asarray([np.arange(self.padded.action_dim) < size.action_dim for size in sizes], jnp.float32)
        agents = [
            sac.init(jax.random.fold_in(key, 0), size, self.padded) for key, size in zip(self._keys, sizes, strict=True)
        ]
        self.state: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *agents)
        self.metrics: Metrics | None = None
        self._replay = jnp.zeros((len(self.members), capacity_rounds * num_envs, self.padded.width))
        self._obs: np.ndarray | None = None
        self._last_rows: np.ndarray | None = None
        self._new_rows: list[np.ndarray] = []
        self._seconds = dict.fromkeys(("simulating", "learning", "total"), 0.0)
        self._rounds_timed = 0

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self) -> None:
        """One round: `num_envs` steps of every agent, and as many updates once the random steps are over."""
        began = time.perf_counter()
        if self._obs is None:
            seeds = [
                np.random.SeedSequence((member.seed, self.num_rounds)).generate_state(self.num_envs)
                for member in self.members
            ]
            self._obs = self.simulators.reset((np.stack(seeds, axis=1).ravel() % EVALUATION_SEED).tolist()).reshape(
                self.num_envs, len(self.members), -1
            )
        number = np.int32(self.num_rounds)
        if self.num_rounds < self.random_rounds:
            pending = _explore(self.num_envs, self._mask, self._keys, number)
        else:
            pending = _act(self.state.policy.params, self._obs, self._mask, self._keys, number)
        action = np.asarray(pending)  # waits for the updates of the round before, too
        acted = time.perf_counter()
        self.simulators.send(action.reshape(-1, self.padded.action_dim))
        if self._last_rows is not None:
            if self.num_rounds < self.random_rounds:
                self._replay = _absorb(self._replay, self._last_rows, number)
            else:
                self.state, self._replay, self.metrics = _learn(
                    self.sac, self.state, self._replay, self._last_rows, self._mask, self._keys, number
                )
        started = time.perf_counter()
        step = self.simulators.receive()
        received = time.perf_counter()

        shape = (self.num_envs, len(self.members))
        rows = np.empty((*shape, self.padded.width), np.float32)
        rows[..., self.padded.obs] = self._obs
        rows[..., self.padded.action] = action
        rows[..., self.padded.next_obs] = step.next_obs.reshape(*shape, -1)
        rows[..., self.padded.reward] = step.reward.reshape(shape)
        rows[..., self.padded.end] = np.where(
            step.terminal, TERMINAL, np.where(step.timeout, TIMEOUT, RUNNING)
        ).reshape(shape)
        self._obs = step.obs.reshape(*shape, -1)
        self._last_rows = rows
        self._new_rows.append(rows)
        if (
            self.num_rounds > self.random_rounds
        ):  # the rounds before make no updates, and the first of the others compiles
            self._seconds["learning"] += acted - began + started - acted
            self._seconds["simulating"] += received - started
            self._seconds["total"] += time.perf_counter() - began
            self._rounds_timed += 1
        self.num_rounds += 1

    def take_rows(self) -> Float[np.ndarray, "rounds envs members width"]:
        """The rows of the rounds since the last call."""
        rows, self._new_rows = self._new_rows, []
        shape = (0, self.num_envs, len(self.members), self.padded.width)
        return np.stack(rows) if rows else np.zeros(shape, np.float32)

    def arrays(self) -> Arrays:
        """All that the agents are, by name."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(self.state))
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def restore(self, arrays: Arrays, num_rounds: int, segments: Iterator[np.ndarray]) -> None:
        """Continue after `num_rounds` rounds. Environments begin anew: their state is not in a checkpoint."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(self.state)
        self.state = jax.tree_util.tree_unflatten(
            structure, [jnp.asarray(arrays[jax.tree_util.keystr(path)]) for path, _ in leaves]
        )
        first = 0
        for rows in segments:
            flat = np.moveaxis(rows, 2, 0).reshape(len(self.members), -1, self.padded.width)
            self._replay = _insert(self._replay, flat, np.int32(first * self.num_envs))
            first += len(rows)
            self._last_rows = rows[-1]  # the next round writes them again, in the same place
        self.num_rounds = num_rounds
        self._obs = None

    def snapshot(self) -> Arrays:
        """All members' policies, and what the last updates measured."""
        policy, metrics = jax.device_get((self.state.policy.params, self.metrics))
        arrays = {
            f"layers/{i}/{name}": np.asarray(a) for i, layer in enumerate(policy) for name, a in layer._asdict().items()
        }
        return arrays | {f"metrics/{name}": np.asarray(a) for name, a in (metrics._asdict() if metrics else {}).items()}

    def policy(self, snapshot: Arrays, environment: int, seeds: Sequence[int] | None = None) -> Policy:
        """An environment's agents of all seeds, or of some, in its own sizes."""
        size = self.sizes[environment]
        rows = [
            i for i, m in enumerate(self.members) if m.environment == environment and (seeds is None or m.seed in seeds)
        ]
        heads = [*range(size.action_dim), *range(self.padded.action_dim, self.padded.action_dim + size.action_dim)]
        num_layers = len(self.sac.hidden) + 1
        kernels = [snapshot[f"layers/{i}/kernel"][rows] for i in range(num_layers)]
        biases = [snapshot[f"layers/{i}/bias"][rows] for i in range(num_layers)]
        kernels[0] = kernels[0][:, : size.obs_dim]
        kernels[-1], biases[-1] = kernels[-1][..., heads], biases[-1][..., heads]
        layers = tuple(Layer(*layer) for layer in zip(kernels, biases, strict=True))
        shift = np.zeros((len(rows), size.obs_dim), np.float32)
        return Policy("tanh-gaussian", layers, shift, np.ones_like(shift), environment=self.specs[environment])

    def speed(self) -> Row:
        """Steps per second of one agent, and where the time of a round went, over the rounds that learned."""
        total = self._seconds["total"] or float("nan")
        simulating, learning = self._seconds["simulating"] / total, self._seconds["learning"] / total
        return {
            "steps_per_second": self._rounds_timed * self.num_envs / total if self._rounds_timed else 0.0,
            "num_members": len(self.members),
            "waiting_for_simulation": simulating if self._rounds_timed else 0.0,
            "waiting_for_learning": learning if self._rounds_timed else 0.0,
            "bound_by": "simulation" if simulating > learning else "learning",
        }


def _stream(keys: Array, stream: int, number: Array) -> Array:
    """A key per member for one purpose in one round. Stream 0 initialises the networks."""
    return jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, stream), number))(keys)


@partial(jax.jit, static_argnums=0)
def _explore(num_envs: int, mask: Array, keys: Array, number: Array) -> Float[Array, "envs members action"]:
    """Uniform actions."""

    def one(mask: Array, key: Array) -> Array:
        # A key per dimension: a padded member draws what it draws alone.
        dims = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(mask)))
        return (
            jax.vmap(lambda k: jax.random.uniform(k, (num_envs,), minval=-1.0, maxval=1.0), out_axes=-1)(dims)
            * mask[None]
        )

    return jax.vmap(one, out_axes=1)(mask, _stream(keys, 1, number))


@jax.jit
def _act(policy: Any, obs: Array, mask: Array, keys: Array, number: Array) -> Float[Array, "envs members action"]:
    return jax.vmap(SAC.act, in_axes=(0, 1, 0, 0), out_axes=1)(policy, obs, mask, _stream(keys, 1, number))


@partial(jax.jit, donate_argnums=0)
def _insert(replay: Array, rows: Float[Array, "members rows width"], first: Array) -> Array:
    return jax.lax.dynamic_update_slice(replay, rows, (0, first, 0))


@partial(jax.jit, donate_argnums=0)
def _absorb(replay: Array, rows: Float[Array, "envs members width"], number: Array) -> Array:
    """The rows of the round before `number`, put behind those of the earlier ones."""
    return _insert(replay, jnp.swapaxes(rows, 0, 1), (number - 1) * len(rows))


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _learn(
    sac: SAC, state: State, replay: Array, rows: Array, mask: Array, keys: Array, number: Array
) -> tuple[State, Array, Metrics]:
    """Absorb the last round's rows, then one update per step of a round. The old state's and replay's memory is reused."""
    replay = _absorb(replay, rows, number)
    advance = partial(sac.advance, num_rows=number * len(rows), num_updates=len(rows))
    state, metrics = jax.vmap(lambda s, r, k, m: advance(s, r, key=k, action_mask=m))(
        state, replay, _stream(keys, 2, number), mask
    )
    return state, replay, metrics


class Evaluations:
    """Deterministic episodes beside training. `curve` gets a row per environment, seed and evaluated round."""

    def __init__(self, rollouts: Rollouts, training: Training, schedule: Schedule, curve: list[Row]):
        self.curve = curve
        self._rollouts, self._training, self._schedule = rollouts, training, schedule
        self._pending: list[tuple[list[Row], Future[list[Episode]]]] = []

    def submit(self, num_rounds: int, snapshot: Arrays) -> None:
        """Evaluate every member's policy, except in environments where the curve has this evaluation already."""
        step = num_rounds * self._training.num_envs
        episodes = self._schedule.evaluation_episodes
        done = {row["environment"] for row in self.curve if row["step"] == step}
        for index, spec in enumerate(self._training.specs):
            label = environments.short_name(spec)
            if label in done:
                continue
            rows: list[Row] = []
            for number, member in enumerate(self._training.members):
                if member.environment == index:
                    metrics = {
                        k.removeprefix("metrics/"): float(v[number])
                        for k, v in snapshot.items()
                        if k.startswith("metrics/")
                    }
                    rows.append({"environment": label, "step": step, "seed": member.seed, **metrics})
            first_seed = EVALUATION_SEED + num_rounds * episodes
            jobs = [(m, first_seed + e) for m in range(len(rows)) for e in range(episodes)]
            self._pending.append((rows, self._rollouts.submit(self._training.policy(snapshot, index), spec, jobs)))

    def gather(self, wait: bool) -> None:
        """Move what is done, or with `wait` everything, to the curve."""
        ready = [(rows, future) for rows, future in self._pending if wait or future.done()]
        self._pending = [pair for pair in self._pending if pair not in ready]
        for rows, future in ready:
            episodes = future.result()
            for member, row in enumerate(rows):
                row.update(_statistics([episode for episode in episodes if episode.member == member]))
                self.curve.append(row)
        self.curve.sort(key=lambda row: (row["environment"], row["step"], row["seed"]))


def _statistics(episodes: Sequence[Episode]) -> Row:
    returns = np.array([episode.return_ for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    return {
        "episodes": len(episodes),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "length_mean": float(lengths.mean()),
        "length_min": int(lengths.min()),
    }


def _score(row: Row) -> float:
    """Mean less spread: an expert that sometimes falls is a poor one to imitate."""
    return row["return_mean"] - row["return_std"]


class Chosen(NamedTuple):
    policy: Policy
    report: Row


class Choice(NamedTuple):
    seed: int
    member: int
    expert: Chosen
    medium: Chosen


def _choose(
    curve: Sequence[Row], steps: int, schedule: Schedule, load: Callable[[Row], tuple[int, Policy]], rollouts: Rollouts
) -> Choice:
    """The expert, from the best late evaluations of all seeds, and the medium policy, from earlier ones of its seed."""

    def meet(rows: Sequence[Row], first_seed: int) -> list[Row]:
        policy = _stack([load(row)[1] for row in rows])
        assert policy.environment is not None
        jobs = [(m, first_seed + e) for m in range(len(rows)) for e in range(schedule.fresh_episodes)]
        episodes = rollouts.run(policy, policy.environment, jobs)
        return [_statistics([e for e in episodes if e.member == member]) for member in range(len(rows))]

    late = [row for row in curve if row["step"] >= (1 - schedule.candidate_share) * steps]
    finalists = sorted(late, key=_score, reverse=True)[: schedule.num_finalists]
    scores = meet(finalists, CHOOSING_SEED)
    best = max(range(len(finalists)), key=lambda index: _score(scores[index]))
    expert = finalists[best]
    third = scores[best]["return_mean"] / 3
    earlier = [row for row in curve if row["seed"] == expert["seed"] and row["step"] < expert["step"]] or [expert]
    medium = min(earlier, key=lambda row: abs(row["return_mean"] - third))
    reports = meet([expert, medium], REPORTING_SEED)

    def chosen(row: Row, report: Row, **more: Any) -> Chosen:
        return Chosen(
            load(row)[1], {"step": row["step"], "seed": row["seed"], "training": row, **more, "reported": report}
        )

    finals = [{"step": row["step"], "seed": row["seed"], **score} for row, score in zip(finalists, scores, strict=True)]
    member = load(expert)[0]
    return Choice(expert["seed"], member, chosen(expert, reports[0], finalists=finals), chosen(medium, reports[1]))


def _stored_policy(checkpoint: Checkpoint, training: Training, environment: int, row: Row) -> tuple[int, Policy]:
    """The member and the policy that a row of the curve evaluated."""
    snapshot = checkpoint.read_policies(row["step"] // training.num_envs)
    if snapshot is None:
        raise InputError(
            f"{checkpoint.folder}: the policies of step {row['step']} are damaged; remove the folder to start again"
        )
    return training.members.index(Member(environment, row["seed"])), training.policy(
        snapshot, environment, [row["seed"]]
    )


def _stack(policies: Sequence[Policy]) -> Policy:
    """One policy whose members are the given ones."""
    layers = tuple(
        Layer(*(np.concatenate(parts) for parts in zip(*layer, strict=True)))
        for layer in zip(*(policy.layers for policy in policies), strict=True)
    )
    shift, scale = (np.concatenate([getattr(policy, name) for policy in policies]) for name in ("shift", "scale"))
    return dataclasses.replace(policies[0], layers=layers, shift=shift, scale=scale)


def replay_dataset(
    rows: Float[np.ndarray, "rounds envs width"], padded: Layout, size: Layout, cuts: Sequence[int] = ()
) -> Dataset:
    """The replay of one agent as a dataset: episodes whole, in the order in which they began.

    The agent filled its buffer from `envs` environments in turn, so that neighbours in it belong to different episodes. Here each
    episode's rows stand together; episodes that began in the same round stand in the order of the environments. The file still
    runs from the first random episodes to the last skilled ones. Rows before a cut (a resumed run: environments began anew),
    and the last rows of all, end an episode by a timeout if nothing else ended it.
    """
    num_rounds, num_envs, _ = rows.shape
    end = rows[..., padded.end].copy()
    for last in (*(cut - 1 for cut in cuts if 0 < cut <= num_rounds), num_rounds - 1):
        end[last] = np.where(end[last] == RUNNING, TIMEOUT, end[last])
    began = np.zeros((num_rounds, num_envs), np.int64)
    began[1:] = np.where(end[:-1] != RUNNING, np.arange(1, num_rounds)[:, None], 0)
    began = np.maximum.accumulate(began, axis=0)
    number, env = np.indices(began.shape)
    order = np.lexsort((number.ravel(), env.ravel(), began.ravel()))
    flat, end = rows.reshape(-1, padded.width)[order], end.ravel()[order]
    transitions = Transitions(
        obs=flat[:, padded.obs][:, : size.obs_dim],
        action=flat[:, padded.action][:, : size.action_dim],
        reward=flat[:, padded.reward],
        next_obs=flat[:, padded.next_obs][:, : size.obs_dim],
        terminal=end == TERMINAL,
    )
    return Dataset(transitions, timeout=end == TIMEOUT)


def measure_speed(name: str = "halfcheetah", seconds: float = 10.0, num_members: int = 1, num_envs: int = 16) -> Row:
    """How fast `collect` trains here, beside the rate that the same machine's matrix products allow.

    `ratio` is the matrix products' share of the work rate: floating-point operations of the updates per second over those of
    XLA's own products of the hidden size, timed before and after in the same process.
    """
    sac = SAC()
    random_steps = 4 * sac.batch_size
    spec = _resolve([name])[0]
    with Training(sac, [spec], range(num_members), num_envs, 100_000 // num_envs, random_steps) as training:
        while training.num_rounds <= training.random_rounds + 1:
            training.advance()
        jax.block_until_ready(training.state)
        rates = [_product_rate(sac.hidden[-1], num_members)]
        first, began = training.num_rounds, time.perf_counter()
        while time.perf_counter() - began < seconds and training.num_rounds < 100_000 // num_envs:
            training.advance()
        jax.block_until_ready(training.state)
        elapsed = time.perf_counter() - began
        rates.append(_product_rate(sac.hidden[-1], num_members))
        updates = (training.num_rounds - first) * num_envs * num_members / elapsed
        flop = sac.update_flop(training.sizes[0])
        return {
            **training.speed(),
            "environment": name,
            "updates_per_second": updates,
            "flop_per_update": flop,
            "flop_per_second": flop * updates,
            "product_flop_per_second": max(rates),
            "ratio": flop * updates / max(rates),
            "device": jax.devices()[0].device_kind,
        }


def _product_rate(size: int, num_members: int) -> float:
    """Floating-point operations per second of XLA's product of square matrices, one per member; the best of a few tries."""
    repeats = 200
    x = jax.random.normal(jax.random.key(0), (num_members, size, size)) / size**0.5
    multiply = jax.jit(lambda x, w: jax.lax.fori_loop(0, repeats, lambda _, x: x @ w, x))
    multiply(x, x).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        multiply(x, x).block_until_ready()
        times.append(time.perf_counter() - began)
    return repeats * num_members * 2 * size**3 / min(times)


def _resolve(names: Sequence[str]) -> list[EnvironmentSpec]:
    specs = [environments.resolve(name) for name in names]
    for name, spec in zip(names, specs, strict=True):
        if spec.discrete:
            raise InputError(
                f"environment {name!r} has discrete actions; collect trains SAC, which needs a Box of them"
            )
    if not specs or len({environments.short_name(spec) for spec in specs}) < len(specs):
        raise InputError(f"collect: needs one or more different environments, not {list(names)}")
    return specs


def _check_request(
    specs: Sequence[EnvironmentSpec], steps: int, seeds: Sequence[int], num_envs: int, schedule: Schedule
) -> None:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"collect: needs one or more different seeds, none negative, not {list(seeds)}")
    if steps < 1 or num_envs < 1:
        raise InputError(f"collect: steps ({steps}) and num_envs ({num_envs}) must be at least 1")
    for name, value in dataclasses.asdict(schedule).items():
        if value <= 0:
            raise InputError(f"collect: {name} ({value}) must be positive")


def _claim(out: Path, specs: Sequence[EnvironmentSpec], resume: bool) -> list[Path]:
    """The folder of each environment; refused where there are files and nothing was said of resuming."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, cannot write a folder there")
    if out.is_dir() and any(out.iterdir()):
        if not resume:
            raise InputError(f"{out}: the folder is not empty; continue it with resume, or choose another")
        if not (out / "checkpoint").is_dir():
            raise InputError(f"{out}: holds no checkpoint to continue from; choose another folder")
    if len(specs) == 1:
        return [out]
    return [out / environments.short_name(spec).replace("/", "-").replace(":", "-") for spec in specs]


def _write_curve(folder: Path, rows: Sequence[Row]) -> None:
    with atomic_write(folder / "curve.jsonl") as temporary:
        temporary.write_text("".join(json_line(row) for row in rows), encoding="utf-8")


def _status(training: Training, curve: Sequence[Row], total_rounds: int) -> Status:
    speed = training.speed()
    rate = speed["steps_per_second"]
    left = (total_rounds - training.num_rounds) * training.num_envs
    latest: dict[str, list[Row]] = {}
    for row in curve:
        newest = latest.setdefault(row["environment"], [row])
        if row["step"] > newest[0]["step"]:
            latest[row["environment"]] = [row]
        elif row is not newest[0]:
            newest.append(row)
    temperatures = [row["temperature"] for rows in latest.values() for row in rows if "temperature" in row]
    return Status(
        step=training.num_rounds * training.num_envs,
        steps=total_rounds * training.num_envs,
        steps_per_second=rate,
        simulating=speed["waiting_for_simulation"],
        learning=speed["waiting_for_learning"],
        seconds_left=left / rate if rate else float("inf"),
        returns={name: float(np.mean([row["return_mean"] for row in rows])) for name, rows in latest.items()},
        lengths={name: float(np.mean([row["length_mean"] for row in rows])) for name, rows in latest.items()},
        temperature=float(np.mean(temperatures)) if temperatures else float("nan"),
    )


@contextmanager
def _progress(progress: bool | Progress | None) -> Iterator[Progress]:
    """The given function, or a bar on stderr."""
    if callable(progress):
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    with Bar(BarColumn(bar_width=20), TextColumn("{task.description}"), console=console, disable=not show) as bar:
        task = bar.add_task("compiling", total=None)
        yield lambda status: bar.update(task, description=str(status), completed=status.step, total=status.steps)
