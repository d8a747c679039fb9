"""Environments in worker processes: stepped by given actions (`Simulators`) or by a policy of their own (`Rollouts`).

Workers are plain subprocesses that talk over a socket pair, not `multiprocessing` children: those import the user's
script again, which without an `if __name__ == "__main__"` guard would start more of them. A worker never imports JAX,
uses one thread, is out of reach of Ctrl-C, and ends when its parent does, however that ends: its socket then closes.
"""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from jaxtyping import Bool, Float

from demosift import environments
from demosift.policy import Policy, RandomPolicy
from demosift.types import EnvironmentSpec, InputError, Transitions

# Episodes a worker keeps alive at once: enough to make the policy's overhead per step small beside the simulation's.
LIVE_EPISODES = 16

Progress = Callable[[int, int], None]  # episodes finished, episodes in all


class SimulationError(RuntimeError):
    """An environment failed, or the process it ran in died. The worker's traceback is in a note."""


class Step(NamedTuple):
    """One step of many environments. `obs` is what to act on next: after an episode's end it is the next one's start,
    while `next_obs` is always the true successor, the last observation of the episode that ended."""

    obs: Float[np.ndarray, "n obs"]
    next_obs: Float[np.ndarray, "n obs"]
    reward: Float[np.ndarray, "n"]
    terminal: Bool[np.ndarray, "n"]
    timeout: Bool[np.ndarray, "n"]


class Job(NamedTuple):
    """An episode to simulate: which member acts, and the seed of the environment's reset."""

    member: int
    seed: int


@dataclass(frozen=True, eq=False)
class Episode:
    """What one job gave, with `transitions` where they were to be recorded. Not `terminal` means that time ran out."""

    member: int
    seed: int
    return_: float
    length: int
    terminal: bool
    transitions: Transitions | None = None


def episode_seeds(episodes: int, purpose: str, *numbers: int) -> list[int]:
    """Seeds of that many episodes; asking for more leaves the first ones as they are.

    `purpose` keeps, say, recording with seed 0 from starting in the very states that evaluating with seed 0 starts in.
    """
    if min(numbers, default=0) < 0:
        raise InputError(f"seed {min(numbers)}: a seed must not be negative")
    return np.random.SeedSequence([zlib.crc32(purpose.encode()), *numbers]).generate_state(episodes).tolist()


def available_cores() -> int:
    """Cores this process may use, which in a container or under a batch system are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Simulators:
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
        dtype = _record_type(self.obs_dim, self.action_dim)
        # An unnamed file, not multiprocessing's shared memory, which lives on when everyone is killed.
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.truncate(dtype.itemsize * len(specs))
            self._records = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype)
            self._workers = _Workers(num_workers, "_simulate", file.fileno())
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
        self._command([[int(seed) for seed in seeds[group]] for group in self._groups])
        return self.receive().obs

    def send(self, actions: Float[np.ndarray, "n action"]) -> None:
        """Start a step and return at once."""
        if self._waiting:
            raise RuntimeError("send was called twice without a receive between")
        if np.shape(actions) != (len(self), self.action_dim):
            raise ValueError(f"actions have shape {np.shape(actions)}, expected {(len(self), self.action_dim)}")
        self._records["action"] = actions
        self._command([None] * len(self._workers))

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

    def _command(self, messages: Sequence[list[int] | None]) -> None:
        with self._workers.closed_on_error():
            for worker, message in zip(self._workers, messages, strict=True):
                worker.send(message)
        self._waiting = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Rollouts:
    """A pool of workers that run deterministic episodes; kept between calls, since starting one takes a second.

    Each worker holds the policy and calls it once per step for all its live episodes, which spares a round trip to the
    parent per step. An episode depends on its member and seed alone: not on the other jobs, nor on `num_workers`.
    """

    def __init__(self, num_workers: int | None = None):
        self._workers = _Workers(num_workers or available_cores(), "_roll_out")
        self._turn = threading.Lock()

    def submit(
        self,
        policy: Policy | RandomPolicy,
        spec: EnvironmentSpec,
        jobs: Iterable[tuple[int, int]],
        record: bool = False,
        progress: Progress | None = None,
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

    def run(
        self,
        policy: Policy | RandomPolicy,
        spec: EnvironmentSpec,
        jobs: Iterable[tuple[int, int]],
        record: bool = False,
        progress: Progress | None = None,
    ) -> list[Episode]:
        return self.submit(policy, spec, jobs, record, progress).result()

    def close(self) -> None:
        self._workers.close()

    def _run(
        self,
        policy: Policy | RandomPolicy,
        spec: EnvironmentSpec,
        jobs: Sequence[Job],
        record: bool,
        progress: Progress | None,
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rollout(
    policy: Policy | RandomPolicy,
    spec: EnvironmentSpec,
    jobs: Iterable[tuple[int, int]],
    num_workers: int | None = None,
    record: bool = False,
    progress: Progress | None = None,
) -> list[Episode]:
    """The episodes of `jobs`, pairs of (member, seed), with a pool of their own: see `Rollouts`."""
    queue = list(jobs)
    check_fit(policy, spec, queue)
    with Rollouts(max(1, min(num_workers or available_cores(), len(queue)))) as pool:
        return pool.run(policy, spec, queue, record, progress)


def check_fit(policy: Policy | RandomPolicy, spec: EnvironmentSpec, jobs: Iterable[tuple[int, int]] = ()) -> None:
    """Refuse a policy made for another environment before a worker trips over it."""
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


class _Failure(NamedTuple):
    """What a worker says when it cannot go on."""

    message: str
    traceback: str
    is_input: bool


class _Worker:
    """The parent's view of one worker process."""

    def __init__(self, role: str, *fds: int):
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        # Before NumPy loads, or its threads would compete with the other workers'.
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    f"import demosift.simulate as s; s._serve(s.{role}, {theirs.fileno()}, *{fds})",
                ],
                pass_fds=(theirs.fileno(), *fds),
                env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,  # stdout belongs to --json
                process_group=0,  # Ctrl-C goes to the terminal's group: the parent decides what becomes of its workers
            )

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError:
            self.receive()  # it died: its last words, if any, say why

    def receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise SimulationError(f"a simulation worker died (exit status {self.process.poll()})") from error
        if isinstance(answer, _Failure):
            failure = InputError(answer.message) if answer.is_input else SimulationError(answer.message)
            failure.add_note(answer.traceback)
            raise failure
        return answer


class _Workers:
    """Some workers with the same role; gone when closed, when garbage-collected, or when this process ends."""

    def __init__(self, num_workers: int, role: str, *fds: int):
        self._workers = [_Worker(role, *fds) for _ in range(num_workers)]
        self.close = weakref.finalize(self, _end, self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """One worker's failure ends all of them: the others' answers would arrive where nobody expects them."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[_Worker]:
        if not self.close.alive:
            raise RuntimeError("the simulation was closed")
        return iter(self._workers)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # it holds nothing that needs saving
    for worker in workers:
        worker.process.wait()
        worker.connection.close()


def _record_type(obs_dim: int, action_dim: int) -> np.dtype:
    """One environment's row of the shared memory."""
    return np.dtype(
        [
            ("action", np.float32, (action_dim,)),
            ("obs", np.float32, (obs_dim,)),
            ("next_obs", np.float32, (obs_dim,)),
            ("reward", np.float32),
            ("terminal", np.bool_),
            ("timeout", np.bool_),
        ],
        align=True,
    )


def _serve(role: Callable[..., None], fd: int, *fds: int) -> None:
    """A worker's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    try:
        role(connection, *fds)
    except (EOFError, ConnectionError):
        pass  # the parent is gone, and so is the reason to be here
    except Exception as error:
        ours = isinstance(error, InputError | SimulationError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        connection.send(_Failure(message, traceback.format_exc(), isinstance(error, InputError)))


class _Environment:
    """An environment in a worker: speaks [-1, 1] and float32."""

    def __init__(self, spec: EnvironmentSpec):
        self.spec = spec
        self.env: gymnasium.Env = environments.make(spec)

    def reset(self, seed: int | None = None) -> Float[np.ndarray, "obs"]:
        with self._named():
            obs, _ = self.env.reset(seed=seed)
        return np.asarray(obs, np.float32)

    def step(self, action: np.ndarray) -> tuple[Float[np.ndarray, "obs"], float, bool, bool]:
        with self._named():
            obs, reward, terminated, truncated, _ = self.env.step(environments.scale_action(self.spec, action))
        # An episode that ends in a terminal state at the time limit has ended in a terminal state.
        return np.asarray(obs, np.float32), float(reward), bool(terminated), bool(truncated and not terminated)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise SimulationError(f"environment {self.spec.id!r} failed: {type(error).__name__}: {error}") from error


def _simulate(connection: Connection, memory: int) -> None:
    """The worker of `Simulators`: its rows of the shared memory are its environments'."""
    specs, start, total, obs_dim, action_dim = connection.recv()
    dtype = _record_type(obs_dim, action_dim)
    records = np.frombuffer(mmap.mmap(memory, total * dtype.itemsize), dtype)[start : start + len(specs)]
    envs = [_Environment(spec) for spec in specs]
    sizes = [environments.spaces(spec) for spec in specs]
    while True:
        seeds = connection.recv()
        for row, (env, (obs_size, action_size)) in enumerate(zip(envs, sizes, strict=True)):
            record = records[row]
            if seeds is not None:
                record["obs"][:obs_size] = env.reset(seeds[row])
                continue
            next_obs, record["reward"], terminal, timeout = env.step(record["action"][:action_size])
            record["next_obs"][:obs_size] = next_obs
            record["obs"][:obs_size] = env.reset() if terminal or timeout else next_obs
            record["terminal"], record["timeout"] = terminal, timeout
        connection.send(None)


class _Live:
    """An episode under way."""

    def __init__(self, index: int, job: Job, env: _Environment, record: bool):
        self.index, self.job, self.env = index, job, env
        self.obs = env.reset(job.seed)
        self.rng = np.random.default_rng((job.seed, 1))  # not the environment's own stream
        self.return_, self.length = 0.0, 0
        self.rows: list[tuple[Any, ...]] | None = [] if record else None

    def step(self, action: np.ndarray) -> Episode | None:
        """The episode, if this ended it."""
        next_obs, reward, terminal, timeout = self.env.step(action)
        self.return_ += reward
        self.length += 1
        if self.rows is not None:
            self.rows.append((self.obs, action, np.float32(reward), next_obs, terminal))
        self.obs = next_obs
        if not (terminal or timeout):
            return None
        transitions = None if self.rows is None else Transitions(*map(np.array, zip(*self.rows, strict=True)))
        return Episode(self.job.member, self.job.seed, self.return_, self.length, terminal, transitions)


def _roll_out(connection: Connection) -> None:
    """The worker of `Rollouts`: sends (index, episode) for each job as it ends, and None after the last."""
    envs: dict[str, list[_Environment]] = {}
    while True:
        policy, spec, jobs, record = connection.recv()
        spare = envs.setdefault(f"{spec.id} {json.dumps(dict(spec.kwargs), sort_keys=True)}", [])
        waiting: list[tuple[int, Job]] = jobs[::-1]
        live: list[_Live] = []
        act = _batched_policy(policy)
        while waiting or live:
            while waiting and len(live) < LIVE_EPISODES:
                index, job = waiting.pop()
                live.append(_Live(index, job, spare.pop() if spare else _Environment(spec), record))
            ended = []
            for episode, action in zip(live, act(live), strict=True):
                result = episode.step(action)
                if result is not None:
                    connection.send((episode.index, result))
                    ended.append(episode)
            for episode in ended:
                live.remove(episode)
                spare.append(episode.env)
            if connection.poll():  # nothing is due before the last answer, so this is the parent's end
                return
        connection.send(None)


def _batched_policy(policy: Policy | RandomPolicy) -> Callable[[list[_Live]], Sequence[np.ndarray]]:
    """One call for all live episodes: rows of the same member side by side, short rows padded."""
    if isinstance(policy, RandomPolicy):
        return lambda live: [policy.draw(episode.rng) for episode in live]
    chosen: tuple[int, ...] = ()
    part = policy

    def act(live: list[_Live]) -> Sequence[np.ndarray]:
        nonlocal chosen, part
        columns: dict[int, int] = {}
        places = []
        for episode in live:
            member = episode.job.member
            places.append((member, columns.get(member, 0)))
            columns[member] = columns.get(member, 0) + 1
        members = tuple(columns)
        if members != chosen:
            chosen, part = members, policy.members(members)
        rows = {member: row for row, member in enumerate(members)}
        obs = np.zeros((len(members), max(columns.values()), policy.obs_dim), np.float32)
        for episode, (member, column) in zip(live, places, strict=True):
            obs[rows[member], column] = episode.obs
        action = part.act(obs)
        return [action[rows[member], column] for member, column in places]

    return act
