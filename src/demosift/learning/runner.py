"""The runner takes members through training, and does everything else beside it.

A chunk of iterations runs on the device while simulating processes evaluate earlier policies and a thread writes the
last checkpoint. Callbacks receive the measurements in the order of the iterations: a chunk's metrics, then the
evaluation at its end, then the next chunk's metrics. A checkpoint comes after the measurements before it, so that a run
that is killed anywhere and resumed records everything exactly once. A member that diverges fails alone.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Float

from demosift.files import plain
from demosift.policy import Policy, named_arrays
from demosift.progress import Progress
from demosift.results.checkpoint import Arrays, Checkpoint, Checkpoints, Note
from demosift.types import EnvironmentSpec

IN_FLIGHT = 2  # chunks that may wait on the device, so that it never waits for the host
PROBES = 16  # states on which a policy must act to count as finite
MOST_PENDING = 4  # evaluations that may lag behind training

HostMetrics = dict[str, Float[np.ndarray, "members"]]
Row = dict[str, Any]


class Group(NamedTuple):
    """Members of one environment, by their places in the program, and their policies."""

    members: list[int]
    policy: Policy


class Trainee:
    """What is trained: a `Program`, SAC's agents with their simulators, or a scorer's models.

    The last three methods are only needed for evaluations and checkpoints.
    """

    def __len__(self) -> int:
        """The number of members."""
        raise NotImplementedError

    def advance(self, position: int, steps: int) -> Mapping[str, Any]:
        """Start the next iterations and return their metrics, which may still be under way on the device."""
        raise NotImplementedError

    def policies(self) -> list[Group]:
        raise NotImplementedError

    def capture(self) -> Arrays:
        """All that training needs to continue, on the host."""
        raise NotImplementedError

    def restore(self, checkpoint: Checkpoint) -> None:
        raise NotImplementedError


class Pending(Protocol):
    """An evaluation under way. A future is one."""

    def done(self) -> bool: ...

    def result(self) -> list[Row]: ...


class Evaluator(Protocol):
    """Evaluates policies while training goes on (`demosift.simulation.evaluation.Evaluator` is one)."""

    every: int

    def describe(self) -> Row:
        """What identifies the evaluation: environment, episodes, seed."""
        ...

    def submit(self, policy: Policy, iteration: int, environment: EnvironmentSpec | None = None) -> Pending:
        """Start evaluating. The result will be a row per member of the policy, with its `returns`."""
        ...


class Callback:
    """Called when something happens, in order and on the thread that trains.

    Override what you need. To return True stops the run: it ends after the iterations that are under way, with a
    checkpoint from which it can be continued. Trackers, the progress bar and what records a run are callbacks.
    """

    def on_start(self, position: int, note: Note) -> None:
        """Training begins at this iteration; the note is that of the checkpoint it continues from."""

    def on_advance(self, position: int) -> None:
        """The chunk that ends here was sent to the device."""

    def on_log(self, position: int, metrics: HostMetrics) -> bool | None:
        """The averages over the chunk that ended here."""

    def on_evaluation(self, position: int, rows: list[Row]) -> bool | None:
        """A row for each member that is still alive."""

    def on_failure(self, member: int, reason: str) -> bool | None:
        """A member will not be evaluated again."""

    def on_checkpoint(self, position: int, note: Note) -> bool | None:
        """A checkpoint is about to be written; what is put into the note is given to `on_start` later."""


class Bar(Callback):
    """A progress bar with the rate and the losses."""

    def __init__(self, display: Progress, name: str, iterations: int, num_members: int) -> None:
        self.line = display.line(name, iterations, text="compiling")
        self.num_members, self.losses = num_members, ""

    def on_start(self, position: int, note: Note) -> None:
        self.began, self.start = time.monotonic(), position
        self.line.update(position)

    def on_advance(self, position: int) -> None:
        rate = (position - self.start) * self.num_members / (time.monotonic() - self.began)
        self.line.update(position, f"{rate:,.0f} it/s  {self.losses}")

    def on_log(self, position: int, metrics: HostMetrics) -> None:
        self.losses = "  ".join(
            f"{key.removesuffix('_loss')} {np.nanmean(value):.3g}"
            for key, value in metrics.items()
            if key.endswith("_loss") and not np.isnan(value).all()
        )


def metric_rows(position: int, metrics: HostMetrics) -> list[Row]:
    """A chunk's metrics as rows, one for each member; None where a number is not finite."""
    num_members = len(next(iter(metrics.values())))
    return [
        {"iteration": position, "member": member, **{name: plain(float(v[member])) for name, v in metrics.items()}}
        for member in range(num_members)
    ]


@dataclass(frozen=True)
class Schedule:
    """When things happen, in iterations where the name does not say seconds. The last iteration is always evaluated."""

    iterations: int
    chunk: int
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = None
    checkpoint_last: bool = True
    wait_for_evaluations: bool = True  # before a checkpoint; otherwise a resumed run repeats those that are missing

    def next_stop(self, position: int, evaluate_every: int | None) -> int:
        marks = [every for every in (self.chunk, evaluate_every, self.checkpoint_every) if every]
        return min(self.iterations, *(position - position % every + every for every in marks))


@dataclass
class Outcome:
    finished: bool
    position: int
    failures: dict[int, str]


def due(position: int, every: int | None, iterations: int) -> bool:
    """Whether an evaluation follows this iteration."""
    return every is not None and (position % every == 0 or position == iterations)


class Log(NamedTuple):
    position: int
    metrics: Mapping[str, Any]


class Evaluation(NamedTuple):
    """Episodes under way, of the members of each group that have not failed."""

    position: int
    parts: list[tuple[list[int], Pending]]

    def done(self) -> bool:
        return all(pending.done() for _, pending in self.parts)


class Keep(NamedTuple):
    position: int
    arrays: Arrays


def run(
    trainee: Trainee,
    schedule: Schedule,
    *,
    evaluator: Evaluator | None = None,
    evaluated: Callable[[int], bool] = lambda position: False,
    checkpoints: Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train to the end of the schedule, from the checkpoint if there is one.

    `evaluated` says whether the evaluation of an iteration is already known when training resumes there. When `stopped`
    or a callback returns True, a checkpoint is written and the run is left unfinished.
    """
    return Run(trainee, schedule, evaluator, checkpoints, list(callbacks)).go(evaluated, stopped)


@dataclass
class Run:
    trainee: Trainee
    schedule: Schedule
    evaluator: Evaluator | None
    checkpoints: Checkpoints | None
    callbacks: list[Callback]
    events: deque[Log | Evaluation | Keep] = field(default_factory=deque)
    failures: dict[int, str] = field(default_factory=dict)
    asked_to_stop: bool = False
    write: Future[None] | None = None

    def go(self, evaluated: Callable[[int], bool], stopped: Callable[[], bool]) -> Outcome:
        position = self.start()
        in_flight: deque[Mapping[str, Any]] = deque()
        every = None if self.evaluator is None else self.evaluator.every
        kept = time.monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as self.writer:
            if position and due(position, every, self.schedule.iterations) and not evaluated(position):
                self.evaluate(position)
            while position < self.schedule.iterations and len(self.failures) < len(self.trainee):
                steps = self.schedule.next_stop(position, every) - position
                metrics = self.trainee.advance(position, steps)
                position += steps
                in_flight.append(metrics)
                while len(in_flight) > IN_FLIGHT:
                    jax.block_until_ready(in_flight.popleft())
                for callback in self.callbacks:
                    callback.on_advance(position)
                last = position == self.schedule.iterations
                if metrics:
                    self.events.append(Log(position, metrics))
                if due(position, every, self.schedule.iterations):
                    self.evaluate(position)
                self.settle()
                stop = not last and (self.asked_to_stop or stopped())
                if stop or self.checkpoint_is_due(position, last, kept):
                    self.keep(position)
                    kept = time.monotonic()
                if stop:
                    self.settle(wait=self.schedule.wait_for_evaluations)
                    self.finish_write()
                    return Outcome(False, position, self.failures)
            self.settle(wait=True)
            self.finish_write()
        return Outcome(True, position, self.failures)

    def start(self) -> int:
        checkpoint = None if self.checkpoints is None else self.checkpoints.read()
        if checkpoint is not None:
            self.trainee.restore(checkpoint)
        position, note = (0, {}) if checkpoint is None else (checkpoint.position, checkpoint.note)
        self.failures = {int(member): reason for member, reason in note.get("failures", {}).items()}
        for callback in self.callbacks:
            callback.on_start(position, note)
        return position

    def checkpoint_is_due(self, position: int, last: bool, kept: float) -> bool:
        if self.checkpoints is None:
            return False
        plan = self.schedule
        if last:
            return plan.checkpoint_last
        if plan.checkpoint_every is not None and position % plan.checkpoint_every == 0:
            return True
        # Not while an earlier checkpoint waits for its evaluations or is being written.
        free = (self.write is None or self.write.done()) and not any(isinstance(each, Keep) for each in self.events)
        return plan.checkpoint_seconds is not None and free and time.monotonic() - kept > plan.checkpoint_seconds

    def evaluate(self, position: int) -> None:
        """Start the episodes of every member whose policy is finite; the others fail."""
        assert self.evaluator is not None
        parts = []
        for members, policy in self.trainee.policies():
            finite = finite_members(policy)
            for member in np.array(members)[~finite].tolist():
                self.fail(member, f"diverged: by iteration {position:,} the policy's parameters are not finite")
            alive = [place for place, member in enumerate(members) if member not in self.failures]
            if alive:
                pending = self.evaluator.submit(policy.members(alive), position, policy.environment)
                parts.append(([members[place] for place in alive], pending))
        if parts:
            self.events.append(Evaluation(position, parts))

    def fail(self, member: int, reason: str) -> None:
        if member not in self.failures:
            self.failures[member] = reason
            self.tell(lambda callback: callback.on_failure(member, reason))

    def keep(self, position: int) -> None:
        if self.checkpoints is None:
            return
        keep = Keep(position, self.trainee.capture())
        if self.schedule.wait_for_evaluations:
            self.events.append(keep)
            self.settle()
        else:
            self.settle_one(keep)

    def settle(self, wait: bool = False) -> None:
        """Call the callbacks for what has happened, in order; an evaluation under way holds up what comes after it."""
        if self.write is not None and self.write.done():
            self.write.result()  # raises if writing failed, for instance on a full disk
        while self.events:
            first = self.events[0]
            if isinstance(first, Evaluation) and not wait and not first.done():
                pending = sum(isinstance(each, Evaluation) for each in self.events)
                if pending <= MOST_PENDING or not self.schedule.wait_for_evaluations:
                    return
            self.events.popleft()
            self.settle_one(first)

    def settle_one(self, event: Log | Evaluation | Keep) -> None:
        match event:
            case Log(position, metrics):
                told = {name: np.asarray(value) for name, value in metrics.items()}
                self.tell(lambda callback: callback.on_log(position, told))
            case Evaluation(position, parts):
                rows = [
                    {**row, "member": member}
                    for members, pending in parts
                    for member, row in zip(members, pending.result(), strict=True)
                ]
                self.tell(lambda callback: callback.on_evaluation(position, rows))
            case Keep(position, arrays):
                note: Note = {"failures": self.failures} if self.failures else {}
                self.tell(lambda callback: callback.on_checkpoint(position, note))
                self.finish_write()
                assert self.checkpoints is not None
                self.write = self.writer.submit(self.checkpoints.write, position, arrays, note)

    def tell(self, what: Callable[[Callback], bool | None]) -> None:
        for callback in self.callbacks:
            if what(callback):
                self.asked_to_stop = True

    def finish_write(self) -> None:
        if self.write is not None:
            self.write.result()


def finite_members(policy: Policy) -> np.ndarray:
    """Which members can act: their parameters are finite, and so is what all their networks say about usual states."""
    finite = np.ones(policy.num_members, bool)
    for _, array in named_arrays(policy.layers):
        finite &= np.isfinite(array).reshape(policy.num_members, -1).all(axis=1)
    usual = np.random.default_rng(0).normal(size=(PROBES, policy.obs_dim))
    with np.errstate(all="ignore"):
        obs = np.where(policy.scale == 0, 0, 1 / policy.scale)[:, None] * usual - policy.shift[:, None]
        said = policy.outputs(obs.astype(np.float32))
    return finite & np.isfinite(said).reshape(policy.num_members, -1).all(axis=1)
