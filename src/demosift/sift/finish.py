"""Did an episode come to its end? Every row of one that stops early is the expert's; only its end is missing.

Where the expert's episodes go from a beginning to an end, a state tells how far along it is. That is learned from the
expert's episodes; an episode's last state then tells how much of the way it went. Where states do not tell, judged by
episodes that were left out, as in a gait that repeats itself, nothing is said. Without an expert, all episodes of a set
are each other's measure: most come to their end.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from sklearn.ensemble import ExtraTreesRegressor

from demosift.data import RowSource
from demosift.sift.overlap import Sample, draw_sample

MOST_ROWS = 5_000
TREES, LEAF = 60, 3
FEWEST_EPISODES = 3
TOLD = 0.5  # the least share of the variance of progress that states must explain
LEAST = 0.01
PARTS = 5  # with many episodes, several are left out together


class Finish(NamedTuple):
    share: Float[np.ndarray, "episodes"]  # of the expert's way that each episode went, the expert's episodes first
    told: float  # share of the variance of progress that states explain, in episodes that were left out


def measure_finish(sources: tuple[RowSource, RowSource], seed: int) -> Finish | None:
    """How far episodes went, by the expert's. None where nobody can tell."""
    found = measure_own(sources[0], seed)
    if found is None:
        return None
    own, told, sample = found
    last = sources[1].take(sources[1].episode_ends - 1)[0]
    return Finish(
        shares(np.concatenate([own, learn(sample, np.ones(len(sample.row), bool), seed).predict(last)]), own), told
    )


def agree_on_finish(source: RowSource, seed: int) -> Finish | None:
    """How far episodes went, each by all others of the same set. None where nobody can tell."""
    found = measure_own(source, seed)
    return None if found is None else Finish(shares(found[0], found[0]), found[1])


def measure_own(source: RowSource, seed: int) -> tuple[Float[np.ndarray, "episodes"], float, Sample] | None:
    """The progress of each episode's last state as learned from other episodes, how well that is told, and the rows."""
    sample = draw_sample(source, MOST_ROWS, np.random.default_rng([seed, 7]))
    if len(np.unique(sample.episode)) < FEWEST_EPISODES:
        return None
    ends = source.take(source.episode_ends - 1)[0]
    left_out, own = np.empty(len(sample.row)), np.empty(len(ends))
    part = np.arange(len(ends)) % min(len(ends), PARTS)
    for one in np.unique(part):
        rows = part[sample.episode] == one
        model = learn(sample, ~rows, seed)
        own[part == one] = model.predict(ends[part == one])
        if rows.any():
            left_out[rows] = model.predict(sample.obs[rows])
    true = progress(sample)
    told = 1 - float(np.mean((left_out - true) ** 2) / max(true.var(), 1e-12))
    return None if told < TOLD else (own, told, sample)


def progress(sample: Sample) -> Float[np.ndarray, "rows"]:
    """How far along its episode a row is, from 0 to 1."""
    return sample.step / np.maximum(sample.length - 1, 1)


def learn(sample: Sample, rows: Bool[np.ndarray, "rows"], seed: int) -> ExtraTreesRegressor:
    trees = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, random_state=seed)
    return trees.fit(sample.obs[rows], progress(sample)[rows])


def shares(reached: Float[np.ndarray, "episodes"], usual: Float[np.ndarray, "others"]) -> Float[np.ndarray, "episodes"]:
    return np.clip(reached / max(float(np.median(usual)), LEAST), LEAST, 1.0)
