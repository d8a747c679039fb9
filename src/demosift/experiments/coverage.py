"""State coverage: where the good and the noisy samples of a task lie, by Kernel PCA (the paper's remark on NBCU).

Where noisy trajectories visit the same states as the good ones, NBCU must average over right and wrong actions; where
they visit other states, they do little harm.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from demosift.data.normaliser import fit_normaliser
from demosift.experiments.cells import DataKey
from demosift.experiments.prepare import Preparation
from demosift.experiments.presets import Request
from demosift.learning.neighbours import find_nearest
from demosift.results.cell import COVERAGE, write_coverage
from demosift.tasks.recipes import ORIGINS
from demosift.types import Demonstrations

SAMPLES = 600  # of each kind; the kernel matrix grows with the square
DEGREE = 3  # scikit-learn's default for the poly kernel


def measure_coverage(out: Path, request: Request) -> None:
    """Write `coverage/ENV.json` for every environment, on the data of the first seed."""
    preparation = Preparation(out / "data")
    for env in request.envs:
        key = DataKey(env, "noisy-expert", request.seeds[0], pool=request.pool, disjoint=request.disjoint)
        prepared = preparation(key)
        described = {"recipe": dict(prepared.recipe), "data": prepared.description}
        write_coverage(out / COVERAGE / f"{env}.json", {**described, **coverage(prepared.demonstrations)})


def coverage(task: Demonstrations, samples: int = SAMPLES, seed: int = 0) -> dict[str, Any]:
    """Two coordinates of each normalised state, good and noisy separately, and how far they mix in the full space."""
    from sklearn.decomposition import KernelPCA

    assert task.supplementary is not None
    assert task.supplementary.origin is not None
    generator = np.random.default_rng(seed)
    noisy_rows = task.supplementary.origin.code == ORIGINS.index("noisy")
    obs = fit_normaliser(task).apply(task.union.obs)
    noisy = np.concatenate([np.zeros(len(task.expert), bool), noisy_rows])
    chosen = [
        generator.choice(np.flatnonzero(kind), min(samples, int(kind.sum())), replace=False) for kind in (~noisy, noisy)
    ]
    good_states, noisy_states = (obs[rows].astype(np.float64) for rows in chosen)
    states = np.concatenate([good_states, noisy_states])
    projection = KernelPCA(n_components=2, kernel="poly", degree=DEGREE, eigen_solver="dense").fit(states)
    points = np.asarray(projection.transform(states))
    return {
        "kernel": {"name": "poly", "degree": DEGREE, "gamma": 1 / states.shape[1], "coef0": 1},
        "seed": seed,
        "good": points[: len(good_states)].round(6).tolist(),
        "noisy": points[len(good_states) :].round(6).tolist(),
        "mixing": mixing(good_states, noisy_states),
    }


def mixing(good: Float[np.ndarray, "n obs"], noisy: Float[np.ndarray, "m obs"]) -> float:
    """The share of samples whose nearest other sample is of the other kind, over what chance would give.

    One means that good and noisy states cannot be told apart, zero that they do not touch. Copies of a state, which
    overlapping draws make, count as touching.
    """
    states = np.concatenate([good, noisy])
    kind = np.arange(len(states)) >= len(good)
    number = np.arange(len(states))
    index, _ = find_nearest(states, states, 1, left_out=lambda part: number[part, None] == number)
    other = kind[index[:, 0]] != kind
    n, m = len(good), len(noisy)
    expected = 2 * n * m / ((n + m) * (n + m - 1))
    return float(other.mean() / expected)
