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
from jaxtyping import Bool, Int, Shaped, UInt64

from demosift.data import RowSource
from demosift.types import InputError

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

STRETCH = 50  # rows in a stretch: enough that few of them have a near copy across its border


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

    def take(self, rows: Int[np.ndarray, "rows"]) -> "Plan":
        return self._replace(fold=self.fold[rows], shared=self.shared[rows])


class Copies(NamedTuple):
    """Which rows are equal: each row's first occurrence in the union."""

    first: Int[np.ndarray, "rows"]
    num_expert: int

    @property
    def shared(self) -> Bool[np.ndarray, "rows"]:
        return self.first < self.num_expert


def hash_rows(
    obs: Shaped[np.ndarray, "rows obs"], action: Shaped[np.ndarray, "rows action"]
) -> UInt64[np.ndarray, "rows"]:
    """A hash of each row's bytes. If two rows ever collide, one of them changes its fold, which does no harm."""
    columns = [obs.astype(np.float32) + np.float32(0), action.astype(np.float32) + np.float32(0)]  # -0.0 becomes 0.0
    bits = np.concatenate(columns, axis=1).view(np.uint32)
    value = np.full(len(bits), bits.shape[1], np.uint64)
    for column in bits.T:
        value = (value ^ column) * _MULTIPLIER
        value ^= value >> _SHIFT
    return value


def find_copies(hashes: UInt64[np.ndarray, "rows"], num_expert: int) -> Copies:
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return Copies(first[inverse], num_expert)


def repeated_episodes(hashes: UInt64[np.ndarray, "rows"], starts: Int[np.ndarray, "episodes"]) -> int:
    """How many episodes equal an earlier one in every row."""
    position = np.arange(len(hashes)) - np.repeat(starts, np.diff(starts, append=len(hashes)))
    mixed = (hashes ^ position.astype(np.uint64)) * _MULTIPLIER
    whole = np.add.reduceat(mixed ^ (mixed >> _SHIFT), starts)
    return len(starts) - len(np.unique(whole))


def split_rows(ends: Int[np.ndarray, "episodes"], num_folds: int, rng: np.random.Generator) -> Int[np.ndarray, "rows"]:
    """A fold for each row: whole episodes in random order, or contiguous stretches where there are too few episodes.

    Episodes are dealt out from the longest to the shortest, so that folds have about the same number of rows.
    """
    lengths = np.diff(ends, prepend=0)
    if len(ends) < 2 * num_folds:
        return stretches(ends[-1], num_folds)
    order = rng.permutation(len(ends))
    order = order[np.argsort(-lengths[order], kind="stable")]
    deal = np.concatenate([rng.permutation(num_folds) for _ in range(-(-len(ends) // num_folds))])[: len(ends)]
    fold = np.empty(len(ends), np.int8)
    fold[order] = deal
    return np.repeat(fold, lengths)


def stretches(num_rows: int, num_folds: int) -> Int[np.ndarray, "rows"]:
    """Contiguous rows, dealt out in turn: short enough that no fold takes away a whole phase of the only episode."""
    length = max(1, min(STRETCH, num_rows // num_folds))
    return (np.arange(num_rows) // length % num_folds).astype(np.int8)


def make_plan(
    expert: RowSource, supplementary: RowSource, copies: Copies, num_folds: int, num_members: int, seed: int
) -> Plan:
    rng = np.random.default_rng([seed, 0])
    parts = [split_rows(part.episode_ends, num_folds, rng) for part in (expert, supplementary)]
    first = copies.first[: copies.num_expert]
    if len(np.unique(parts[0][first])) < num_folds:  # episodes repeat each other, which emptied some folds
        distinct, position = np.unique(first, return_inverse=True)
        if len(distinct) < num_folds:
            raise InputError(
                f"{expert.source}: has {len(distinct)} different rows; {num_folds} folds need at least as many"
            )
        parts[0] = stretches(len(distinct), num_folds)[position]
    return Plan(num_folds, num_members, np.concatenate(parts)[copies.first], copies.shared)
