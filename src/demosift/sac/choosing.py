"""Chooses which of many policies becomes the expert, and which the medium one.

The policies with the best late evaluations are finalists, which are compared on fresh episodes. The returns reported
for the winners come from other episodes again, which had no part in the choice. So there are three disjoint sets of
reset seeds, all above those of training.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from demosift.policy import Policy, map_arrays
from demosift.sac.training import MAX_TRAINING_SEED
from demosift.simulation.evaluation import Evaluation, spread
from demosift.simulation.simulate import Rollouts

EVALUATION_SEED, CHOOSING_SEED, REPORTING_SEED = MAX_TRAINING_SEED, 2_000_000_000, 3_000_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    """When things happen, in environment steps of one agent, and how the expert and the medium policy are chosen."""

    random_steps: int = 5_000  # at the start, with uniform actions and no updates
    evaluate_every: int = 10_000
    evaluation_episodes: int = 10
    annealed_share: float = 0.3  # last part of training, over which the learning rate falls to zero
    candidate_share: float = 1 / 3  # last part of training, whose evaluations give candidates for the expert
    num_finalists: int = 12  # candidates that are evaluated again
    choosing_episodes: int = 50  # for each finalist
    reporting_episodes: int = 20  # for the expert and the medium policy, once they are chosen
    checkpoint_seconds: float = 30.0


def statistics(returns: Sequence[float], lengths: Sequence[int]) -> Row:
    return {
        "episodes": len(returns),
        "return_mean": float(np.mean(returns)),
        "return_std": spread(np.asarray(returns)) or 0.0,
        "return_min": float(np.min(returns)),
        "length_mean": float(np.mean(lengths)),
        "length_min": int(np.min(lengths)),
    }


def worth(row: Row) -> float:
    """Mean minus spread: an expert that sometimes falls is a poor one to imitate. An agent that diverged comes last."""
    worth = row["return_mean"] - row["return_std"]
    return worth if np.isfinite(worth) else -np.inf


class Chosen(NamedTuple):
    policy: Policy
    report: Row


class Choice(NamedTuple):
    setting: int
    seed: int
    expert: Chosen
    medium: Chosen


def candidates(curve: Sequence[Row], steps: int, schedule: Schedule) -> list[Row]:
    """The evaluations from which the expert is chosen; none where every agent diverged before them."""
    return [row for row in curve if row["step"] >= (1 - schedule.candidate_share) * steps]


def choose(
    curve: Sequence[Row], steps: int, schedule: Schedule, load: Callable[[Row], Policy], rollouts: Rollouts
) -> Choice:
    """The expert, from the best late evaluations of all agents, and the medium policy, from earlier ones of its agent.

    An evaluation during training has few episodes, so the finalists for both are compared on many.
    """

    def meet(rows: Sequence[Row], first_seed: int, num_episodes: int = schedule.choosing_episodes) -> list[Row]:
        policy = stack([load(row) for row in rows])
        assert policy.environment is not None
        jobs = [(m, first_seed + e) for m in range(len(rows)) for e in range(num_episodes)]
        met = Evaluation.of(policy.environment, rollouts.submit(policy, policy.environment, jobs).result())
        return [statistics(*pair) for pair in zip(met.returns.tolist(), met.lengths.tolist(), strict=True)]

    finalists = sorted(candidates(curve, steps, schedule), key=worth, reverse=True)[: schedule.num_finalists]
    scores = meet(finalists, CHOOSING_SEED)
    best = max(range(len(finalists)), key=lambda index: worth(scores[index]))
    expert = finalists[best]
    agent = (expert["setting"], expert["seed"])
    earlier = [r for r in curve if (r["setting"], r["seed"]) == agent and r["step"] < expert["step"]] or [expert]
    # A third of the way from nothing to the expert; where returns are negative, from the worst of the agent's.
    nothing = min(0.0, *(row["return_mean"] for row in (*earlier, expert)))
    third = nothing + (scores[best]["return_mean"] - nothing) / 3
    near = sorted(earlier, key=lambda row: abs(row["return_mean"] - third))[: schedule.num_finalists]
    returns = [score["return_mean"] for score in meet(near, CHOOSING_SEED)]
    medium = near[int(np.argmin(np.abs(np.array(returns) - third)))]
    reports = meet([expert, medium], REPORTING_SEED, schedule.reporting_episodes)

    def named(row: Row) -> Row:
        return {key: row[key] for key in ("step", "setting", "seed")}

    def chosen(row: Row, report: Row, **more: Any) -> Chosen:
        return Chosen(load(row), {**named(row), "training": row, **more, "reported": report})

    finals = [{**named(row), **score} for row, score in zip(finalists, scores, strict=True)]
    return Choice(*agent, chosen(expert, reports[0], finalists=finals), chosen(medium, reports[1]))


def stack(policies: Sequence[Policy]) -> Policy:
    """One policy whose members are the given ones."""
    layers = map_arrays(lambda *parts: np.concatenate(parts), *(policy.layers for policy in policies))
    shift, scale = (np.concatenate([getattr(policy, name) for policy in policies]) for name in ("shift", "scale"))
    return dataclasses.replace(policies[0], layers=layers, shift=shift, scale=scale)
