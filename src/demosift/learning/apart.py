"""Calls that need one dataset each and nothing of each other: in processes of two cores, where there are cores for it.

Such a process keeps to the CPU. One call at a time leaves most cores of a large machine idle, and the device has the
policies to train.
"""

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from demosift.processes import Worker, WorkerError, Workers
from demosift.results.checkpoint import Arrays
from demosift.simulation.cores import at_most_cores, available_cores
from demosift.types import InputError

CORES = 2  # of each process


class Apart(NamedTuple):
    """A function of a module, and its arguments."""

    function: Callable[..., Arrays]
    arguments: tuple[Any, ...]

    def answer(self) -> Arrays | Exception:
        try:
            return self.function(*self.arguments)
        except Exception as error:
            return error


def answers(calls: Sequence[Apart], stopped: Callable[[], bool]) -> Iterator[tuple[int, Arrays | Exception]]:
    """Each call's place and answer, as they come; none is begun once `stopped`."""
    num_workers = min(len(calls), available_cores() // CORES)
    if num_workers < 2:
        for place, call in enumerate(calls):
            if stopped():
                return
            yield place, call.answer()
        return
    workers = Workers(num_workers, serve_calls)
    try:
        yield from shared_out(calls, list(workers), stopped)
    finally:
        workers.close()


def shared_out(
    calls: Sequence[Apart], idle: list[Worker], stopped: Callable[[], bool]
) -> Iterator[tuple[int, Arrays | Exception]]:
    for number, worker in enumerate(idle):
        worker.send(number)
    left, busy = deque(enumerate(calls)), dict[Any, tuple[Worker, int]]()
    while left or busy:
        while left and idle and not stopped():
            (place, call), worker = left.popleft(), idle.pop()
            worker.send(call)
            busy[worker.connection] = worker, place
        if not busy:
            return
        for connection in wait(list(busy)):
            worker, place = busy.pop(connection)
            idle.append(worker)
            yield place, worker.receive()


def serve_calls(connection: Connection) -> None:
    """A worker's main loop. What it is to call is imported after this has kept JAX off the device."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    number = connection.recv()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[(CORES * number + i) % len(cores)] for i in range(CORES)})
    from demosift.learning.compiled import keep_programs

    keep_programs()
    with at_most_cores(CORES):
        while True:
            answer = connection.recv().answer()
            if isinstance(answer, Exception) and not isinstance(answer, InputError):
                trace = "".join(traceback.format_exception(answer))
                answer = WorkerError(f"{type(answer).__name__}: {answer}")
                answer.add_note(trace)
            connection.send(answer)
