"""What the processes that simulate do. They never import JAX."""

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Float

from demosift.policy import Actor, NoisyPolicy, RandomPolicy, ScriptedPolicy
from demosift.processes import OutsideError
from demosift.simulation import environments, state
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.simulation.scripted.environment import Program
from demosift.simulation.scripted.operators import operate
from demosift.types import EnvironmentSpec, Transitions


class Job(NamedTuple):
    """An episode to simulate: which member acts, and the seed of the environment's reset."""

    member: int
    seed: int


@dataclass(frozen=True, eq=False)
class Episode:
    """The result of a job, with `transitions` if they were recorded. Where not `terminal`, time ran out.

    `success` is whether any step was successful; None where the environment does not say.
    """

    member: int
    seed: int
    return_: float
    length: int
    terminal: bool
    transitions: Transitions | None = None
    success: bool | None = None


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


class _Environment:
    """An environment in a worker, with actions in [-1, 1] and float32 observations."""

    def __init__(self, spec: EnvironmentSpec):
        self.spec = spec
        self.env: gymnasium.Env = environments.make(spec)
        self.success: bool | None = None  # of the last step

    def reset(self, seed: int | None = None) -> Float[np.ndarray, "obs"]:
        with self._named():
            obs, _ = self.env.reset(seed=seed)
        return np.asarray(obs, np.float32)

    def step(self, action: np.ndarray) -> tuple[Float[np.ndarray, "obs"], float, bool, bool]:
        with self._named():
            obs, reward, terminated, truncated, info = self.env.step(self.spec.scale_action(action))
        self.success = environments.success(info)
        # An episode that ends in a terminal state at the time limit has ended in a terminal state.
        return np.asarray(obs, np.float32), float(reward), bool(terminated), bool(truncated and not terminated)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise OutsideError(f"environment {self.spec.id!r} failed: {type(error).__name__}: {error}") from error


def simulate(connection: Connection, memory: int) -> None:
    """The worker of `Simulators`: it has a row of the shared memory for each of its environments.

    A command is to `reset` with seeds, to `step`, to `capture` the environments' states, or to `restore` them.
    """
    specs, start, total, obs_dim, action_dim = connection.recv()
    dtype = record_type(obs_dim, action_dim)
    records = np.frombuffer(mmap.mmap(memory, total * dtype.itemsize), dtype)[start : start + len(specs)]
    envs = [_Environment(spec) for spec in specs]
    sizes = [environments.spaces(spec) for spec in specs]
    while True:
        command, given = connection.recv()
        if command == "capture":
            connection.send([state.capture(env.env) for env in envs])
            continue
        for row, (env, (obs_size, action_size)) in enumerate(zip(envs, sizes, strict=True)):
            record = records[row]
            if command == "restore":
                env.reset(0)  # which makes what a first reset makes
                state.restore(env.env, given[row])
            elif command == "reset":
                record["obs"][:obs_size] = env.reset(given[row])
            else:
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
        self.success: bool | None = None
        self.program: Program | None = None
        self.rows: list[tuple[Any, ...]] | None = [] if record else None

    def step(self, action: np.ndarray) -> Episode | None:
        """The episode, if this ended it."""
        next_obs, reward, terminal, timeout = self.env.step(action)
        self.return_ += reward
        self.length += 1
        if self.env.success is not None:
            self.success = self.env.success or bool(self.success)
        if self.rows is not None:
            self.rows.append((self.obs, action, np.float32(reward), next_obs, terminal))
        self.obs = next_obs
        if not (terminal or timeout):
            return None
        transitions = None if self.rows is None else Transitions(*map(np.array, zip(*self.rows, strict=True)))
        return Episode(self.job.member, self.job.seed, self.return_, self.length, terminal, transitions, self.success)

    def operate(self, policy: ScriptedPolicy) -> np.ndarray:
        if self.program is None:
            env: Any = self.env.env.unwrapped
            operator, pause = policy.operators[self.job.member], SCRIPTED[self.env.spec.id].pause
            self.program = operate(env, operator, self.job.seed, pause)
        return self.program()


def roll_out(connection: Connection) -> None:
    """The worker of `Rollouts`: sends (index, episode) for each job as it ends, and None after the last."""
    envs: dict[str, list[_Environment]] = {}
    while True:
        policy, spec, jobs, record = connection.recv()
        spare = envs.setdefault(f"{spec.id} {json.dumps(dict(spec.kwargs), sort_keys=True)}", [])
        waiting: list[tuple[int, Job]] = jobs[::-1]
        live: list[_Live] = []
        act = _batched_policy(policy)
        at_once = environments.live_episodes(spec)
        while waiting or live:
            while waiting and len(live) < at_once:
                index, job = waiting.pop()
                env = spare.pop() if spare else _Environment(spec)
                env.spec = spec  # an earlier policy's may have had other bounds
                live.append(_Live(index, job, env, record))
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
    if isinstance(policy, ScriptedPolicy):
        return lambda live: [episode.operate(policy) for episode in live]
    if isinstance(policy, NoisyPolicy):
        steady = _batched_policy(policy.policy)
        return lambda live: [policy.disturb(action, each.rng) for each, action in zip(live, steady(live), strict=True)]
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
