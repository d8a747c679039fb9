"""The processes that simulate: how they start, talk and end, and what they do.

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
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from jaxtyping import Float

from demosift.policy import Actor, RandomPolicy
from demosift.simulation import environments
from demosift.types import EnvironmentSpec, InputError, Transitions

# Episodes a worker keeps alive at once: enough to make the policy's overhead per step small beside the simulation's.
LIVE_EPISODES = 16


class SimulationError(RuntimeError):
    """An environment failed, or the process it ran in died. The worker's traceback is in a note."""


class Job(NamedTuple):
    """An episode to simulate: which member acts, and the seed of the environment's reset."""

    member: int
    seed: int


@dataclass(frozen=True, eq=False)
class Episode:
    """The result of a job, with `transitions` if they were recorded. Where not `terminal`, time ran out."""

    member: int
    seed: int
    return_: float
    length: int
    terminal: bool
    transitions: Transitions | None = None


class Failure(NamedTuple):
    """The last message of a worker that cannot go on."""

    message: str
    traceback: str
    is_input: bool


class Worker:
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
                    f"import demosift.simulation.workers as w; w.serve(w.{role}, {theirs.fileno()}, *{fds})",
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
            self.receive()  # it died: its last message, if any, says why

    def receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise SimulationError(f"a simulation worker died (exit status {self.process.poll()})") from error
        if isinstance(answer, Failure):
            failure = InputError(answer.message) if answer.is_input else SimulationError(answer.message)
            failure.add_note(answer.traceback)
            raise failure
        return answer


class Workers:
    """Workers with the same role; they end when closed, when garbage-collected, or when this process ends."""

    def __init__(self, num_workers: int, role: str, *fds: int):
        self._workers = [Worker(role, *fds) for _ in range(num_workers)]
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

    def __iter__(self) -> Iterator[Worker]:
        if not self.close.alive:
            raise RuntimeError("the simulation was closed")
        return iter(self._workers)


class Closing:
    """Something that is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # it holds nothing that needs saving
    for worker in workers:
        worker.process.wait()
        worker.connection.close()


def record_type(obs_dim: int, action_dim: int) -> np.dtype:
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


def serve(role: Callable[..., None], fd: int, *fds: int) -> None:
    """A worker's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    try:
        role(connection, *fds)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except Exception as error:
        ours = isinstance(error, InputError | SimulationError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        connection.send(Failure(message, traceback.format_exc(), isinstance(error, InputError)))


class _Environment:
    """An environment in a worker, with actions in [-1, 1] and float32 observations."""

    def __init__(self, spec: EnvironmentSpec):
        self.spec = spec
        self.env: gymnasium.Env = environments.make(spec)

    def reset(self, seed: int | None = None) -> Float[np.ndarray, "obs"]:
        with self._named():
            obs, _ = self.env.reset(seed=seed)
        return np.asarray(obs, np.float32)

    def step(self, action: np.ndarray) -> tuple[Float[np.ndarray, "obs"], float, bool, bool]:
        with self._named():
            obs, reward, terminated, truncated, _ = self.env.step(self.spec.scale_action(action))
        # An episode that ends in a terminal state at the time limit has ended in a terminal state.
        return np.asarray(obs, np.float32), float(reward), bool(terminated), bool(truncated and not terminated)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise SimulationError(f"environment {self.spec.id!r} failed: {type(error).__name__}: {error}") from error


def simulate(connection: Connection, memory: int) -> None:
    """The worker of `Simulators`: it has a row of the shared memory for each of its environments."""
    specs, start, total, obs_dim, action_dim = connection.recv()
    dtype = record_type(obs_dim, action_dim)
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


def roll_out(connection: Connection) -> None:
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
            if connection.poll():  # no message is due before the last answer, so the parent has gone
                return
        connection.send(None)


def _batched_policy(policy: Actor) -> Callable[[list[_Live]], Sequence[np.ndarray]]:
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
        action = part.act_members(obs)
        return [action[rows[member], column] for member, column in places]

    return act
