"""Comparing rows with their nearest neighbours: log-ratios that take no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.neighbors import NearestNeighbors

from demosift.sift.pool import Pool

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

LARGEST_REFERENCE = 8_192


class Reference(NamedTuple):
    """Rows that a model compares others with."""

    states: NearestNeighbors
    action: Action


def make_references(pool: Pool, rows: Sequence[np.ndarray], neighbours: int) -> tuple[Reference, ...]:
    """One for every model, of the rows given for it."""
    references = []
    for own in rows:
        own = own[np.linspace(0, len(own) - 1, min(len(own), LARGEST_REFERENCE)).astype(int)]
        index = NearestNeighbors(n_neighbors=min(neighbours, len(own)), algorithm="brute")
        references.append(Reference(index.fit(pool.obs[own]), pool.action[own]))
    return tuple(references)


def closeness(squared_distance: Float[np.ndarray, "rows"]) -> Features:
    """Minus the logarithm of a distance; the small number is that of a step that moves nothing."""
    return -0.5 * np.log(squared_distance.astype(np.float64) + 1e-6)[None]


@dataclass(frozen=True)
class StateCloseness:
    """How near the nearest of the reference's states are: the last of them, which depends least on chance."""

    references: tuple[Reference, ...]

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        distance, _ = self.references[model].states.kneighbors(obs)
        return closeness(distance[:, -1] ** 2)

    def describe(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class ActionCloseness:
    """How near the most similar of the actions is that were taken in the nearest of the reference's states."""

    references: tuple[Reference, ...]

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        reference = self.references[model]
        taken = reference.action[reference.states.kneighbors(obs, return_distance=False)].astype(np.float32)
        return closeness(((taken - action[:, None]) ** 2).sum(axis=-1).min(axis=1))

    def describe(self) -> dict[str, float]:
        return {}
