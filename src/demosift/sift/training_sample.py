"""The rows that models are trained on: all of them, or a uniform sample of a large set.

A set that does not fit in memory is read twice from end to end: here, to hash its rows and measure its states, and
again to weigh it. In between, models train on the sample.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Shaped, UInt64

from demosift.data import RowSource
from demosift.data.folds import hash_rows
from demosift.data.normaliser import Normaliser
from demosift.data.rows import Rows
from demosift.sift.engines import Engine, Here
from demosift.sift.folds import Plan

EXPERT_ROWS, SUPPLEMENTARY_ROWS = 65_536, 262_144  # the most rows of each set to train on

Advance = Callable[[int], None]


class TrainingSample(NamedTuple):
    """Rows to train on, expert first: normalised states, actions in [-1, 1] (or one-hot), and what to leave out."""

    obs: Float32[np.ndarray, "rows obs"]
    action: Shaped[np.ndarray, "rows action"]
    num_expert: int
    plan: Plan

    @property
    def expert(self) -> Bool[np.ndarray, "rows"]:
        return np.arange(len(self.obs)) < self.num_expert


class Survey(NamedTuple):
    """What one pass over a source finds out."""

    hashes: UInt64[np.ndarray, "rows"]
    mean: Float[np.ndarray, "obs"]
    deviation: Float[np.ndarray, "obs"]

    def normaliser(self) -> Normaliser:
        """The same as `Normaliser.fit` of all rows at once."""
        return Normaliser((-self.mean).astype(np.float32), (1 / (self.deviation + 1e-3)).astype(np.float32))


class BlockSurvey(NamedTuple):
    """What a block of rows tells: their hashes, and the mean of their states and the squared distances from it."""

    hashes: UInt64[np.ndarray, "rows"]
    mean: Float[np.ndarray, "obs"]
    squares: Float[np.ndarray, "obs"]


def survey_blocks(blocks: Iterator[Rows], shared: Any, own: Any) -> Iterator[BlockSurvey]:
    for obs, action in blocks:
        mean = obs.mean(axis=0, dtype=np.float64)
        yield BlockSurvey(hash_rows(obs, action), mean, ((obs - mean) ** 2).sum(axis=0))


def survey(
    source: RowSource,
    advance: Advance,
    engine: Engine | None = None,
    hashes: UInt64[np.ndarray, "rows"] | None = None,
) -> Survey:
    """Every row's hash, and the states' moments, merged block by block (Chan, Golub and LeVeque 1983).

    `hashes`: where to put them.
    """
    hashes = np.empty(source.num_rows, np.uint64) if hashes is None else hashes
    count, mean, squares = 0, np.zeros(source.obs_dim), np.zeros(source.obs_dim)
    for block in (engine or Here()).run(survey_blocks, source):
        rows = len(block.hashes)
        hashes[count : count + rows] = block.hashes
        apart, total = block.mean - mean, count + rows
        squares += block.squares + apart**2 * (count * rows / total)
        mean += apart * (rows / total)
        count = total
        advance(rows)
    return Survey(hashes, mean, np.sqrt(squares / count))


def draw_rows(num_rows: int, most: int, rng: np.random.Generator) -> Int[np.ndarray, "rows"]:
    """All rows, or `most` of them drawn uniformly, in order."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.sort(rng.choice(num_rows, most, replace=False, shuffle=False))


def draw_training_sample(
    expert: RowSource, supplementary: RowSource, normaliser: Normaliser, plan: Plan, seed: int
) -> TrainingSample:
    rng = np.random.default_rng([seed, 1])
    limits = ((expert, EXPERT_ROWS), (supplementary, SUPPLEMENTARY_ROWS))
    chosen = [draw_rows(source.num_rows, most, rng) for source, most in limits]
    rows = [source.take(indices) for source, indices in zip((expert, supplementary), chosen, strict=True)]
    obs, action = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    union = np.concatenate([chosen[0], expert.num_rows + chosen[1]])
    return TrainingSample(normaliser.apply(obs), action, len(chosen[0]), plan.take(union))
