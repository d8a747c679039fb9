"""Rewards for methods that learn from them: scaled as their authors do, or made from the data and kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from demosift.learning.prepared import kept_in, key_of, prepared
from demosift.types import Dataset, Demonstrations

Reward = Float[np.ndarray, "rows"]

RANGE = 1_000.0  # between the best and the worst return, after scaling


def with_rewards(data: Demonstrations, reward: Reward) -> Demonstrations:
    """The data with these rewards of the union's rows instead of their own."""
    here, there = np.split(reward.astype(np.float32), [len(data.expert)])
    pile = None if data.supplementary is None else rewarded(data.supplementary, there)
    return replace(data, expert=rewarded(data.expert, here), supplementary=pile)


def rewarded(part: Dataset, reward: Reward) -> Dataset:
    return replace(part, transitions=part.transitions._replace(reward=reward))


def return_range(data: Demonstrations) -> float:
    """How far the best and the worst return of an episode are apart."""
    returns = np.concatenate([part.returns() for part in (data.expert, data.supplementary) if part is not None])
    return float(returns.max() - returns.min())


def scaled_by_returns(data: Demonstrations) -> Demonstrations:
    """The data with rewards so scaled that the best and the worst return are 1,000 apart; equal returns are kept."""
    factor = RANGE / (return_range(data) or RANGE)
    return with_rewards(data, data.union.reward.astype(np.float64) * factor)


def with_known_actions(data: Demonstrations) -> Demonstrations:
    """The rows that can be cloned: where nobody knows what the expert did, those of the supplementary set alone."""
    if data.expert_actions or data.supplementary is None:
        return data
    return Demonstrations(data.supplementary)


def made_once(
    method: str, data: Demonstrations, folder: Path | None, make: Callable[[Demonstrations], Reward]
) -> Reward:
    """What `make` gives these data, once in a process and once in a folder."""
    key = key_of(data, method, data.expert_actions)
    rows = {"reward": len(data.expert) + len(data.supplementary or ())}
    return prepared(key, kept_in(folder), rows, lambda: {"reward": make(data).astype(np.float32)})["reward"]
