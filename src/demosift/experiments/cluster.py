"""The Ray engine: the same programs as tasks on a cluster.

Nodes need demosift installed and nothing else: data travels to them, and results and checkpoints travel back to an
actor on the driver's node, which writes them to the results folder. So a task whose worker or node dies is started
again elsewhere from its last checkpoint, and a grid that was killed continues like a local one.
"""

import logging
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demosift.experiments.display import View, title
from demosift.experiments.ledger import Settled, settle, settle_failure
from demosift.experiments.local import where_made
from demosift.experiments.program import CHECKPOINT_SECONDS, Outcome, Planned, run_program
from demosift.experiments.store import Checkpoint, Store
from demosift.results.run import Row
from demosift.simulation.simulate import Rollouts
from demosift.types import InputError

RETRIES = 5  # of a task whose worker or node died
LISTEN_SECONDS = 0.5


class Answer(NamedTuple):
    """What a task says: how its program ended, or the traceback of why it did not."""

    outcome: Outcome | None
    failure: str | None
    made: Row


class Desk:
    """An actor on the driver's node: takes checkpoints in, hands them out, and knows how far every program is."""

    def __init__(self, path: str) -> None:
        self.store = Store(path)
        self.reached: dict[int, int] = {}
        self.starts: dict[int, list[int]] = {}

    def load(self, number: int, ids: list[str]) -> Checkpoint | None:
        found = self.store.checkpoints(ids).load()
        self.starts.setdefault(number, []).append(0 if found is None else found[0])
        return found

    def keep(
        self, ids: list[str], iteration: int, arrays: Mapping[str, np.ndarray], progress: Mapping[str, Any]
    ) -> None:
        self.store.checkpoints(ids).keep(iteration, arrays, progress)

    def advanced(self, number: int, position: int) -> None:
        self.reached[number] = position

    def news(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """How far every program is, and where each of its starts began: more than one after a death."""
        return self.reached, self.starts


class RemoteKeeper:
    """The checkpoints of one program, kept by the desk."""

    def __init__(self, desk: Any, number: int, ids: Sequence[str]) -> None:
        self.desk, self.number, self.ids = desk, number, list(ids)

    def load(self) -> Checkpoint | None:
        import ray

        found: Checkpoint | None = ray.get(self.desk.load.remote(self.number, self.ids))
        if found is None:
            return None
        iteration, arrays, progress = found
        # What Ray hands over shares its read-only memory.
        return iteration, {name: np.array(array) for name, array in arrays.items()}, progress

    def keep(self, iteration: int, arrays: Mapping[str, np.ndarray], progress: Mapping[str, Any]) -> None:
        import ray

        ray.get(self.desk.keep.remote(self.ids, iteration, arrays, progress))


def run_task(
    number: int,
    cells: Sequence[tuple[Any, str]],
    data: Sequence[Any],
    desk: Any,
    deadline: float | None,
    num_workers: int,
    checkpoint_seconds: float,
) -> Answer:
    """One program in a worker of the cluster. What fails in it is an answer; only a death is tried again."""
    import ray

    try:
        program = [Planned(*cell, each) for cell, each in zip(cells, ray.get(list(data)), strict=True)]
        keeper = RemoteKeeper(desk, number, [each.id for each in program])
        with Rollouts(num_workers) as pool:
            outcome = run_program(
                program,
                keeper,
                pool,
                lambda position: desk.advanced.remote(number, position),
                lambda: deadline is not None and time.time() > deadline,
                checkpoint_seconds,
            )
        return Answer(outcome, None, where_made())
    except Exception:
        return Answer(None, traceback.format_exc(), {})


def run_on_ray(
    programs: Sequence[Sequence[Planned]],
    store: Store,
    view: View,
    *,
    address: str | None = None,
    deadline: float | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> bool:
    """Run every program on the cluster at `address`, or on one of this machine's own; see `run_local`."""
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'demosift[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # JAX warns of forks, and Ray's become other programs at once
                dashboard = None if address else False
                ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--address {address}: no Ray cluster there ({str(error).splitlines()[0]})") from error
    try:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        desk = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote(str(Path(store.path).resolve()))
        return Driver(ray, desk, store, view, deadline, checkpoint_seconds).run(programs)
    finally:
        if ours:
            ray.shutdown()


class Driver:
    """Submits programs, listens, and settles what ended."""

    def __init__(
        self, ray: Any, desk: Any, store: Store, view: View, deadline: float | None, checkpoint_seconds: float
    ) -> None:
        self.ray, self.desk, self.store, self.view = ray, desk, store, view
        self.checkpoint_seconds = checkpoint_seconds
        self.deadline = deadline
        # Nodes do not share this process's clock; their own are close enough to end a piece by.
        self.wall_deadline = None if deadline is None else time.time() + deadline - time.monotonic()
        resources = ray.cluster_resources()
        self.gpus = min(1.0, resources.get("GPU", 0))
        cpus = int(resources.get("CPU", 1))
        self.cpus = max(1, int(cpus // resources["GPU"])) if self.gpus else 1
        self.task = ray.remote(run_task).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, retry_exceptions=False
        )
        self.put: dict[Any, Any] = {}  # data by its key, once on the cluster however many programs need it
        self.running: dict[Any, tuple[int, list[Planned]]] = {}
        self.heard: dict[int, Any] = {}
        self.starts: dict[int, int] = {}

    def run(self, programs: Sequence[Sequence[Planned]]) -> bool:
        complete = True
        for number, program in enumerate(programs):
            self.submit(number, list(program))
        number = len(programs)
        while self.running:
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=LISTEN_SECONDS)
            self.listen()
            for reference in done:
                settled = self.settle(reference)
                complete &= settled.ended
                for half in settled.halves:
                    self.submit(number, half)
                    number += 1
        return complete

    def submit(self, number: int, program: list[Planned]) -> None:
        for each in program:
            if each.cell.data not in self.put:
                self.put[each.cell.data] = self.ray.put(each.data)
        cells = [(each.cell, each.id) for each in program]
        data = [self.put[each.cell.data] for each in program]
        arguments = (number, cells, data, self.desk, self.wall_deadline, self.cpus, self.checkpoint_seconds)
        self.running[self.task.remote(*arguments)] = (number, program)
        self.view.queue(program)

    def listen(self) -> None:
        """Show how far the programs are; one that has not been heard of waits for a place."""
        programs = dict(self.running.values())
        positions, starts = self.ray.get(self.desk.news.remote())
        for number, position in positions.items():
            if number in programs:
                if number not in self.heard:
                    self.heard[number] = self.view.start(number, programs[number])
                self.heard[number](position)
        for number, began in starts.items():
            if len(began) > self.starts.setdefault(number, 1) and number in programs:
                self.starts[number] = len(began)
                self.view.say(f"{title(programs[number])}: its node died; going on from iteration {began[-1]:,}")

    def settle(self, reference: Any) -> Settled:
        number, program = self.running.pop(reference)
        if number not in self.heard:
            self.heard[number] = self.view.start(number, program)
        try:
            answer = self.ray.get(reference)
        except self.ray.exceptions.RayError:
            answer = Answer(None, traceback.format_exc(), {})
        if answer.outcome is None:
            settled = settle_failure(program, str(answer.failure), self.store)
        else:
            settled = settle(program, answer.outcome, self.store, answer.made)
        self.view.end(number, settled)
        return settled
