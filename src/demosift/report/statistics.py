"""The statistics of a few seeds: what is reported, and how sure one can be of it.

Interquartile mean, stratified bootstrap and probability of improvement are rliable's (Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice"). A stratum is what is never mixed when seeds are
resampled: one environment and task. Everything random takes an explicit generator.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

RESAMPLES = 2000
CONFIDENCE = 0.95

Scores = Float[np.ndarray, "seeds"]
Statistic = Callable[[Float[np.ndarray, "*rows seeds"]], Float[np.ndarray, "*rows"]]
Interval = tuple[float, float]


def mean(scores: Float[np.ndarray, "*rows seeds"]) -> Float[np.ndarray, "*rows"]:
    return np.mean(scores, axis=-1)


def sample_std(scores: Scores) -> float:
    """With n - 1 in the denominator; NaN for a single seed, which has no spread to speak of."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else float("nan")


def interquartile_mean(scores: Float[np.ndarray, "*rows seeds"]) -> Float[np.ndarray, "*rows"]:
    """The mean of the middle half: a quarter of the seeds, rounded down, is cut from each end."""
    return stats.trim_mean(scores, 0.25, axis=-1)


def resample(
    strata: Sequence[Scores], generator: np.random.Generator, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples seeds"]:
    """Seeds drawn with replacement within each stratum, the strata side by side."""
    return np.concatenate([s[generator.integers(len(s), size=(resamples, len(s)))] for s in strata], axis=1)


def bootstrap_interval(
    strata: Sequence[Scores],
    statistic: Statistic,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The stratified percentile bootstrap interval of a statistic of all seeds."""
    return central_interval(statistic(resample(strata, generator, resamples)), confidence)


def mean_of_strata_interval(
    strata: Sequence[Scores],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The same of the mean over strata of their means, in which every stratum counts alike, however many its seeds."""
    means = [resample([scores], generator, resamples).mean(axis=1) for scores in strata]
    return central_interval(np.mean(means, axis=0), confidence)


def difference_interval(
    first: Sequence[Scores],
    second: Sequence[Scores],
    statistic: Statistic,
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The same for the difference of two methods, whose seeds are resampled independently."""
    ours, theirs = (statistic(resample(strata, generator, resamples)) for strata in (first, second))
    return central_interval(ours - theirs, confidence)


def central_interval(values: Float[np.ndarray, "resamples"], confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def student_interval(
    scores: Float[np.ndarray, "seeds *points"], confidence: float = CONFIDENCE
) -> tuple[Float[np.ndarray, "*points"], Float[np.ndarray, "*points"]]:
    """Student's t interval of the mean over seeds, which for a few seeds holds what it promises; a bootstrap is narrow.

    A single seed has none: both ends are NaN.
    """
    count = len(scores)
    centre = np.mean(scores, axis=0)
    if count < 2:
        return np.full_like(centre, np.nan), np.full_like(centre, np.nan)
    half = stats.t.ppf((1 + confidence) / 2, count - 1) * np.std(scores, axis=0, ddof=1) / np.sqrt(count)
    return centre - half, centre + half


def probability_greater(first: Float[np.ndarray, "n"], second: Float[np.ndarray, "m"]) -> float:
    """P(x > y) + P(x = y)/2 for x and y drawn from the two: Mann-Whitney's U over n m, the area under the ROC curve."""
    ranks = stats.rankdata(np.concatenate([first, second]))[: len(first)]
    return float((ranks.sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second)))


def probability_of_improvement(first: Sequence[Scores], second: Sequence[Scores]) -> float:
    """How likely a seed of the first method beats a seed of the second, averaged over strata; ties count half."""
    return float(np.mean([probability_greater(x, y) for x, y in zip(first, second, strict=True)]))


def improvement_interval(
    first: Sequence[Scores],
    second: Sequence[Scores],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The stratified percentile bootstrap interval of the probability of improvement."""
    total = np.zeros(resamples)
    for x, y in zip(first, second, strict=True):
        ours, theirs = resample([x], generator, resamples), resample([y], generator, resamples)
        wins = np.sign(ours[:, :, None] - theirs[:, None, :])  # 1, 0 for a tie, -1
        total += (1 + wins.mean(axis=(1, 2))) / 2
    return central_interval(total / len(first), confidence)
