"""Instances of Assumption 2: good rows are on one side of a plane through zero, bad rows on the other."""

from dataclasses import dataclass, replace

import numpy as np

from demosift.theory.linear import Rows, dataset

MOST = (5, 4, 4)  # the most rows that D^E, D^(S,1) and D^(S,2) have; each has at least one


@dataclass(frozen=True)
class Family:
    """What instances look like along the separating direction and across it. Lengths are in the features' own unit."""

    gap: float = 0.05  # the least distance of a row from the separating plane
    reach: float = 1.0  # how far beyond it rows are spread
    noise: tuple[float, float] = (0.1, 1.0)  # the spread along the plane, drawn per instance, uniform on a log scale
    length: tuple[float, float] = (0.1, 10.0)  # a factor on all features of an instance, drawn in the same way
    fewest_expert: int = 1

    def draw(self, rng: np.random.Generator, number: int, dimension: int) -> Rows:
        expert = rng.integers(self.fewest_expert, MOST[0] + 1, number)[:, None]
        good = expert + rng.integers(1, MOST[1] + 1, number)[:, None]
        total = good + rng.integers(1, MOST[2] + 1, number)[:, None]
        place = np.arange(sum(MOST))[None]
        used = place < total
        direction = rng.normal(size=(number, 1, dimension))
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        across = rng.normal(size=(number, sum(MOST), dimension)) * log_uniform(rng, self.noise, number)[:, None, None]
        across -= np.sum(across * direction, -1, keepdims=True) * direction
        along = self.gap + self.reach * np.abs(rng.normal(size=(number, sum(MOST))))
        along = np.where(place < good, along, -along)[..., None] * direction
        features = (across + along) * log_uniform(rng, self.length, number)[:, None, None]
        shares = (place < expert) / expert, used / total
        return Rows(features * used[..., None], *shares, place < good, used & (place >= good))


def log_uniform(rng: np.random.Generator, between: tuple[float, float], number: int) -> np.ndarray:
    low, high = np.log(between)
    return np.exp(rng.uniform(low, high, number))


def integers(rng: np.random.Generator, number: int, largest: int = 6) -> Rows:
    """One-dimensional instances whose features are whole numbers, so that Theorem 6's condition is decided exactly.

    The means that it compares are equal in some of the instances and well apart in the others. In half of them the
    separating direction is negative.
    """
    rows = Family().draw(rng, number, 1)
    sign = rng.choice([-1.0, 1.0], (number, 1))
    side = np.where(rows.good, 1.0, np.where(rows.bad, -1.0, 0.0))
    features = sign * side * rng.integers(1, largest + 1, side.shape)
    return replace(rows, features=features[..., None])


def almost_equal(rng: np.random.Generator, rows: Rows, apart: float = 1e-6) -> Rows:
    """One-dimensional instances with one good supplementary feature moved until the means that Theorem 6 compares meet.

    Almost: the expert's mean is `apart` above or below. A feature is moved only if it moves away from the plane.
    """
    expert = rows.expert > 0.0
    supplementary = (rows.union > 0.0) & ~expert
    feature = rows.features[..., 0].copy()
    number = supplementary.sum(-1)
    means = [np.sum(feature * part, -1) / part.sum(-1) for part in (expert, supplementary)]
    every, moved = np.arange(len(rows)), expert.sum(-1)  # the first row after the expert's is a good one
    sign = np.sign(feature[every, 0])
    shift = number * (means[0] - means[1] + rng.choice([-apart, apart], len(rows)))
    feature[every, moved] += np.where(shift * sign > 0.0, shift, 0.0)
    return replace(rows, features=feature[..., None])


def example() -> Rows:
    """Example 1: two expert samples, one good and one bad supplementary sample, in the plane."""
    return dataset([[0.0, 1.0], [-1.0, 0.0]], [[-0.5, 0.0]], [[0.0, -0.5]])
