"""Learning on a real task, judged by a permutation test: WBCU beats NBCU where a third of the pile is noise."""

import itertools

import numpy as np

from demosift.algorithms import NBCU, Algorithm, WBCUTwoStage
from demosift.learning.fit import fit
from demosift.simulation.evaluation import evaluate
from demosift.tasks.recipes import make_task
from demosift.types import Demonstrations

SEEDS = 4


def permutation_p_value(better: np.ndarray, worse: np.ndarray) -> float:
    """How many of the ways to split the pooled numbers in two give a difference at least as large."""
    pooled, size = np.concatenate([better, worse]), len(better)
    observed = better.mean() - worse.mean()
    splits = [list(split) for split in itertools.combinations(range(len(pooled)), size)]
    differences = [pooled[split].mean() - np.delete(pooled, split).mean() for split in splits]
    return float(np.mean(np.array(differences) >= observed - 1e-9))


def returns(algorithm: Algorithm, data: list[Demonstrations], iterations: int) -> np.ndarray:
    run = fit(algorithm, data, seeds=SEEDS, iterations=iterations, progress=False)
    return evaluate(run, episodes=2).member_returns


def test_wbcu_beats_nbcu():
    data = [make_task("halfcheetah/noisy-expert", seed) for seed in range(SEEDS)]
    rate, hidden = 1e-3, (128, 128)
    weighted = WBCUTwoStage(
        discriminator_iterations=1500, learning_rate=rate, discriminator_learning_rate=rate, hidden=hidden
    )
    naive = NBCU(learning_rate=rate, hidden=hidden)
    better, worse = returns(weighted, data, 4500), returns(naive, data, 3000)
    assert permutation_p_value(better, worse) < 0.05, (better, worse)
    assert permutation_p_value(worse, better) > 0.5  # the test can fail
