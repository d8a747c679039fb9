"""A scorer that trains nothing: a row is judged by its distance from the nearest expert row that its model may see."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import KDTree

from demosift.sift.scorers import Fitted
from demosift.sift.training import training_rows


@dataclass(frozen=True)
class DistanceScorer:
    """Distance of (s, a) from the expert's nearest."""

    name: ClassVar[str] = "distance"
    action_scale: float = 1.0

    @property
    def work(self) -> int:
        return 1

    def fit(self, sample: Any, seed: int, report: Any) -> Fitted:
        def join(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
            return np.concatenate([obs, self.action_scale * action], axis=1)

        expert_rows, _, _ = training_rows(sample)  # a set of rows for each model, without those that it leaves out
        trees = [KDTree(join(sample.obs[rows], sample.action[rows])) for rows in expert_rows]
        report(1)

        def features(model: int, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
            distance, _ = trees[model].query(join(obs, action))
            return -np.log(np.asarray(distance) + 1e-6)[None]

        return Fitted(features)
