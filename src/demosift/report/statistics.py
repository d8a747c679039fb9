"""The statistics of a few seeds: what is reported, and how sure one can be of it.

Interquartile mean, stratified bootstrap, probability of improvement and performance profile are rliable's (Agarwal et
al. 2021, "Deep reinforcement learning at the edge of the statistical precipice"). A stratum is one environment and
task; seeds are resampled within it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

BOOTSTRAP_SEED = 0
RESAMPLES = 2000
CONFIDENCE = 0.95

Scores = Float[np.ndarray, "seeds"]
Resampled = Float[np.ndarray, "*resamples seeds"]
Values = Float[np.ndarray, "*resamples"]
Interval = tuple[float, float]
UNKNOWN: Interval = (np.nan, np.nan)


def sample_std(scores: Float[np.ndarray, "..."], axis: int = -1) -> Float[np.ndarray, "..."]:
    """The spread over seeds or members, with n - 1 in the denominator; NaN for a single one."""
    single = scores.shape[axis] < 2
    return np.full_like(np.mean(scores, axis=axis), np.nan) if single else np.std(scores, axis=axis, ddof=1)


def interquartile_mean(strata: Sequence[Resampled]) -> Values:
    """The mean of the middle half of all seeds: a quarter of them, rounded down, is cut from each end."""
    scores = np.concatenate(strata, axis=-1)  # scipy.stats has this, and takes half a second to import
    cut = scores.shape[-1] // 4
    kept = slice(cut, scores.shape[-1] - cut)
    return np.partition(scores, (kept.start, kept.stop - 1), axis=-1)[..., kept].mean(axis=-1)


def mean_of_strata(strata: Sequence[Resampled]) -> Values:
    """Every stratum counts alike, however many seeds it has."""
    return np.mean([np.mean(scores, axis=-1) for scores in strata], axis=0)


def bootstrap_interval(
    groups: Sequence[Scores],
    statistic: Callable[[Sequence[Resampled]], Values],
    seed: int = BOOTSTRAP_SEED,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The percentile bootstrap interval of a statistic of groups of seeds, each resampled by itself.

    Every interval draws from a generator of its own, so that adding a method or a column moves no other digit.
    """
    values = statistic(resample(groups, seed, resamples))
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def resample(groups: Sequence[Scores], seed: int, resamples: int) -> list[Float[np.ndarray, "resamples seeds"]]:
    """Seeds of each group, drawn with replacement."""
    generator = np.random.default_rng(seed)
    return [scores[generator.integers(len(scores), size=(resamples, len(scores)))] for scores in groups]


def performance_profile(
    strata: Sequence[Resampled], limits: Float[np.ndarray, "limits"]
) -> Float[np.ndarray, "limits *resamples"]:
    """The share of seeds whose score is above each limit; every stratum counts alike."""
    return np.stack([mean_of_strata([(scores > limit).astype(float) for scores in strata]) for limit in limits])


def profile_interval(
    strata: Sequence[Scores],
    limits: Float[np.ndarray, "limits"],
    seed: int = BOOTSTRAP_SEED,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> tuple[Float[np.ndarray, "limits"], Float[np.ndarray, "limits"]]:
    """The interval of the profile at each limit by itself, all from the same resamples."""
    profile = performance_profile(resample(strata, seed, resamples), limits)
    low, high = np.quantile(profile, [(1 - confidence) / 2, (1 + confidence) / 2], axis=1)
    return low, high


def difference_interval(first: Sequence[Scores], second: Sequence[Scores], seed: int = BOOTSTRAP_SEED) -> Interval:
    """The interval of the difference between two methods' means over strata."""

    def difference(drawn: Sequence[Resampled]) -> Values:
        return mean_of_strata(drawn[: len(first)]) - mean_of_strata(drawn[len(first) :])

    return bootstrap_interval([*first, *second], difference, seed)


def student_interval(
    scores: Float[np.ndarray, "seeds *points"], confidence: float = CONFIDENCE
) -> tuple[Float[np.ndarray, "*points"], Float[np.ndarray, "*points"]]:
    """Student's t interval of the mean over seeds, which holds for few seeds, where a bootstrap is too narrow.

    For a single seed both ends are NaN.
    """
    count, centre = len(scores), np.mean(scores, axis=0)
    half = stdtrit(count - 1, (1 + confidence) / 2) * sample_std(scores, axis=0) / np.sqrt(count)
    return centre - half, centre + half


def probability_greater(first: Float[np.ndarray, "n"], second: Float[np.ndarray, "m"]) -> float:
    """P(x > y) + P(x = y)/2 for x and y drawn from the two: Mann-Whitney's U over n m, the area under the ROC curve."""
    both = np.sort(first), np.sort(second)
    if any(len(values) and np.isnan(values[-1]) for values in both):  # which is sorted to the end
        return np.nan
    # A rank is a multiple of a half, and so is their sum, exactly. The sorted sets take less room than ranks of all.
    places = [np.searchsorted(values, first, side=side) for values in both for side in ("left", "right")]
    ranks = (np.sum(places, axis=0) + 1) / 2
    return float((ranks.sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second)))


def probability_of_improvement(first: Sequence[Scores], second: Sequence[Scores]) -> float:
    """How likely a seed of the first method beats a seed of the second, averaged over strata; ties count half."""
    return float(np.mean([probability_greater(x, y) for x, y in zip(first, second, strict=True)]))


def improvement_interval(
    first: Sequence[Scores],
    second: Sequence[Scores],
    seed: int = BOOTSTRAP_SEED,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The interval of the probability of improvement."""

    def improvement(drawn: Sequence[Resampled]) -> Values:
        total = np.zeros(resamples)
        for x, y in zip(drawn[::2], drawn[1::2], strict=True):
            wins = np.sign(x[:, :, None] - y[:, None, :])  # 1, 0 for a tie, -1
            total += (1 + wins.mean(axis=(1, 2))) / 2
        return total / len(first)

    pairs = [scores for pair in zip(first, second, strict=True) for scores in pair]
    return bootstrap_interval(pairs, improvement, seed, resamples, confidence)
