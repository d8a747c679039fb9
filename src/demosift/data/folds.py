"""Which rows are copies of each other, and how rows are split into folds: for scores and for held-out rows alike.

Whole episodes go into a fold, because neighbours in time are near copies. Where a set has too few episodes for that
(one expert trajectory is normal), contiguous stretches do. Equal rows are in the same fold wherever they occur.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt64

from demosift.types import InputError

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

AT_A_TIME = 1 << 18  # rows whose intermediate results are in memory together
EPISODES = 2  # for each fold, at least: otherwise folds would differ too much in size
STRETCH = 50  # rows in a stretch: enough that few of them have a near copy across its border


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
    """Almost all rows of most sets occur once: only the others are looked at row by row."""
    ordered = np.sort(hashes)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first = np.arange(len(hashes), dtype=np.int32 if len(hashes) < 1 << 31 else np.int64)
    if len(repeated):
        starts = range(0, len(hashes), AT_A_TIME)
        parts = [start + _members(hashes[start : start + AT_A_TIME], repeated) for start in starts]
        rows = np.concatenate(parts)
        _, index, inverse = np.unique(hashes[rows], return_index=True, return_inverse=True)
        first[rows] = rows[index][inverse]
    return Copies(first, num_expert)


def _members(values: UInt64[np.ndarray, "rows"], known: UInt64[np.ndarray, "known"]) -> Int[np.ndarray, "members"]:
    """The places of the values that are among the known ones, which are sorted."""
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.flatnonzero(known[place] == values)


def episode_batches(starts: Int[np.ndarray, "episodes"], num_rows: int) -> Iterator[tuple[slice, slice]]:
    """Episodes in batches of about `AT_A_TIME` rows, so that what is computed of them need not fit in memory at once.

    Gives the episodes of a batch, and their rows.
    """
    edges = np.append(starts, num_rows)
    first = 0
    while first < len(starts):
        last = max(int(np.searchsorted(edges, edges[first] + AT_A_TIME, side="right")) - 1, first + 1)
        yield slice(first, last), slice(int(edges[first]), int(edges[last]))
        first = last


def repeated_episodes(hashes: UInt64[np.ndarray, "rows"], starts: Int[np.ndarray, "episodes"]) -> int:
    """How many episodes equal an earlier one in every row."""
    whole = np.empty(len(starts), np.uint64)
    for episodes, rows in episode_batches(starts, len(hashes)):
        own = starts[episodes] - rows.start
        position = np.arange(rows.stop - rows.start)
        position -= np.repeat(own, np.diff(own, append=len(position)))
        mixed = (hashes[rows] ^ position.astype(np.uint64)) * _MULTIPLIER
        whole[episodes] = np.add.reduceat(mixed ^ (mixed >> _SHIFT), own)
    return len(starts) - len(np.unique(whole))


def split_rows(
    ends: Int[np.ndarray, "episodes"], num_folds: int, rng: np.random.Generator, fewest: int = EPISODES
) -> Int[np.ndarray, "rows"]:
    """A fold for each row: whole episodes in random order, or contiguous stretches where there are too few episodes.

    Episodes are dealt out from the longest to the shortest, so that folds have about the same number of rows. `fewest`:
    how many there must be for each fold.
    """
    lengths = np.diff(ends, prepend=0)
    if len(ends) < fewest * num_folds:
        return stretches(ends[-1], num_folds)
    order = rng.permutation(len(ends))
    order = order[np.argsort(-lengths[order], kind="stable")]
    deal = np.concatenate([rng.permutation(num_folds) for _ in range(-(-len(ends) // num_folds))])[: len(ends)]
    fold = np.empty(len(ends), fold_type(num_folds))
    fold[order] = deal
    return np.repeat(fold, lengths)


def stretches(num_rows: int, num_folds: int) -> Int[np.ndarray, "rows"]:
    """Contiguous rows, dealt out in turn: short enough that no fold takes away a whole phase of the only episode."""
    length = max(1, min(STRETCH, num_rows // num_folds))
    return (np.arange(num_rows) // length % num_folds).astype(fold_type(num_folds))


def fold_type(num_folds: int) -> type[np.signedinteger]:
    """The numbers of folds. `score`, which stores them, has no more than fit in a byte."""
    return np.int8 if num_folds <= 128 else np.int32


def split_expert(
    ends: Int[np.ndarray, "episodes"],
    first: Int[np.ndarray, "rows"],
    num_folds: int,
    rng: np.random.Generator,
    source: str,
    fewest: int = EPISODES,
) -> Int[np.ndarray, "rows"]:
    """A fold for each row of a set, equal rows in the same one and no fold empty. `first` has each row's first copy."""
    fold = split_rows(ends, num_folds, rng, fewest)[first]
    if len(np.unique(fold)) < num_folds:  # episodes repeat each other, which emptied some folds
        distinct, position = np.unique(first, return_inverse=True)
        if len(distinct) < num_folds:
            raise InputError(f"{source}: has {len(distinct)} different rows; {num_folds} folds need at least as many")
        fold = stretches(len(distinct), num_folds)[position]
    return fold
