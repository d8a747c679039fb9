"""Which rows of a source are kept, and the episodes that this leaves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from demosift.types import Dataset


class Run(NamedTuple):
    """Consecutive kept rows of one episode: `start` and `stop` count from its first row."""

    episode: int
    start: int
    stop: int


@dataclass(frozen=True)
class Selection:
    """`keep` has an entry per row of `read_dataset`, in its order. Around a gap, an episode becomes two."""

    keep: Bool[np.ndarray, "rows"]
    episode_ends: Int[np.ndarray, "episodes"]

    @property
    def lengths(self) -> Int[np.ndarray, "episodes"]:
        return np.diff(self.episode_ends, prepend=0)

    @property
    def kept_per_episode(self) -> Int[np.ndarray, "episodes"]:
        counts = np.concatenate([[0], np.cumsum(self.keep)])
        return counts[self.episode_ends] - counts[self.episode_ends - self.lengths]

    @property
    def episodes(self) -> Int[np.ndarray, "kept"]:
        """The episodes with at least one kept row."""
        return np.flatnonzero(self.kept_per_episode)

    @property
    def whole(self) -> bool:
        """Whether every episode is kept or dropped as a whole."""
        kept = self.kept_per_episode
        return bool(((kept == 0) | (kept == self.lengths)).all())

    @property
    def run_ends(self) -> Bool[np.ndarray, "rows"]:
        """The kept rows that are not followed by a kept row of their episode."""
        follows = np.append(self.keep[1:], False)
        follows[self.episode_ends - 1] = False
        return self.keep & ~follows

    def runs(self) -> Iterator[Run]:
        ends = np.flatnonzero(self.run_ends) + 1
        starts = np.flatnonzero(self.keep & ~np.append(False, self.keep[:-1] & ~self.run_ends[:-1]))
        episode = np.searchsorted(self.episode_ends, starts, side="right")
        first = (self.episode_ends - self.lengths)[episode]
        for index, start, stop in zip(episode, starts - first, ends - first, strict=True):
            yield Run(int(index), int(start), int(stop))

    def apply(self, dataset: Dataset) -> Dataset:
        """The kept rows, with a timeout where a stretch of them ends."""
        ends = self.run_ends & ~dataset.transitions.terminal
        return replace(dataset, timeout=dataset.timeout | ends).take(np.flatnonzero(self.keep))
