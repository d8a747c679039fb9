"""What surrounds a row: means in closed form, and weights that get better, or stay as they are."""

import numpy as np
import pytest

from demosift.report.statistics import probability_greater
from demosift.sift import context
from demosift.sift.context import Surroundings, weigh_in_context


def test_means_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    ends = np.cumsum([1, 99, 100, 101, 250, 7])
    value = rng.normal(size=ends[-1])
    found = Surroundings(value, ends).of(np.arange(len(value)))
    start = 0
    for end in ends:
        for row in range(start, end):
            first = min(max(row - context.STRETCH // 2, start), max(end - context.STRETCH, start))
            around = value[first : min(first + context.STRETCH, end)]
            expected = [value[row], around.mean(), value[start:end].mean()]
            np.testing.assert_allclose(found[:, row], expected, atol=1e-9)
        start = end


def noisy_log_weights(good: float, bad: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One expert episode, then ten good and ten bad ones of the pile; single rows hardly tell them apart."""
    rng = np.random.default_rng(seed)
    means = np.repeat([good, *[good] * 10, *[bad] * 10], 300)
    return means + rng.normal(size=len(means)), np.arange(300, len(means) + 1, 300), means == bad


def test_episodes_are_told_apart_where_rows_are_not():
    log_weight, ends, bad = noisy_log_weights(0.3, -0.7)
    alone = np.exp(log_weight)
    weight, coefficients = weigh_in_context(alone, ends, 300)
    assert probability_greater(alone[~bad], alone[bad]) < 0.8
    assert probability_greater(weight[~bad], weight[bad]) > 0.999
    assert weight[bad].sum() / weight.sum() < 0.05 < 0.2 < alone[bad].sum() / alone.sum()
    assert coefficients.slopes[2] > 0
    good = weight[~bad]
    assert good.sum() ** 2 / (good**2).sum() > 0.95 * len(good)  # all good rows still count


def test_a_bad_half_of_an_episode_is_found():
    """The stretch around a row tells its half, though the episode's mean does not."""
    rng = np.random.default_rng(1)
    halves = np.concatenate([np.full(2_000, 0.5), *[np.repeat([0.5, -2.0], 500)] * 6])
    log_weight = halves + rng.normal(size=len(halves))
    weight, _ = weigh_in_context(np.exp(log_weight), np.arange(1_000, len(halves) + 1, 1_000), 2_000)
    bad = halves < 0
    assert weight[bad].sum() / weight.sum() < 0.1
    assert probability_greater(weight[~bad], weight[bad]) > 0.99


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_equal_rows_stay_as_they_are(spread: float):
    rng = np.random.default_rng(2)
    weight = np.exp(spread * rng.normal(size=3_000))
    found, _ = weigh_in_context(weight, np.arange(100, 3_001, 100), 300)
    np.testing.assert_allclose(found, 1.0, atol=0.05)
