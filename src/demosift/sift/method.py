"""Sift: score the supplementary data, then clone what the scores are worth, by the robust recipe and an ensemble.

    w        what `score` gives each row of the union, from models that never saw it
    min_pi   -mean log pi(a|s)   over rows drawn in proportion to w

Of a pile with more rows than a policy can learn from, only the best episodes count (`best_episodes`): weights level off
where rows may be the expert's, and in the replay of an agent that improved slowly that is most of them.

Drawing rows by weight instead of weighting the loss has the same expectation and less noise where weights are uneven.
The two halves are apart: any scorer gives the weights, and the cloner is that of every other method
(`learning.cloning`). Where the data come with weights, these are used; where they come with a set that is known to be
bad, `score` weighs down what looks like it.
"""

from dataclasses import field, replace
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.bc import State, clone_evenly
from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.apart import Apart
from demosift.learning.cloning import ROBUST, Cloner, init_cloner
from demosift.learning.networks import Policy
from demosift.learning.prepared import KNOWN, Kept, digest, key_of, remember
from demosift.learning.stages import Stages
from demosift.ranges import STEPS
from demosift.registry import SCORERS
from demosift.results.checkpoint import Arrays
from demosift.results.prepared import Key
from demosift.types import Demonstrations, InputError, Transitions


@algorithm
class Sift:
    """Score the supplementary data, then clone by the scores."""

    name: ClassVar[str] = "sift"
    about: ClassVar[About] = About(
        "Sift", "clones the union, each row as often as its score is worth", colour=7, iterations=25_000, ensemble=5
    )
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    takes_bad: ClassVar[bool] = True

    learning_rate: float = 1e-3
    scorer: str = "contrast"
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    most_rows: int = field(default=100_000, metadata={"range": STEPS})  # of the pile
    cloner: Cloner = ROBUST

    def check(self) -> None:
        SCORERS.find(self.scorer)

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        """The data with their scores; with a folder, the scores and their page are kept there."""
        if data.weight is not None:
            return best_episodes(data, self.most_rows)
        if data.supplementary is None:
            raise InputError("sift: needs a supplementary dataset to score; bc does not")
        if folder is not None and folder.is_dir():
            from demosift.results.scores import read_weights

            weight = read_weights(folder)
            if len(weight) != len(data.expert) + len(data.supplementary):
                raise InputError(f"{folder}: the scores are of other data; choose another folder")
            return best_episodes(replace(data, weight=weight), self.most_rows)
        key = self.key(data)
        if folder is not None:
            KNOWN.pop(key, None)  # the folder gets more than the weights: their page, and a row for each episode
        weight = remember(key, lambda: self.score(data, folder))["weight"]
        return best_episodes(replace(data, weight=weight), self.most_rows)

    def prepare_in_stages(self, data: Demonstrations, kept: Kept) -> Stages[Demonstrations]:
        """The same without a page. A scorer that only this process knows is not looked for in another."""
        if data.weight is not None:
            return best_episodes(data, self.most_rows)
        if data.supplementary is None:
            raise InputError("sift: needs a supplementary dataset to score; bc does not")
        key = self.key(data)
        found = kept.read(key, {"weight": len(data.expert) + len(data.supplementary)})
        if found is None:
            elsewhere = SCORERS.is_ours(self.scorer)
            found = (yield Apart(score_alone, (self.scorer, data))) if elsewhere else self.score(data, None)
            kept.write(key, found)
        return best_episodes(replace(data, weight=found["weight"]), self.most_rows)

    def key(self, data: Demonstrations) -> Key:
        return key_of(data, self.name, self.scorer, *([] if data.bad is None else [digest(data.bad)]))

    def score(self, data: Demonstrations, folder: Path | None, progress: bool | None = None) -> Arrays:
        from demosift.sift.scoring import score  # here: a machine that only trains may lack what scoring needs

        assert data.supplementary is not None
        scored = score(data.expert, data.supplementary, bad=data.bad, scorer=self.scorer, out=folder, progress=progress)
        return {"weight": scored.weight}

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key, self.cloner))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        rows = batch.union if batch.weighted is None else batch.weighted
        return clone_evenly(state, rows, self.learning_rate, iteration, self.cloner)

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """The networks weigh nothing: a row's weight is its score."""
        return jnp.ones(rows.reward.shape)

    def work(self) -> list[Work]:
        return [cloning_work(self.batch_size, self.hidden)]


def best_episodes(data: Demonstrations, most_rows: int) -> Demonstrations:
    """The data with no weight on the pile but for its best episodes, by mean log-weight, which have so many rows.

    The last of these may exceed the number.
    """
    pile, weight = data.supplementary, data.weight
    if pile is None or weight is None or len(pile) <= most_rows:
        return data
    own = weight[len(data.expert) :]
    lengths = pile.episode_ends - pile.episode_starts
    mean = np.add.reduceat(np.log(np.maximum(own, np.finfo(np.float32).tiny)), pile.episode_starts) / lengths
    best = np.argsort(-mean, kind="stable")
    chosen = np.zeros(len(lengths), bool)
    chosen[best[: np.searchsorted(np.cumsum(lengths[best]), most_rows) + 1]] = True
    focused = np.where(np.repeat(chosen, lengths), own, 0.0).astype(weight.dtype)
    return replace(data, weight=np.concatenate([weight[: len(data.expert)], focused]))


def score_alone(scorer: str, data: Demonstrations) -> Arrays:
    """A function of this module, so that another process finds it."""
    return Sift(scorer=scorer).score(data, None, progress=False)
