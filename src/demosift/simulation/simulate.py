"""Environments in worker processes: stepped by given actions (`Simulators`), or by a policy (`Rollouts`)."""

import mmap
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from demosift.policy import Actor, NoisyPolicy, Policy
from demosift.processes import Closing, Workers
from demosift.simulation import environments
from demosift.simulation.cores import available_cores
from demosift.simulation.workers import Episode, Job, record_type, roll_out, simulate
from demosift.types import EnvironmentSpec, InputError

Jobs = Iterable[tuple[int, int]]  # pairs of member and seed
Progress = Callable[[int, int], None]  # episodes finished, episodes in all


class Step(NamedTuple):
    """One step of many environments. `obs` is what to act on next: after an episode's end it is the next one's start,
    while `next_obs` is always the true successor, the last observation of the episode that ended."""

    obs: Float[np.ndarray, "n obs"]
    next_obs: Float[np.ndarray, "n obs"]
    reward: Float[np.ndarray, "n"]
    terminal: Bool[np.ndarray, "n"]
    timeout: Bool[np.ndarray, "n"]


def episode_seeds(episodes: int, purpose: str, *numbers: int) -> list[int]:
    """Seeds of that many episodes; asking for more leaves the first ones as they are.

    `purpose` makes, say, recording with seed 0 start in other states than evaluating with seed 0.
    """
    if min(numbers, default=0) < 0:
        raise InputError(f"seed {min(numbers)}: a seed must not be negative")
    return np.random.SeedSequence([zlib.crc32(purpose.encode()), *numbers]).generate_state(episodes).tolist()


class Simulators(Closing):
    """Environments, perhaps of different kinds, stepped together by actions in [-1, 1] (discrete: scores or one-hot).

    Observations and actions are zero-padded to the largest size among the specs. Environments are spread over the
    workers in contiguous groups; what they do depends on the seeds given to `reset` and the actions alone. `send` and
    `receive` are apart so that the caller can learn while the environments move. Returned arrays are the caller's own.
    """

    def __init__(self, specs: Sequence[EnvironmentSpec], num_workers: int | None = None):
        if not specs:
            raise ValueError("no environments to simulate")
        sizes = [environments.spaces(spec) for spec in specs]
        self.specs = tuple(specs)
        self.obs_dim, self.action_dim = (max(size) for size in zip(*sizes, strict=True))
        num_workers = min(num_workers or available_cores(), len(specs))
        edges = np.linspace(0, len(specs), num_workers + 1).astype(int).tolist()
        self._groups = [slice(start, stop) for start, stop in pairwise(edges)]
        dtype = record_type(self.obs_dim, self.action_dim)
        # An unnamed file, not multiprocessing's shared memory, which lives on when everyone is killed.
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.truncate(dtype.itemsize * len(specs))
            self._records = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype)
            self._workers = Workers(num_workers, simulate, file.fileno())
        self._waiting = False
        for worker, group in zip(self._workers, self._groups, strict=True):
            worker.send((self.specs[group], group.start, len(specs), self.obs_dim, self.action_dim))

    def __len__(self) -> int:
        return len(self.specs)

    def reset(self, seeds: Sequence[int]) -> Float[np.ndarray, "n obs"]:
        """Start an episode everywhere. Later episodes continue each environment's own random stream."""
        if len(seeds) != len(self):
            raise ValueError(f"{len(seeds)} seeds for {len(self)} environments")
        if self._waiting:
            self.receive()
        self._command("reset", [[int(seed) for seed in seeds[group]] for group in self._groups])
        return self.receive().obs

    def capture(self) -> list[bytes] | None:
        """The state of every environment; None if that of one of them cannot be told (`demosift.simulation.state`)."""
        self._command("capture")
        self._waiting = False
        with self._workers.closed_on_error():
            states = [state for worker in self._workers for state in worker.receive()]
        return None if None in states else states

    def restore(self, states: Sequence[bytes]) -> None:
        """Go on from states of `capture`. What the environments returned last is the caller's to remember."""
        if len(states) != len(self):
            raise ValueError(f"{len(states)} states for {len(self)} environments")
        self._command("restore", [states[group] for group in self._groups])
        self.receive()

    def send(self, actions: Float[np.ndarray, "n action"]) -> None:
        """Start a step and return at once."""
        if self._waiting:
            raise RuntimeError("send was called twice without a receive between")
        if np.shape(actions) != (len(self), self.action_dim):
            raise ValueError(f"actions have shape {np.shape(actions)}, expected {(len(self), self.action_dim)}")
        self._records["action"] = actions
        self._command("step")

    def receive(self) -> Step:
        """Wait for the step that `send` started."""
        if not self._waiting:
            raise RuntimeError("receive was called without a send")
        self._waiting = False
        with self._workers.closed_on_error():
            for worker in self._workers:
                worker.receive()
        return Step(*(self._records[name].copy() for name in Step._fields))

    def step(self, actions: Float[np.ndarray, "n action"]) -> Step:
        self.send(actions)
        return self.receive()

    def close(self) -> None:
        self._workers.close()

    def _command(self, command: str, given: Sequence[Any] | None = None) -> None:
        """Tell every worker what to do, and with what."""
        with self._workers.closed_on_error():
            for worker, own in zip(self._workers, given or [None] * len(self._workers), strict=True):
                worker.send((command, own))
        self._waiting = True


class Rollouts(Closing):
    """A pool of workers that run deterministic episodes; kept between calls, since starting one takes a second.

    Each worker holds the policy and calls it once per step for all its live episodes, which saves a round trip to the
    parent per step. An episode depends only on its member and seed, not on the other jobs or on `num_workers`.
    """

    def __init__(self, num_workers: int | None = None):
        self._workers = Workers(num_workers or available_cores(), roll_out)
        self._turn = threading.Lock()

    def submit(
        self, policy: Actor, spec: EnvironmentSpec, jobs: Jobs, record: bool = False, progress: Progress | None = None
    ) -> Future[list[Episode]]:
        """Start `jobs` and return at once; the future's `result()` has the episodes in the order of the jobs.

        `progress` is called from another thread. Submissions take turns.
        """
        queue = [Job(*job) for job in jobs]
        check_fit(policy, spec, queue)
        future: Future[list[Episode]] = Future()

        def fulfil() -> None:
            try:
                with self._turn, self._workers.closed_on_error():
                    future.set_result(self._run(policy, spec, queue, record, progress))
            except BaseException as error:
                future.set_exception(error)

        # Not an executor's thread: those are joined at exit, so Ctrl-C would wait for the last evaluation.
        threading.Thread(target=fulfil, daemon=True).start()
        return future

    def close(self) -> None:
        self._workers.close()

    def _run(
        self, policy: Actor, spec: EnvironmentSpec, jobs: Sequence[Job], record: bool, progress: Progress | None
    ) -> list[Episode]:
        # Dealt like cards, sorted by member: a worker meets few members at once, and has its share of long episodes.
        order = sorted(range(len(jobs)), key=lambda index: jobs[index].member)
        episodes: dict[int, Episode] = {}
        busy = {}
        for number, worker in enumerate(self._workers):
            share = order[number :: len(self._workers)]
            if share:
                worker.send((policy, spec, [(index, jobs[index]) for index in share], record))
                busy[worker.connection] = worker
        while busy:
            for connection in wait(list(busy)):
                answer = busy[connection].receive()
                if answer is None:
                    del busy[connection]
                else:
                    index, episode = answer
                    episodes[index] = episode
                    if progress is not None:
                        progress(len(episodes), len(jobs))
        return [episodes[index] for index in range(len(jobs))]


def rollout(
    policy: Actor,
    spec: EnvironmentSpec,
    jobs: Jobs,
    num_workers: int | None = None,
    record: bool = False,
    progress: Progress | None = None,
) -> list[Episode]:
    """The episodes of `jobs`, run in a pool of their own: see `Rollouts`."""
    queue = list(jobs)
    check_fit(policy, spec, queue)
    with Rollouts(max(1, min(num_workers or available_cores(), len(queue)))) as pool:
        return pool.submit(policy, spec, queue, record, progress).result()


def check_fit(policy: Actor, spec: EnvironmentSpec, jobs: Jobs = ()) -> None:
    """Refuse a policy made for another environment before a worker trips over it."""
    policy = policy.policy if isinstance(policy, NoisyPolicy) else policy
    needs = environments.spaces(spec)
    has = environments.Spaces(policy.obs_dim if isinstance(policy, Policy) else needs.obs_dim, policy.action_dim)
    discrete = policy.kind == "categorical" if isinstance(policy, Policy) else policy.environment.discrete
    if has != needs or discrete != spec.discrete:
        made_for = f" (made for {policy.environment.id})" if policy.environment is not None else ""
        raise InputError(
            f"the policy{made_for} takes {has.obs_dim} observations and gives {has.action_dim} "
            f"{'discrete' if discrete else 'continuous'} actions, but {spec.id} has {needs.obs_dim} observations and "
            f"{needs.action_dim} {'discrete' if spec.discrete else 'continuous'} actions"
        )
    missing = {member for member, _ in jobs if not 0 <= member < policy.num_members}
    if missing:
        raise InputError(f"member {min(missing)} does not exist: the policy has {policy.num_members}")
