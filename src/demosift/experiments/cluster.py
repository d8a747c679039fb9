"""The Ray engine: the same programs as tasks on a cluster.

Nodes need nothing but demosift: data travels to them, and results and checkpoints travel back to an actor on the
driver's node, which writes them to the results folder. So a task whose worker or node dies is started again elsewhere
from its last checkpoint, and a grid that was killed continues like a local one.
"""

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demosift.cluster import RETRIES
from demosift.experiments.display import View, title
from demosift.experiments.local import where_made
from demosift.experiments.program import CHECKPOINT_SECONDS, Outcome, Planned, run_program
from demosift.experiments.settling import Settled, settle, settle_failure
from demosift.experiments.store import Store
from demosift.learning.compiled import keep_programs
from demosift.results.checkpoint import Arrays, Checkpoint
from demosift.results.prepared import Key
from demosift.results.run import Row
from demosift.simulation.cores import at_most_cores
from demosift.simulation.simulate import Rollouts

LISTEN_SECONDS = 0.5


class Answer(NamedTuple):
    """What a task returns: how its program ended, or the traceback of why it did not."""

    outcome: Outcome | None
    failure: str | None
    made: Row


class Archive:
    """An actor on the driver's node: stores checkpoints, hands them out, and knows how far every program is."""

    def __init__(self, path: str) -> None:
        self.store = Store(path)
        self.reached: dict[int, int] = {}
        self.starts: dict[int, list[int]] = {}

    def read(self, number: int, ids: list[str]) -> Checkpoint | None:
        found = self.store.program(ids).read()
        self.starts.setdefault(number, []).append(0 if found is None else found.position)
        return found

    def write(self, ids: list[str], position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]) -> None:
        self.store.program(ids).write(position, arrays, note)

    def read_prepared(self, method: str, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        return self.store.prepared(method).read(key, rows)

    def write_prepared(self, method: str, key: Key, arrays: Arrays) -> None:
        self.store.prepared(method).write(key, arrays)

    def advanced(self, number: int, position: int) -> None:
        self.reached[number] = position

    def news(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """How far every program is, and the iterations from which it was started: several after a death."""
        return self.reached, self.starts


class RemoteCheckpoints:
    """The checkpoints of one program, in the archive."""

    def __init__(self, archive: Any, number: int, ids: Sequence[str]) -> None:
        self.archive, self.number, self.ids = archive, number, list(ids)

    def read(self) -> Checkpoint | None:
        import ray

        found: Checkpoint | None = ray.get(self.archive.read.remote(self.number, self.ids))
        if found is None:
            return None
        return found._replace(arrays=own_copies(found.arrays))

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]) -> None:
        import ray

        ray.get(self.archive.write.remote(self.ids, position, arrays, note))


class RemotePrepared:
    """What a method prepared, in the archive. A task whose node dies begins the preparation under way again."""

    workshop = None

    def __init__(self, archive: Any, method: str) -> None:
        self.archive, self.method = archive, method

    def read(self, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        import ray

        found: Arrays | None = ray.get(self.archive.read_prepared.remote(self.method, key, dict(rows)))
        return None if found is None else own_copies(found)

    def write(self, key: Key, arrays: Arrays) -> None:
        import ray

        ray.get(self.archive.write_prepared.remote(self.method, key, arrays))


def own_copies(arrays: Arrays) -> Arrays:
    """What Ray hands over shares its read-only memory."""
    return {name: np.array(array) for name, array in arrays.items()}


def run_task(
    number: int,
    cells: Sequence[tuple[Any, str, Any]],
    data: Sequence[Any],
    archive: Any,
    deadline: float | None,
    num_workers: int,
    checkpoint_seconds: float,
) -> Answer:
    """One program in a worker of the cluster. A failure is returned as an answer; only a death is retried."""
    import ray

    keep_programs()
    try:
        program = [
            Planned(cell, id_, each, description)
            for (cell, id_, description), each in zip(cells, ray.get(list(data)), strict=True)
        ]
        checkpoints = RemoteCheckpoints(archive, number, [each.id for each in program])
        with at_most_cores(num_workers), Rollouts(num_workers) as pool:
            outcome = run_program(
                program,
                checkpoints,
                pool,
                lambda position: archive.advanced.remote(number, position),
                lambda: deadline is not None and time.time() > deadline,
                checkpoint_seconds,
                RemotePrepared(archive, program[0].cell.algorithm.name),
            )
        return Answer(outcome, None, where_made())
    except Exception:
        return Answer(None, traceback.format_exc(), {})


def run_on_ray(
    programs: Sequence[Sequence[Planned]],
    store: Store,
    view: View,
    *,
    deadline: float | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> bool:
    """Run every program on the cluster that is `connected`; see `run_local`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    archive = ray.remote(Archive).options(num_cpus=0, scheduling_strategy=here).remote(str(Path(store.path).resolve()))
    return Driver(ray, archive, store, view, deadline, checkpoint_seconds).run(programs)


def task_needs(nodes: Sequence[Mapping[str, float]]) -> tuple[int, float]:
    """The cores and GPUs of a task: one core; or, where there are GPUs, one of these with its share of a node's cores.

    The share is that of the node with the fewest, so that every node with a GPU can take a task.
    """
    with_gpus = [node for node in nodes if node.get("GPU", 0) > 0]
    if not with_gpus:
        return 1, 0.0
    shares = (int(node.get("CPU", 0) // max(1.0, node["GPU"])) for node in with_gpus)
    return min(filter(None, shares), default=1), min(1.0, *(node["GPU"] for node in with_gpus))


class Driver:
    """Submits programs, follows their progress, and records how they end."""

    def __init__(
        self, ray: Any, archive: Any, store: Store, view: View, deadline: float | None, checkpoint_seconds: float
    ) -> None:
        self.ray, self.archive, self.store, self.view = ray, archive, store, view
        self.checkpoint_seconds = checkpoint_seconds
        self.deadline = deadline
        # Nodes do not share this process's monotonic clock; their wall clocks are close enough for a deadline.
        self.wall_deadline = None if deadline is None else time.time() + deadline - time.monotonic()
        self.cpus, self.gpus = task_needs([node["Resources"] for node in ray.nodes() if node["Alive"]])
        self.task = ray.remote(run_task).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, retry_exceptions=False
        )
        self.put: dict[Any, Any] = {}  # data by its key, put on the cluster once however many programs need it
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
        cells = [(each.cell, each.id, each.description) for each in program]
        data = [self.put[each.cell.data] for each in program]
        arguments = (number, cells, data, self.archive, self.wall_deadline, self.cpus, self.checkpoint_seconds)
        self.running[self.task.remote(*arguments)] = (number, program)
        self.view.queue(program)

    def listen(self) -> None:
        """Show how far the programs are. One that has not been heard from is still waiting for a worker."""
        programs = dict(self.running.values())
        positions, starts = self.ray.get(self.archive.news.remote())
        for number, position in positions.items():
            if number in programs:
                if number not in self.heard:
                    self.heard[number] = self.view.start(number, programs[number])
                self.heard[number](position)
        for number, began in starts.items():
            if len(began) > self.starts.setdefault(number, 1) and number in programs:
                self.starts[number] = len(began)
                self.view.say(f"{title(programs[number])}: its node died; continuing from iteration {began[-1]:,}")

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
