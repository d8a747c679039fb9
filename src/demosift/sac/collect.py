"""`collect` trains SAC agents and keeps an expert, a medium policy and the whole replay.

All agents, every seed of every environment, train together (`training.py`). Every policy that is evaluated in training
is kept, and at the end one of them is chosen as the expert (`choosing.py`).
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from demosift.data import write_dataset
from demosift.files import (
    atomic_write,
    check_links,
    check_regular,
    is_partial,
    json_line,
    own_folder,
    provenance,
    sweep,
    write_json,
)
from demosift.learning.runner import Callback, Pending, run
from demosift.learning.runner import Schedule as RunSchedule
from demosift.policy import Policy
from demosift.ranges import NUMBER, POSITIVE, PROCESSES, SEED, STEPS, UNIT, check_once
from demosift.results.checkpoint import Arrays, Checkpoint, Note
from demosift.sac.agent import SAC
from demosift.sac.checkpoint import ReplayCheckpoints
from demosift.sac.choosing import EVALUATION_SEED, Row, Schedule, candidates, choose, statistics
from demosift.sac.replay import replay_dataset
from demosift.sac.status import Show, show_status, status
from demosift.sac.training import Member, Training
from demosift.simulation import environments
from demosift.simulation.cores import available_cores
from demosift.simulation.evaluation import Evaluator
from demosift.simulation.simulate import Rollouts
from demosift.types import EnvironmentSpec, InputError

SHOW_SECONDS = 1.0
RESULTS = ("expert.safetensors", "medium.safetensors", "replay.hdf5", "curve.jsonl", "config.json")


@dataclass(frozen=True)
class Collected:
    """What a call did. If it is not `finished`, the time limit came first: call again with `resume`."""

    finished: bool
    step: int
    speed: Row
    results: dict[str, Row]  # by environment: how the expert and the medium policy were chosen and what they reach


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
    progress: bool | Show | None = None,
) -> Collected:
    """Train SAC in the named environments, with all environments, settings and seeds together, and write the results.

    Every environment gets an agent for each setting and seed; `sac` may give each environment its own settings. These
    files are written to `out`, or with several environments to a subfolder for each:

        expert.safetensors   the best late policy of all agents, chosen and reported on different fresh episodes
        medium.safetensors   the earlier policy of the same agent whose return is nearest a third of the expert's
        replay.hdf5          every transition of that agent in the D4RL layout; see `replay_dataset` for the order
        curve.jsonl          a line per evaluation and agent
        config.json          everything that was asked for, what it ran on, and the result

    `steps` counts those of one agent and is rounded up to whole rounds of `num_envs`. Checkpoints go to
    `out/checkpoint`, from which `resume` continues. With `keep_checkpoint` a finished run can be resumed, too, to more
    steps. After `time_limit` seconds the run writes a checkpoint and returns unfinished. `progress`: True shows a bar,
    None only on a terminal; a function is called with a `Status` about every second.
    """
    began = time.monotonic()
    specs = _resolve(names)
    settings = _settings(sac, names)
    seeds = [int(seed) for seed in seeds]
    with ExitStack() as stack:
        stack.enter_context(own_folder(out))
        plan = Plan(specs, _claim(Path(out), specs, resume), steps, seeds, num_envs, settings, schedule)
        plan.check()
        sweep(*plan.folders, Path(out) / "checkpoint")
        checkpoints = stack.enter_context(ReplayCheckpoints(Path(out) / "checkpoint"))
        if resume and (found := checkpoints.read()) is not None:
            plan.check_continues(found)
        checkpoints.folder.path.mkdir(parents=True, exist_ok=True)
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
        evaluator = AgentEvaluator(schedule, num_envs, rollouts)
        with show_status(progress) as show:
            collector = Collector(plan, training, checkpoints, evaluator, began, show)
            outcome = run(
                training,
                RunSchedule(
                    plan.num_rounds,
                    chunk=1,
                    checkpoint_seconds=schedule.checkpoint_seconds,
                    wait_for_evaluations=False,
                ),
                evaluator=evaluator,
                evaluated=lambda num_rounds: num_rounds in checkpoints.evaluated_rounds(),
                checkpoints=checkpoints,
                callbacks=[collector],
                stopped=lambda: time_limit is not None and time.monotonic() - began > time_limit,
            )
            collector.show()
        speed = training.speed()
        if not outcome.finished:
            return Collected(False, outcome.position * num_envs, speed, {})
        if len(outcome.failures) == len(training):
            raise InputError(f"collect: every agent diverged; {next(iter(outcome.failures.values()))}")

        training.close()  # its processes would compete with the last evaluations
        collector.gather(wait=True)
        rollouts.close()
        rollouts = stack.enter_context(Rollouts(num_workers))  # nothing else needs the cores now
        results, lost = {}, []
        for index, label in enumerate(plan.labels):
            if not candidates(collector.of(label), plan.steps, schedule):
                lost.append(label)
                continue
            made = {"command": _command(plan), "speed": speed, "wall_seconds": round(collector.wall_seconds, 1)}
            results[label] = _finish(plan, index, training, rollouts, checkpoints, collector, made)
        if lost:
            others = f"; the files of {', '.join(results)} are written" if results else ""
            raise InputError(f"collect: every agent of {', '.join(lost)} diverged{others}")
        if not keep_checkpoint:
            checkpoints.discard()
        return Collected(True, outcome.position * num_envs, speed, results)


def _command(plan: "Plan") -> str:
    """The command that makes the same run."""
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
        if not self.seeds:
            raise InputError("collect: needs one or more seeds")
        check_once("collect: seeds", self.seeds)
        SEED.check("collect: seeds", *self.seeds)
        shapes = {(setting.hidden, setting.batch_size) for own in self.settings for setting in own}
        if not all(self.settings) or len(shapes) > 1:
            raise InputError("collect: needs one or more settings, of the same layers and batch size")
        for own in self.settings:
            check_once("collect: settings", own)
            UNIT.check("collect: discount", *(setting.discount for setting in own))
            NUMBER.check("collect: target entropy", *(setting.target_entropy for setting in own))
        STEPS.check("collect: steps", self.steps)
        PROCESSES.check("collect: num_envs", self.num_envs)
        for name, value in dataclasses.asdict(self.schedule).items():
            POSITIVE.check(f"collect: {name}", value)

    def check_continues(self, found: Checkpoint) -> None:
        differing = [key for key, value in self.identity.items() if found.note["identity"].get(key) != value]
        if differing:
            raise InputError(f"collect: the checkpoint is of another run: its {differing[0]} are not those asked for")
        if found.position > self.num_rounds:
            done = found.position * self.num_envs
            raise InputError(f"collect: the checkpoint has {done} steps already, more than the {self.steps} asked for")


def _finish(
    plan: Plan,
    index: int,
    training: Training,
    rollouts: Rollouts,
    checkpoints: ReplayCheckpoints,
    collector: "Collector",
    made: Row,
) -> Row:
    """Choose one environment's expert and medium policy and write its files, config.json last."""
    folder, spec, label = plan.folders[index], plan.specs[index], plan.labels[index]
    curve = collector.of(label)

    def load(row: Row) -> Policy:
        snapshot = checkpoints.read_policies(row["step"] // plan.num_envs)
        if snapshot is None:
            where = checkpoints.folder.path
            raise InputError(f"{where}: the policies of step {row['step']} are damaged; start again in another folder")
        return training.policy(snapshot, index, [training.members.index(Member(index, row["setting"], row["seed"]))])

    choice = choose(curve, plan.steps, plan.schedule, load, rollouts)
    member = training.members.index(Member(index, choice.setting, choice.seed))
    rows = np.concatenate([*checkpoints.rows(slice(member, member + 1))])[:, :, 0]
    replay = replay_dataset(rows, training.padded, training.sizes[index], collector.cuts)
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
        **made,
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


class AgentEvaluator(Evaluator):
    """Plays new episodes at every evaluation, with reset seeds that training never uses."""

    def __init__(self, schedule: Schedule, num_envs: int, rollouts: Rollouts) -> None:
        every = max(1, schedule.evaluate_every // num_envs)
        super().__init__(None, every, schedule.evaluation_episodes, pool=rollouts)
        self.num_episodes = schedule.evaluation_episodes

    def seeds(self, iteration: int) -> list[int]:
        first = EVALUATION_SEED + iteration * self.num_episodes
        return list(range(first, first + self.num_episodes))


class Collector(Callback):
    """Keeps the curve, a row per agent and evaluation, and what a checkpoint needs to continue it."""

    def __init__(
        self,
        plan: Plan,
        training: Training,
        checkpoints: ReplayCheckpoints,
        evaluator: AgentEvaluator,
        began: float,
        show: Show,
    ) -> None:
        self.plan, self.training, self.checkpoints, self.evaluator = plan, training, checkpoints, evaluator
        self.began, self.earlier, self._show, self._shown = began, 0.0, show, began
        self.curve: list[Row] = []
        self.cuts: list[int] = []  # rounds from which a killed run continued with new episodes
        self._metrics: dict[int, dict[str, np.ndarray]] = {}  # of the snapshots under evaluation, by round
        self._again: list[tuple[int, list[int], Pending]] = []  # evaluations that a killed run did not finish
        training.on_snapshot = self.keep

    @property
    def wall_seconds(self) -> float:
        return self.earlier + time.monotonic() - self.began

    def of(self, label: str) -> list[Row]:
        return [row for row in self.curve if row["environment"] == label]

    def keep(self, num_rounds: int, snapshot: Arrays) -> None:
        self.checkpoints.keep_policies(num_rounds, snapshot)
        self._metrics[num_rounds] = metrics_of(snapshot)

    def on_start(self, position: int, note: Note) -> None:
        if not note:
            return
        self.curve, self.cuts = note["curve"], [*note["cuts"], *([] if self.training.goes_on else [position])]
        self.earlier = note["wall_seconds"]
        self.training.restore_rows(self.checkpoints.rows())
        failed = {int(member) for member in note.get("failures", {})}
        for num_rounds in self.checkpoints.evaluated_rounds():
            if num_rounds > position or (snapshot := self.checkpoints.read_policies(num_rounds)) is None:
                continue
            if not self.training.fits(snapshot):
                raise InputError(f"the checkpoint does not fit this run: the policies of round {num_rounds}")
            self._metrics[num_rounds] = metrics_of(snapshot)
            done = {row["environment"] for row in self.curve if row["step"] == num_rounds * self.plan.num_envs}
            for index, label in enumerate(self.plan.labels):
                places = [place for place in self.training.places(index) if place not in failed]
                if places and label not in done:
                    policy = self.training.policy(snapshot, index, places)
                    pending = self.evaluator.submit(policy, num_rounds, policy.environment)
                    self._again.append((num_rounds, places, pending))

    def on_advance(self, position: int) -> None:
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self.gather(wait=False)
            self.show()

    def show(self) -> None:
        self._show(status(self.training, self.curve, self.plan.num_rounds))
        self._shown = time.monotonic()

    def on_evaluation(self, position: int, rows: list[Row]) -> None:
        for row in rows:
            member = self.training.members[row["member"]]
            told = {
                "environment": self.plan.labels[member.environment],
                "step": position * self.plan.num_envs,
                "setting": member.setting,
                "seed": member.seed,
                **{name: float(values[row["member"]]) for name, values in self._metrics[position].items()},
                **statistics(row["returns"], row["lengths"]),
            }
            self.curve.append(dict(sorted(told.items())))  # the order in which a checkpoint gives it back
        self.curve.sort(key=lambda row: (row["environment"], row["step"], row["setting"], row["seed"]))

    def gather(self, wait: bool) -> None:
        """Add the repeated evaluations that are done to the curve, or with `wait` all of them."""
        ready = [each for each in self._again if wait or each[2].done()]
        self._again = [each for each in self._again if each not in ready]
        for num_rounds, places, pending in ready:
            pairs = zip(places, pending.result(), strict=True)
            self.on_evaluation(num_rounds, [{**row, "member": place} for place, row in pairs])

    def on_checkpoint(self, position: int, note: Note) -> None:
        self.gather(wait=False)
        told = {"identity": self.plan.identity, "curve": list(self.curve), "cuts": list(self.cuts)}
        note |= {**told, "wall_seconds": self.wall_seconds}
        for label, folder in zip(self.plan.labels, self.plan.folders, strict=True):
            _write_curve(folder, self.of(label))


def metrics_of(snapshot: Arrays) -> dict[str, np.ndarray]:
    prefix = "metrics/"
    return {name.removeprefix(prefix): array for name, array in snapshot.items() if name.startswith(prefix)}


def _resolve(names: Sequence[str]) -> list[EnvironmentSpec]:
    specs = [environments.resolve(name) for name in names]
    for name, spec in zip(names, specs, strict=True):
        if spec.discrete:
            raise InputError(
                f"environment {name!r} has discrete actions; collect trains SAC, which needs continuous ones"
            )
    if not specs or len({environments.short_name(spec) for spec in specs}) < len(specs):
        raise InputError(f"collect: needs one or more different environments, not {list(names)}")
    return specs


def _settings(sac: SAC | Sequence[SAC] | Mapping[str, Sequence[SAC]], names: Sequence[str]) -> list[list[SAC]]:
    """The settings of each environment."""
    if isinstance(sac, Mapping):
        if set(sac) != set(names):
            raise InputError(f"collect: settings for {', '.join(sac)}, but the environments are {', '.join(names)}")
        return [list(sac[name]) for name in names]
    return [[sac] if isinstance(sac, SAC) else list(sac)] * len(names)


def _claim(out: Path, specs: Sequence[EnvironmentSpec], resume: bool) -> list[Path]:
    """The folder of each environment. A folder that holds files is refused, unless the run is to be resumed."""
    if any(not is_partial(path) for path in out.iterdir()):
        if not resume:
            raise InputError(f"{out}: the folder is not empty; continue it with resume, or choose another")
        if not (out / "checkpoint").is_dir():
            raise InputError(f"{out}: holds no checkpoint to continue from; choose another folder")
        check_links(out, out / "checkpoint")  # which would be written through
    folders = [out / environments.short_name(spec).replace("/", "-").replace(":", "-") for spec in specs]
    folders = folders if len(specs) > 1 else [out]
    for folder, name in itertools.product(folders, RESULTS):
        check_regular(folder / name)  # which would be found when it is written, after training
    return folders


def _write_curve(folder: Path, rows: Sequence[Row]) -> None:
    with atomic_write(folder / "curve.jsonl") as temporary:
        temporary.write_text("".join(json_line(row) for row in rows), encoding="utf-8")
