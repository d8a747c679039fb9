"""Did an episode come to its end? Every row of one that stops early is the expert's; only its end is missing.

Where the expert's episodes go from a beginning to an end, a state tells how far along it is. That is learned from the
expert's episodes; an episode's last state then tells how much of the way it went. Where states do not tell, judged by
episodes that were left out, as in a gait that repeats itself, nothing is said.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.ensemble import ExtraTreesRegressor

from demosift.data import RowSource
from demosift.sift.overlap import draw_sample

MOST_ROWS = 5_000
TREES, LEAF = 60, 3
FEWEST_EPISODES = 3
TOLD = 0.5  # the least share of the variance of progress that states must explain
LEAST = 0.01
EARLY = 0.8  # an episode that went less of the way stopped early


class Finish(NamedTuple):
    share: Float[np.ndarray, "episodes"]  # of the expert's way that each episode went, the expert's episodes first
    told: float  # share of the variance of progress that states explain, in expert episodes that were left out


def measure_finish(sources: tuple[RowSource, RowSource], seed: int) -> Finish | None:
    """None where nobody can tell."""
    expert = draw_sample(sources[0], MOST_ROWS, np.random.default_rng([seed, 7]))
    if len(np.unique(expert.episode)) < FEWEST_EPISODES:
        return None
    progress = expert.step / np.maximum(expert.length - 1, 1)
    ends, last = (source.take(source.episode_ends - 1)[0] for source in sources)

    def learn(rows: np.ndarray) -> ExtraTreesRegressor:
        return ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, random_state=seed).fit(
            expert.obs[rows], progress[rows]
        )

    left_out, own = np.empty(len(progress)), np.empty(len(ends))
    # With many episodes, several are left out together.
    part = np.arange(len(ends)) % min(len(ends), 5)
    for one in np.unique(part):
        rows = part[expert.episode] == one
        model = learn(~rows)
        left_out[rows], own[part == one] = model.predict(expert.obs[rows]), model.predict(ends[part == one])
    told = 1 - float(np.mean((left_out - progress) ** 2) / max(progress.var(), 1e-12))
    if told < TOLD:
        return None
    reached = np.concatenate([own, learn(np.ones(len(progress), bool)).predict(last)])
    return Finish(np.clip(reached / max(float(np.median(own)), LEAST), LEAST, 1.0), told)
