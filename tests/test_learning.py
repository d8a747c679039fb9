"""Learning on a real task, judged by a permutation test: WBCU beats NBCU where a third of the pile is noise."""

import itertools
from typing import Any

import numpy as np
import pytest

from demosift.algorithms import NBCU, WBCUTwoStage
from demosift.learning.algorithm import Method
from demosift.learning.fit import fit
from demosift.tasks.recipes import make_task
from demosift.types import Demonstrations

SEEDS = 4
TASK = "halfcheetah/noisy-expert"


def permutation_p_value(better: np.ndarray, worse: np.ndarray) -> float:
    """How many of the ways to split the pooled numbers in two give a difference at least as large."""
    pooled, size = np.concatenate([better, worse]), len(better)
    observed = better.mean() - worse.mean()
    splits = [list(split) for split in itertools.combinations(range(len(pooled)), size)]
    differences = [pooled[split].mean() - np.delete(pooled, split).mean() for split in splits]
    return float(np.mean(np.array(differences) >= observed - 1e-9))


def likeness(algorithm: Method, data: list[Demonstrations], iterations: int) -> np.ndarray:
    """Minus each policy's squared error on an episode of the expert that nobody has seen.

    Not its returns: of policies this young, they differ by thousands from one processor to another.
    """
    run = fit(algorithm, data, seeds=SEEDS, iterations=iterations, progress=False)
    unseen = make_task(TASK, SEEDS).expert.transitions
    action = run.policy.act_members(np.repeat(unseen.obs[None], SEEDS, axis=0))
    return -np.mean((action - unseen.action) ** 2, axis=(1, 2))


def test_the_p_value_is_a_share_of_the_splits():
    low, high = np.arange(4.0), np.arange(4.0) + 10
    assert permutation_p_value(high, low) == 1 / 70
    assert permutation_p_value(low, high) == 1.0
    assert permutation_p_value(low, low) > 0.5


@pytest.mark.long
def test_wbcu_beats_nbcu():
    """And what beats NBCU is the weights: from a discriminator that has hardly been trained, they do not."""
    data = [make_task(TASK, seed) for seed in range(SEEDS)]
    rate, hidden, steps = 1e-3, (128, 128), 1500

    def weighted(discriminator_iterations: int) -> np.ndarray:
        rates: dict[str, Any] = {"learning_rate": rate, "discriminator_learning_rate": rate}
        algorithm = WBCUTwoStage(discriminator_iterations=discriminator_iterations, hidden=hidden, **rates)
        return likeness(algorithm, data, discriminator_iterations + steps)

    naive = likeness(NBCU(learning_rate=rate, hidden=hidden), data, steps)
    sifted, unsifted = weighted(1500), weighted(1)
    assert permutation_p_value(sifted, naive) < 0.05, (sifted, naive)
    assert permutation_p_value(unsifted, naive) > 0.05, (unsifted, naive)
