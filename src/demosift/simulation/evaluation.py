"""Evaluation: deterministic episodes of all members together, raw returns and normalised scores.

Every member meets the same initial states (their seeds depend on the seed, the iteration and the episode's index, not
on the member), so that differences between members are differences between policies.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.policy import Actor, Named, NoisyPolicy, Policy, RandomPolicy, ScriptedPolicy
from demosift.processes import Closing
from demosift.ranges import EPISODES, SEED, STEPS
from demosift.simulation import environments
from demosift.simulation.cores import available_cores
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.simulation.shipped import SHIPPED, shipped_policy
from demosift.simulation.simulate import Episode, Job, Progress, Rollouts, check_fit, episode_seeds
from demosift.types import EnvironmentSpec, InputError


class HasPolicy(Protocol):
    """A run, for instance."""

    @property
    def policy(self) -> Policy: ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Returns of every member and episode. `print` it for a table, `to_json` for everything."""

    environment: EnvironmentSpec
    returns: Float[np.ndarray, "members episodes"]
    lengths: Int[np.ndarray, "members episodes"]
    successes: Bool[np.ndarray, "members episodes"] | None = None  # where the environment tells

    @classmethod
    def of(cls, environment: EnvironmentSpec, episodes: Sequence[Episode]) -> Self:
        """From the episodes of `evaluation_jobs`, in their order."""
        num_members = episodes[-1].member + 1
        returns = np.array([episode.return_ for episode in episodes]).reshape(num_members, -1)
        lengths = np.array([episode.length for episode in episodes]).reshape(num_members, -1)
        told = [episode.success for episode in episodes]
        successes = None if None in told else np.array(told, bool).reshape(num_members, -1)
        return cls(environment, returns, lengths, successes)

    @property
    def member_returns(self) -> Float[np.ndarray, "members"]:
        """Each member's mean over its episodes."""
        return self.returns.mean(axis=1)

    @property
    def scores(self) -> Float[np.ndarray, "members episodes"] | None:
        """Normalised returns: 0 is random, 1 the expert; None where these are unknown for the environment."""
        return environments.normalised_score(self.environment, self.returns)

    @property
    def mean(self) -> float:
        """The mean over all members and episodes."""
        return float(self.returns.mean())

    @property
    def std(self) -> float | None:
        """The spread of the members' mean returns, so of training, not of episodes. None for a single member."""
        return spread(self.member_returns)

    def rows(self, iteration: int) -> list[dict[str, Any]]:
        """A row per member, with every episode, for the metrics of a run."""
        scores = self.scores
        return [
            {
                "iteration": iteration,
                "member": member,
                "returns": self.returns[member].tolist(),
                "lengths": self.lengths[member].tolist(),
                "score": None if scores is None else float(scores[member].mean()),
                **({} if self.successes is None else {"success": float(self.successes[member].mean())}),
            }
            for member in range(len(self.returns))
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns, lengths and scores with their means, as `demosift evaluate --json` prints them."""
        scores = self.scores
        return {
            "environment": {"id": self.environment.id, "kwargs": dict(self.environment.kwargs)},
            "num_members": len(self.returns),
            "episodes": self.returns.shape[1],
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "mean": self.mean,
            "std": self.std,
            "scores": None if scores is None else scores.tolist(),
            "score_mean": None if scores is None else float(scores.mean()),
            "score_std": None if scores is None else spread(scores.mean(axis=1)),
            **({} if self.successes is None else self._success()),
        }

    def _success(self) -> dict[str, Any]:
        assert self.successes is not None
        rates = self.successes.mean(axis=1)
        return {"successes": self.successes.tolist(), "success_mean": float(rates.mean()), "success_std": spread(rates)}

    def __str__(self) -> str:
        scores = self.scores
        scored = "" if scores is None else f" {'score':>8}"
        if self.successes is not None:
            scored += f" {'success':>8}"
        lines = [
            f"{self.environment.id}, {self.returns.shape[1]} episodes per member; ± is the standard deviation "
            "over a member's episodes",
            f"{'member':>6} {'return':>10} {'±':>8} {'length':>8}{scored}",
        ]
        for member, (returns, lengths) in enumerate(zip(self.returns, self.lengths, strict=True)):
            score = "" if scores is None else f" {scores[member].mean():>8.1%}"
            if self.successes is not None:
                score += f" {self.successes[member].mean():>8.1%}"
            deviation = spread(returns)
            plus_minus = "" if deviation is None else f"{deviation:.1f}"
            lines.append(f"{member:>6} {returns.mean():>10.1f} {plus_minus:>8} {lengths.mean():>8.1f}{score}")
        if self.std is not None:
            score = "" if scores is None else f", score {scores.mean():.1%} ± {spread(scores.mean(axis=1)):.1%}"
            if self.successes is not None:
                rates = self.successes.mean(axis=1)
                score += f", success {rates.mean():.1%} ± {spread(rates):.1%}"
            over = f"over the {len(self.returns)} members' means"
            lines.append(f"return {self.mean:.1f} ± {self.std:.1f}{score} (standard deviation {over})")
        return "\n".join(lines)


def evaluate(
    source: Actor | HasPolicy | str | os.PathLike[str],
    env: EnvironmentSpec | str | None = None,
    episodes: int = 10,
    seed: int = 0,
    num_workers: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Deterministic episodes of all members of a policy, a run, or the path of either.

    The environment defaults to the one stored with the policy. `Evaluator` evaluates while training goes on.
    """
    EPISODES.check("evaluate: episodes", episodes)
    SEED.check("evaluate: seed", seed)
    policy, spec = policy_and_environment(source, env)
    jobs = evaluation_jobs(policy.num_members, episodes, seed)
    with Rollouts(min(num_workers or available_cores(), len(jobs))) as pool:
        return Evaluation.of(spec, pool.submit(policy, spec, jobs, progress=progress).result())


class PendingRows:
    """An evaluation under way: `result` waits for a row per member."""

    def __init__(self, environment: EnvironmentSpec, iteration: int, episodes: Future[list[Episode]]) -> None:
        self.environment, self.iteration, self.episodes = environment, iteration, episodes

    def done(self) -> bool:
        return self.episodes.done()

    def result(self) -> list[dict[str, Any]]:
        return Evaluation.of(self.environment, self.episodes.result()).rows(self.iteration)


class Evaluator(Closing):
    """Evaluates every so many iterations while training goes on, with processes that stay between evaluations.

    Episode seeds come from (seed, iteration): a run that was killed and resumed measures what it would have measured.
    `env` may be None where the policies say which environment they are for; `episodes` may depend on the iteration.
    `pool` lets several share their processes.
    """

    def __init__(
        self,
        env: EnvironmentSpec | str | None,
        every: int = 10_000,
        episodes: int | Callable[[int], int] = 10,
        seed: int = 0,
        num_workers: int | None = None,
        pool: Rollouts | None = None,
    ):
        STEPS.check("evaluation: every", every)
        if isinstance(episodes, int):
            EPISODES.check("evaluation: episodes", episodes)
        self.environment = environments.resolve(env) if isinstance(env, str) else env
        self.every, self.episodes, self.seed = every, episodes, seed
        self._own_pool = pool is None
        self._pool = Rollouts(num_workers) if pool is None else pool

    def describe(self) -> dict[str, Any]:
        """What identifies the evaluation."""
        spec = self.environment
        environment = None if spec is None else {"id": spec.id, "kwargs": dict(spec.kwargs)}
        return {"environment": environment, "every": self.every, "episodes": self.episodes, "seed": self.seed}

    def submit(self, policy: Policy, iteration: int, environment: EnvironmentSpec | None = None) -> PendingRows:
        """Start evaluating, in the evaluator's environment or else the given one."""
        spec = self.environment or environment
        if spec is None:
            raise InputError("the policy does not say which environment it is for: name one")
        episodes = self.episodes if isinstance(self.episodes, int) else self.episodes(iteration)
        jobs = evaluation_jobs(policy.num_members, episodes, self.seed, iteration)
        return PendingRows(spec, iteration, self._pool.submit(policy, spec, jobs))

    def close(self) -> None:
        """End the processes, unless they are shared."""
        if self._own_pool:
            self._pool.close()


def evaluation_jobs(num_members: int, episodes: int, seed: int, iteration: int = 0) -> list[Job]:
    """Member by member; the same seeds for each."""
    seeds = episode_seeds(episodes, "evaluate", seed, iteration)
    return [Job(member, episode_seed) for member in range(num_members) for episode_seed in seeds]


def policy_and_environment(
    source: Actor | HasPolicy | str | os.PathLike[str], env: EnvironmentSpec | str | None = None
) -> tuple[Actor, EnvironmentSpec]:
    """What acts, and where: `env`, or else the environment stored with the policy."""
    spec = environments.resolve(env) if isinstance(env, str) else env
    if isinstance(source, str | os.PathLike):
        policy = load_policy(source, spec)
    else:
        policy = source if isinstance(source, Actor) else source.policy
    kept = policy.environment
    if spec is None:
        if kept is None:
            raise InputError("the policy does not say which environment it is for: name one")
        spec = environments.stored(kept) if isinstance(policy, Policy | NoisyPolicy) else kept
    elif kept is not None and (kept.id, kept.kwargs) == (spec.id, spec.kwargs):
        spec = kept  # it has the bounds its actions were scaled by, which a dataset may have made narrower
    check_fit(policy, spec)
    return policy, spec


def load_policy(
    text: str | os.PathLike[str], env: EnvironmentSpec | str | None = None, member: int | None = None
) -> Named:
    """A policy by its name on the command line: a run folder, a `.safetensors` file, or `expert`, `medium`, `random`.

    The three names need an environment. Write `./expert` for a folder that happens to be called `expert`.
    """
    name = os.fspath(text)
    if name in (*SHIPPED, "random"):
        if env is None:
            raise InputError(f"the policy {name!r} needs an environment, such as hopper")
        spec = environments.resolve(env) if isinstance(env, str) else env
        policy = _named_policy(name, spec)
    else:
        path = Path(name)
        if not path.exists():
            raise InputError(f"{name}: no such run folder or policy file, and not one of expert, medium, random")
        policy = Policy.load(path / "policy.safetensors" if path.is_dir() else path)
    if member is None:
        return policy
    if not isinstance(policy, Policy):
        raise InputError(f"the {name} policy has no members to choose from")
    return policy.member(member)


def _named_policy(name: str, spec: EnvironmentSpec) -> Named:
    if name == "random":
        return RandomPolicy(spec)
    if name == "expert" and spec.id in SCRIPTED:
        return ScriptedPolicy(spec)
    return shipped_policy(environments.short_name(spec), name)


def spread(values: Float[np.ndarray, "values"]) -> float | None:
    """The sample standard deviation; None for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
