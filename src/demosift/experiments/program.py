"""Cells that train together as one program, which is evaluated beside training and can be continued at any point."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np

from demosift.algorithms import Algorithm
from demosift.data.normaliser import Normaliser
from demosift.experiments.cells import Cell
from demosift.experiments.prepare import DECIMALS, Prepared
from demosift.files import canonical, plain
from demosift.learning.members import Member
from demosift.learning.prepared import InMemory, Kept
from demosift.learning.pretraining import Stopped
from demosift.learning.program import Program
from demosift.learning.runner import Callback, HostMetrics, Row, Schedule, run
from demosift.learning.stages import together
from demosift.results.checkpoint import Checkpoints, Note
from demosift.simulation.evaluation import Evaluator
from demosift.simulation.simulate import Rollouts
from demosift.types import Demonstrations

CHUNK = {"cpu": 100}  # iterations in one call
CHUNK_ON_DEVICE = 1000  # the same on any other backend
CHECKPOINT_SECONDS = 60.0

PREPARING: dict[str, Lock] = {}
"""Two programs of one method, such as its two rows, need the same data prepared: the second waits, and finds them."""


class Planned(NamedTuple):
    """A cell with its id, its data, and the description of the data that its result records."""

    cell: Cell
    id: str
    data: Prepared
    description: Mapping[str, Any]


@dataclass
class Measured:
    """One member's evaluations, and why there are no more of them if it failed."""

    evaluations: list[Row] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True)
class Outcome:
    finished: bool
    iteration: int
    members: list[Measured]
    wall_seconds: float


class Recorder(Callback):
    """Keeps every member's evaluations, with the metrics of the last chunk before each."""

    def __init__(self, num_members: int, advanced: Callable[[int], None]) -> None:
        self.members = [Measured() for _ in range(num_members)]
        self.advanced = advanced
        self.began, self.earlier = time.monotonic(), 0.0
        self.metrics: HostMetrics = {}

    @property
    def wall_seconds(self) -> float:
        return self.earlier + time.monotonic() - self.began

    def on_start(self, position: int, note: Note) -> None:
        if note:
            self.members = [Measured(**member) for member in note["members"]]
            self.earlier = note["wall_seconds"]

    def evaluated(self, position: int) -> bool:
        alive = [member for member in self.members if member.failure is None]
        return all(member.evaluations[-1:] and member.evaluations[-1]["iteration"] == position for member in alive)

    def on_advance(self, position: int) -> None:
        self.advanced(position)

    def on_log(self, position: int, metrics: HostMetrics) -> None:
        self.metrics = metrics

    def on_evaluation(self, position: int, rows: list[Row]) -> None:
        for row in rows:
            metrics = {name: plain(float(f"{value[row['member']]:.6g}")) for name, value in self.metrics.items()}
            returns = np.round(row["returns"], DECIMALS).tolist()
            known = {"iteration": position, "returns": returns, "lengths": row["lengths"], "metrics": metrics}
            self.members[row["member"]].evaluations.append(known)

    def on_failure(self, member: int, reason: str) -> None:
        self.members[member].failure = reason

    def on_checkpoint(self, position: int, note: Note) -> None:
        note |= {"members": [asdict(member) for member in self.members], "wall_seconds": self.wall_seconds}


def make_program(
    planned: Sequence[Planned], kept: Kept | None = None, stopped: Callable[[], bool] = lambda: False
) -> Program:
    """The cells as members; those of the same data share them on the device."""
    method = planned[0].cell.algorithm
    contents = [canonical([each.data.description, each.cell.data.expert_actions]) for each in planned]
    sources: dict[str, Prepared] = {}
    for each, content in zip(planned, contents, strict=True):
        sources.setdefault(content, each.data)
    with PREPARING.setdefault(method.name, Lock()):
        data = prepare_all(method, list(sources.values()), kept or InMemory(), stopped)
    prepared = dict(zip(sources, data, strict=True))
    normalisers: dict[Any, Normaliser] = {}
    members = []
    for each, content in zip(planned, contents, strict=True):
        cell, key = each.cell, (content, each.cell.normalise)
        if key not in normalisers:
            normalisers[key] = each.data.normaliser(cell.normalise)
        members.append(Member(cell.algorithm, cell.seed, prepared[content], normalisers[key], each.data.environment))
    return Program(members, planned[0].cell.precision, planned[0].cell.ensemble)


def prepare_all(
    method: Algorithm, data: Sequence[Prepared], kept: Kept, stopped: Callable[[], bool]
) -> list[Demonstrations]:
    """What each of these is trained on. What the method does for many datasets at once is done for all of them."""
    needed = (each.needed(method.needs_supplementary) for each in data)
    return together([method.prepare_in_stages(each, kept) for each in needed], kept, stopped)


def run_program(
    planned: Sequence[Planned],
    checkpoints: Checkpoints,
    pool: Rollouts,
    advanced: Callable[[int], None] = lambda position: None,
    stopped: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    kept: Kept | None = None,
) -> Outcome:
    """Train and evaluate the cells, from their checkpoint if there is one.

    When `stopped` returns true, the program writes a checkpoint and ends unfinished. `advanced` follows every chunk.
    What is prepared before training is looked for in `kept`, and left there.
    """
    cell = planned[0].cell
    iterations, schedule = cell.iterations, cell.schedule
    episodes = partial(schedule.episodes_at, iterations=iterations)
    recorder = Recorder(len(planned), advanced)
    try:
        trainee = make_program(planned, kept, stopped)
    except Stopped:
        return Outcome(False, 0, recorder.members, recorder.wall_seconds)
    outcome = run(
        trainee,
        Schedule(
            iterations, chunk_length(schedule.every), checkpoint_seconds=checkpoint_seconds, checkpoint_last=False
        ),
        evaluator=Evaluator(None, schedule.every, episodes, schedule.seed, pool=pool),
        evaluated=recorder.evaluated,
        checkpoints=checkpoints,
        callbacks=[recorder],
        stopped=stopped,
    )
    return Outcome(outcome.finished, outcome.position, recorder.members, recorder.wall_seconds)


def chunk_length(every: int) -> int:
    """The longest chunk, up to the device's limit, that divides the time between evaluations, so as to compile once."""
    longest = CHUNK.get(jax.default_backend(), CHUNK_ON_DEVICE)
    divisors = [steps for steps in range(1, min(longest, every) + 1) if every % steps == 0]
    return divisors[-1] if divisors[-1] * 4 > longest else min(longest, every)
