"""The local engine: programs on this machine, its GPU if it has one.

On a GPU two programs run at once: while one compiles, or waits for its last evaluation, the other trains. On a CPU they
take turns.
"""

import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import jax

from demosift.experiments.display import View
from demosift.experiments.program import CHECKPOINT_SECONDS, Planned, run_program
from demosift.experiments.settling import Settled, settle, settle_failure
from demosift.experiments.store import Store
from demosift.files import provenance
from demosift.processes import WorkerError
from demosift.results.run import Row
from demosift.simulation.simulate import Rollouts

CONCURRENT_ON_DEVICE = 2


class Pool:
    """The simulating processes of a whole grid. After a failure the next program gets new ones."""

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers
        self._pool: Rollouts | None = None
        self._lock = threading.Lock()

    def get(self) -> Rollouts:
        with self._lock:
            if self._pool is None:
                self._pool = Rollouts(self.num_workers)
            return self._pool

    def renew(self, used: Rollouts) -> None:
        with self._lock:
            if used is self._pool:
                used.close()
                self._pool = None

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None


def where_made() -> Row:
    return {**provenance(), "device": jax.devices()[0].device_kind}


def run_local(
    programs: Sequence[Sequence[Planned]],
    store: Store,
    view: View,
    *,
    deadline: float | None = None,
    num_workers: int | None = None,
    concurrent: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> bool:
    """Run every program; False if the deadline (of `time.monotonic`) came first. Failures go to the store."""
    stop = threading.Event()
    pool = Pool(num_workers)
    made = where_made()
    if concurrent is None:
        concurrent = 1 if jax.default_backend() == "cpu" else CONCURRENT_ON_DEVICE

    def stopped() -> bool:
        return stop.is_set() or (deadline is not None and time.monotonic() > deadline)

    def run(number: int, program: list[Planned]) -> Settled:
        if stopped():
            return Settled(ended=False)
        advanced = view.start(number, program)
        checkpoints = store.program([each.id for each in program])
        rollouts = pool.get()
        try:
            kept = store.prepared(program[0].cell.algorithm.name)
            outcome = run_program(program, checkpoints, rollouts, advanced, stopped, checkpoint_seconds, kept)
        except Exception as error:
            if isinstance(error, WorkerError):
                pool.renew(rollouts)  # another program may be using it, so not for anything else
            settled = settle_failure(program, traceback.format_exc(), store)
        else:
            settled = settle(program, outcome, store, made)
        view.end(number, settled)
        return settled

    waiting = [list(program) for program in programs]
    for program in waiting:
        view.queue(program)
    complete, number = True, 0
    running: set[Future[Settled]] = set()
    with ThreadPoolExecutor(concurrent) as threads:
        try:
            while waiting or running:
                while waiting and len(running) < concurrent:
                    running.add(threads.submit(run, number, waiting.pop(0)))
                    number += 1
                done, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    settled = future.result()
                    complete &= settled.ended
                    for half in settled.halves:
                        view.queue(half)
                    waiting = [*settled.halves, *waiting]
        except BaseException:
            stop.set()  # running programs write a checkpoint and stop
            view.console.print("stopping: writing checkpoints")
            wait_through_interrupts(running)
            raise
        finally:
            pool.close()
    return complete


def wait_through_interrupts(running: set[Future[Settled]]) -> None:
    """Wait until all have ended, however often Ctrl-C comes: `cli.main.ending_signals` repeats it."""
    while True:
        try:
            wait(running)
            return
        except KeyboardInterrupt:
            continue
