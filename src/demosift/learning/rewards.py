"""Rewards for methods that learn from them: scaled as their authors do, or made from the data and kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from demosift.files import digest
from demosift.results.rewards import read_rewards, write_rewards
from demosift.types import Dataset, Demonstrations

Reward = Float[np.ndarray, "rows"]

KNOWN: dict[tuple[str, ...], Reward] = {}
"""Rewards of this process, so that the cells of a grid that share their data have them made once."""

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
    """What `make` gives these data: found in the folder, or in this process, or made and kept in both."""
    rows = len(data.expert) + len(data.supplementary or ())
    if folder is not None and folder.is_dir():
        return read_rewards(folder, rows)
    parts = [part for part in (data.expert, data.supplementary) if part is not None]
    key = (method, str(data.expert_actions), *map(digest_of, parts))
    if key not in KNOWN:
        KNOWN[key] = make(data).astype(np.float32)
    if folder is not None:
        write_rewards(folder, KNOWN[key])
    return KNOWN[key]


def digest_of(part: Dataset) -> str:
    rows = part.transitions
    return digest({"obs": rows.obs, "action": rows.action, "next_obs": rows.next_obs, "ends": part.episode_ends})
