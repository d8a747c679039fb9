"""Folds: which rows each model must not see in training.

A density ratio is worthless on the rows that it was trained on, since a network can memorise the expert's thousand
rows. So every row of the union is weighed by models that were trained without it.

Whole episodes are left out, because neighbours in time are near copies. Where a set has too few episodes for that (one
expert trajectory is normal), contiguous stretches are left out instead. An expert row is in the expert set and in the
union, and is left out of both. Equal rows are left out together wherever they occur: the pile may hold the expert's own
trajectories.

Leaving out a stretch of the only trajectory takes away all that is known about, say, its first steps. Therefore the
expert's folds are shifted against the pile's: model `fold` of member `m` leaves out the pile's rows of that fold and
the expert's rows of fold `fold + m`. A row of the pile is weighed by one model of each member, and together these have
seen the whole expert set.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from demosift.data import RowSource
from demosift.data.folds import EPISODES, Copies, find_copies, hash_rows, repeated_episodes, split_expert, split_rows

__all__ = ["Copies", "Plan", "find_copies", "hash_rows", "make_plan", "repeated_episodes", "split_rows"]


class Plan(NamedTuple):
    """What every model leaves out. Rows are those of the union, expert first; models are numbered member by member."""

    num_folds: int
    num_members: int
    fold: Int[np.ndarray, "rows"]
    shared: Bool[np.ndarray, "rows"]  # the expert's rows, and their copies in the pile

    @property
    def num_models(self) -> int:
        return self.num_folds * self.num_members

    def model_of(self, member: int, rows: slice | Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The member's model that leaves these rows out."""
        fold = self.fold[rows].astype(np.int64)
        return member * self.num_folds + np.where(self.shared[rows], (fold - member) % self.num_folds, fold)

    def models_of(self, rows: slice) -> Int[np.ndarray, "members rows"]:
        return np.stack([self.model_of(member, rows) for member in range(self.num_members)])

    def left_out(self, model: int, rows: slice | Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
        return self.model_of(model // self.num_folds, rows) == model

    def take(self, rows: slice | Int[np.ndarray, "rows"]) -> "Plan":
        return self._replace(fold=self.fold[rows], shared=self.shared[rows])


def make_plan(
    expert: RowSource,
    supplementary: RowSource,
    copies: Copies,
    num_folds: int,
    num_members: int,
    seed: int,
    fewest: int = EPISODES,
) -> Plan:
    """`fewest`: how many of the expert's episodes there must be for each fold, if whole ones are to be left out."""
    rng = np.random.default_rng([seed, 0])
    first = copies.first[: copies.num_expert]
    parts = [
        split_expert(expert.episode_ends, first, num_folds, rng, expert.source, fewest),
        split_rows(supplementary.episode_ends, num_folds, rng),
    ]
    return Plan(num_folds, num_members, np.concatenate(parts)[copies.first], copies.shared)
