"""`collect`: trains SAC agents and keeps what they leave: an expert, a medium policy, and the whole replay.

All agents, every seed of every environment, train together (`training.py`). Every policy that is evaluated on the way
is kept, and at the end one of them is chosen to be the expert (`choosing.py`).
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from demosift.data import write_dataset, write_json
from demosift.files import atomic_write, json_line, provenance
from demosift.policy import Policy
from demosift.sac.agent import SAC
from demosift.sac.checkpoint import Arrays, Checkpoint, Note
from demosift.sac.choosing import EVALUATION_SEED, Row, Schedule, choose, statistics
from demosift.sac.replay import replay_dataset
from demosift.sac.status import Progress, progress_bar, status
from demosift.sac.training import Member, Training
from demosift.simulation import environments
from demosift.simulation.simulate import Episode, Rollouts, available_cores
from demosift.types import EnvironmentSpec, InputError

SHOW_SECONDS = 1.0


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
    sac: SAC | Sequence[SAC] | Mapping[str, Sequence[SAC]] = SAC(),  # noqa: B008  frozen
    schedule: Schedule = Schedule(),  # noqa: B008  frozen
    resume: bool = False,
    keep_checkpoint: bool = False,
    time_limit: float | None = None,
    num_workers: int | None = None,
    progress: bool | Progress | None = None,
) -> Collected:
    """Train SAC in the named environments, all environments, settings and seeds together, and write what it makes.

    Every environment gets an agent for each setting and seed; `sac` may name the settings of each environment.

    In `out`, or with several environments in a folder of `out` for each:

        expert.safetensors   the best late policy of all agents, chosen and reported on different fresh episodes
        medium.safetensors   of the same agent, the earlier policy whose return is nearest a third of the expert's
        replay.hdf5          every transition of that agent in the D4RL layout; see `replay_dataset` for the order
        curve.jsonl          a line per evaluation and agent
        config.json          everything that was asked for, what it ran on, what came out

    `steps` count per agent and are rounded up to whole rounds of `num_envs`. The run checkpoints to `out/checkpoint`;
    with `resume` it continues there, also to more steps than before where `keep_checkpoint` kept the folder of a
    finished run. After `time_limit` seconds it checkpoints and returns unfinished. `progress`: True or None for a bar
    (None: only on a terminal), or a function that is given a `Status` now and then.
    """
    began = time.monotonic()
    specs = _resolve(names)
    settings = _settings(sac, names)
    seeds = [int(seed) for seed in seeds]
    plan = Plan(specs, _claim(Path(out), specs, resume), steps, seeds, num_envs, settings, schedule)
    plan.check()
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint(Path(out) / "checkpoint"))
        found = checkpoint.read() if resume else None
        note: Note = {"identity": plan.identity, "curve": [], "cuts": [], "wall_seconds": 0.0}
        if found is not None:
            note = found[1]
            plan.check_continues(note)
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        training = stack.enter_context(
            Training(
                settings,
                specs,
                plan.seeds,
                num_envs,
                plan.num_rounds,
                schedule.random_steps,
                num_workers,
                schedule.annealed_share,
            )
        )
        # Half of the cores: evaluation is in no hurry, and the simulators are.
        rollouts = stack.enter_context(Rollouts(num_workers or max(1, available_cores() // 2)))
        evaluations = Evaluations(rollouts, training, schedule, note["curve"])
        if found is not None:
            training.restore(found[0], note["num_rounds"], checkpoint.read_rows())
            note["cuts"].append(note["num_rounds"])
            for num_rounds in checkpoint.evaluated_rounds():
                if num_rounds <= training.num_rounds and (snapshot := checkpoint.read_policies(num_rounds)) is not None:
                    evaluations.submit(num_rounds, snapshot)  # only what the curve does not have yet
        with progress_bar(progress) as show:
            _train(plan, training, evaluations, checkpoint, note, began, time_limit, show)
        speed = training.speed()
        if training.num_rounds < plan.num_rounds:
            return Collected(False, training.num_rounds * num_envs, speed, {})

        training.close()  # its processes would compete with the last evaluations
        evaluations.gather(wait=True)
        rollouts.close()
        rollouts = stack.enter_context(Rollouts(num_workers))  # nothing else needs the cores now
        results = {}
        for index, label in enumerate(plan.labels):
            wall_seconds = round(note["wall_seconds"] + time.monotonic() - began, 1)
            run = {"command": _command(plan), "speed": speed, "wall_seconds": wall_seconds}
            results[label] = _finish(plan, index, training, rollouts, checkpoint, note, run)
        if not keep_checkpoint:
            checkpoint.remove()
        return Collected(True, training.num_rounds * num_envs, speed, results)


def _command(plan: "Plan") -> str:
    """What makes this again, as one would type it."""
    schedule, seeds = plan.schedule, plan.seeds
    discounts = dict.fromkeys(setting.discount for own in plan.settings for setting in own)
    entropies = [[*dict.fromkeys(setting.target_entropy for setting in own)] for own in plan.settings]
    if all(own == entropies[0] for own in entropies):
        told = [str(entropy) for entropy in entropies[0]]
    else:
        told = [f"{name}={entropy}" for name, own in zip(plan.labels, entropies, strict=True) for entropy in own]
    return (
        f"demosift collect {' '.join(plan.labels)} --steps {plan.num_rounds * plan.num_envs} --seed {seeds[0]} "
        f"--seeds {len(seeds)} --evaluate-every {schedule.evaluate_every} "
        f"--episodes {schedule.evaluation_episodes} --discount {' '.join(map(str, discounts))} "
        f"--target-entropy {' '.join(told)} --out DIR"
    )


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    specs: Sequence[EnvironmentSpec]
    folders: Sequence[Path]
    steps: int
    seeds: Sequence[int]
    num_envs: int
    settings: Sequence[Sequence[SAC]]  # of each environment
    schedule: Schedule

    @property
    def labels(self) -> list[str]:
        return [environments.short_name(spec) for spec in self.specs]

    @property
    def num_rounds(self) -> int:
        return -(-self.steps // self.num_envs)

    @property
    def identity(self) -> Row:
        """What must stay the same for a run to be continued."""
        identity = {
            "environments": [dataclasses.asdict(spec) for spec in self.specs],
            "seeds": list(self.seeds),
            "num_envs": self.num_envs,
            "random_steps": self.schedule.random_steps,
            "settings": [[dataclasses.asdict(setting) for setting in own] for own in self.settings],
        }
        return json.loads(json.dumps(identity))  # as a checkpoint gives it back

    def check(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"collect: needs one or more different seeds, none negative, not {self.seeds}")
        shapes = {(setting.hidden, setting.batch_size) for own in self.settings for setting in own}
        if not all(self.settings) or len(shapes) > 1:
            raise InputError("collect: needs one or more settings, of the same layers and batch size")
        if self.steps < 1 or self.num_envs < 1:
            raise InputError(f"collect: steps ({self.steps}) and num_envs ({self.num_envs}) must be at least 1")
        for name, value in dataclasses.asdict(self.schedule).items():
            if value <= 0:
                raise InputError(f"collect: {name} ({value}) must be positive")

    def check_continues(self, note: Note) -> None:
        differing = [key for key, value in self.identity.items() if note["identity"].get(key) != value]
        if differing:
            raise InputError(f"collect: the checkpoint is of another run: its {differing[0].replace('_', ' ')} differs")
        if note["num_rounds"] > self.num_rounds:
            done = note["num_rounds"] * self.num_envs
            raise InputError(f"collect: the checkpoint has {done} steps already, more than the {self.steps} asked for")


def _train(
    plan: Plan,
    training: Training,
    evaluations: "Evaluations",
    checkpoint: Checkpoint,
    note: Note,
    began: float,
    time_limit: float | None,
    show: Progress,
) -> None:
    """Rounds until the plan or the time limit is reached, with evaluations and checkpoints; a checkpoint comes last."""
    evaluate_rounds = max(1, plan.schedule.evaluate_every // plan.num_envs)
    wall_before = note["wall_seconds"]

    def write_checkpoint() -> None:
        evaluations.gather(wait=False)
        note["wall_seconds"] = wall_before + time.monotonic() - began
        checkpoint.write(training.num_rounds, training.arrays(), training.take_rows(), note)
        for label, folder in zip(plan.labels, plan.folders, strict=True):
            _write_curve(folder, evaluations.of(label))

    def evaluate() -> None:
        snapshot = training.snapshot()
        checkpoint.write_policies(training.num_rounds, snapshot)
        evaluations.submit(training.num_rounds, snapshot)

    last_checkpoint = last_shown = time.monotonic()
    while training.num_rounds < plan.num_rounds:
        training.advance()
        if training.num_rounds % evaluate_rounds == 0:
            evaluate()
        now = time.monotonic()
        if now - last_shown > SHOW_SECONDS:
            evaluations.gather(wait=False)
            show(status(training, note["curve"], plan.num_rounds))
            last_shown = now
        if now - last_checkpoint > plan.schedule.checkpoint_seconds:
            write_checkpoint()
            last_checkpoint = now
        if time_limit is not None and now - began > time_limit:  # after a round, so that every piece gets somewhere
            break
    if training.num_rounds == plan.num_rounds and training.num_rounds not in evaluations.rounds:
        evaluate()
    write_checkpoint()
    show(status(training, note["curve"], plan.num_rounds))
    checkpoint.flush()
    note["wall_seconds"] = wall_before


def _finish(
    plan: Plan, index: int, training: Training, rollouts: Rollouts, checkpoint: Checkpoint, note: Note, run: Row
) -> Row:
    """Choose one environment's expert and medium policy and write its files; config.json comes last."""
    folder, spec, label = plan.folders[index], plan.specs[index], plan.labels[index]
    curve = [row for row in note["curve"] if row["environment"] == label]

    def load(row: Row) -> Policy:
        snapshot = checkpoint.read_policies(row["step"] // plan.num_envs)
        if snapshot is None:
            raise InputError(f"{checkpoint.folder}: the policies of step {row['step']} are damaged; begin elsewhere")
        return training.policy(snapshot, index, [Member(index, row["setting"], row["seed"])])

    choice = choose(curve, plan.steps, plan.schedule, load, rollouts)
    member = training.members.index(Member(index, choice.setting, choice.seed))
    rows = np.concatenate([*checkpoint.read_rows(slice(member, member + 1))])[:, :, 0]
    replay = replay_dataset(rows, training.padded, training.sizes[index], note["cuts"])
    attributes = {"algorithm": "sac", "setting": choice.setting, "seed": choice.seed, "steps": len(replay)}
    result = {"expert": choice.expert.report, "medium": choice.medium.report}
    config = {
        **plan.identity,
        "settings": plan.identity["settings"][index],
        "environment": dataclasses.asdict(spec),
        "steps": plan.steps,
        "schedule": dataclasses.asdict(plan.schedule),
        **provenance(),
        "device": jax.devices()[0].device_kind,
        **run,
        **result,
    }
    _write_curve(folder, curve)
    write_dataset(dataclasses.replace(replay, environment=spec, attributes=attributes), folder / "replay.hdf5")
    for role, chosen in (("medium", choice.medium), ("expert", choice.expert)):
        report = {key: json.dumps(value) for key, value in chosen.report.items()}
        metadata = {"algorithm": "sac", "role": role, **report}
        dataclasses.replace(chosen.policy, metadata=metadata).save(folder / f"{role}.safetensors")
    write_json(folder / "config.json", config)
    return result


class Evaluations:
    """Deterministic episodes beside training. `curve` gets a row per agent and evaluated round."""

    def __init__(self, rollouts: Rollouts, training: Training, schedule: Schedule, curve: list[Row]):
        self.curve = curve
        self.rounds: set[int] = set()
        self._rollouts, self._training, self._schedule = rollouts, training, schedule
        self._pending: list[tuple[list[Row], Future[list[Episode]]]] = []

    def submit(self, num_rounds: int, snapshot: Arrays) -> None:
        """Evaluate every member's policy, except in environments where the curve has this evaluation already."""
        self.rounds.add(num_rounds)
        step = num_rounds * self._training.num_envs
        episodes = self._schedule.evaluation_episodes
        metrics = {name.removeprefix("metrics/"): a for name, a in snapshot.items() if name.startswith("metrics/")}
        done = {row["environment"] for row in self.curve if row["step"] == step}
        for index, spec in enumerate(self._training.specs):
            label = environments.short_name(spec)
            if label in done:
                continue
            rows: list[Row] = [
                {"environment": label, "step": step, "setting": member.setting, "seed": member.seed}
                | {name: float(values[number]) for name, values in metrics.items()}
                for number, member in enumerate(self._training.members)
                if member.environment == index
            ]
            first_seed = EVALUATION_SEED + num_rounds * episodes
            jobs = [(m, first_seed + e) for m in range(len(rows)) for e in range(episodes)]
            self._pending.append((rows, self._rollouts.submit(self._training.policy(snapshot, index), spec, jobs)))

    def of(self, label: str) -> list[Row]:
        return [row for row in self.curve if row["environment"] == label]

    def gather(self, wait: bool) -> None:
        """Move what is done, or with `wait` everything, to the curve."""
        ready = [(rows, future) for rows, future in self._pending if wait or future.done()]
        self._pending = [pair for pair in self._pending if pair not in ready]
        for rows, future in ready:
            episodes = future.result()
            for member, row in enumerate(rows):
                row.update(statistics([episode for episode in episodes if episode.member == member]))
                self.curve.append(row)
        self.curve.sort(key=lambda row: (row["environment"], row["step"], row["setting"], row["seed"]))


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


def _settings(sac: SAC | Sequence[SAC] | Mapping[str, Sequence[SAC]], names: Sequence[str]) -> list[list[SAC]]:
    """Those of each environment."""
    if isinstance(sac, Mapping):
        if set(sac) != set(names):
            raise InputError(f"collect: settings for {', '.join(sac)}, but the environments are {', '.join(names)}")
        return [list(sac[name]) for name in names]
    return [[sac] if isinstance(sac, SAC) else list(sac)] * len(names)


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
