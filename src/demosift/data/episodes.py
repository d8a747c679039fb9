"""Some episodes of a source: `pile.hdf5::episodes=0,3,7-12`, and all the others: `pile.hdf5::without=0,3,7-12`.

Episodes have the numbers that their file gives them: LeRobot's `episode_index`, robomimic's `demo_N`; elsewhere they
are counted from 0 in the order in which they are read.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Int

from demosift.data.rows import BLOCK, FileRows, Layout, Rows
from demosift.types import Bounds, Dataset, InputError, Origin, Transitions

Numbers = Int[np.ndarray, "episodes"]


class Episodes(NamedTuple):
    """First and last numbers of stretches of episodes, or, `without` them, all the other episodes."""

    stretches: tuple[tuple[int, int], ...]
    without: bool = False

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        return cls.parse(",".join(str(int(number)) for number in numbers))

    @classmethod
    def parse(cls, text: str, without: bool = False) -> Self:
        found = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,12})(?:\s*-\s*([0-9]{1,12}))?\s*", part, re.ASCII)
            if match is None:
                raise InputError(f"episodes: {part.strip()[:40]!r} is neither a number nor a range, as in 0,3,7-12")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise InputError(f"episodes: {part.strip()}: the range ends before it begins")
            found.append((first, last))
        joined: list[tuple[int, int]] = []
        for first, last in sorted(found):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(last, joined[-1][1])
            else:
                joined.append((first, last))
        return cls(tuple(joined), without)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.stretches)

    @property
    def others(self) -> Self:
        return self._replace(without=not self.without)

    @property
    def first(self) -> int | None:
        """The smallest number that is named."""
        return self.stretches[0][0] if self.stretches else None

    def joined(self, other: "Episodes") -> Self:
        """These stretches and the other's."""
        return self._replace(stretches=self.parse(f"{self},{other}").stretches)

    def overlap(self, other: "Episodes") -> int | None:
        """The first number that both have."""
        pairs = ((max(a, c), min(b, d)) for a, b in self.stretches for c, d in other.stretches)
        return min((first for first, last in pairs if first <= last), default=None)

    def less(self, other: "Episodes") -> Self:
        """These stretches without the other's numbers."""
        left = list(self.stretches)
        for first, last in other.stretches:
            cut = [((a, min(b, first - 1)), (max(a, last + 1), b)) for a, b in left]
            left = [(a, b) for pair in cut for a, b in pair if a <= b]
        return self._replace(stretches=tuple(left))

    def choose(self, source: str, numbers: Numbers) -> Bool[np.ndarray, "episodes"]:
        """Which of a source's episodes these are. Each number must exist, and at least one episode be chosen."""
        named = np.zeros(len(numbers), bool)
        for first, last in self.stretches:
            inside = (first <= numbers) & (numbers <= last)
            if len(np.unique(numbers[inside])) != last - first + 1:
                there = set(numbers[inside].tolist())
                missing = next(number for number in range(first, last + 1) if number not in there)
                raise InputError(
                    f"{source}: episode {missing} does not exist, or has no row whose successor is known; there are "
                    f"{len(numbers):,} episodes, {numbers.min()} to {numbers.max()}"
                )
            named |= inside
        chosen = ~named if self.without else named
        if not chosen.any():
            raise InputError(f"{source}: all {len(numbers):,} episodes are named, so that none is left")
        return chosen


def choose_episodes(dataset: Dataset, numbers: Numbers, episodes: Episodes) -> Dataset:
    chosen = episodes.choose(dataset.source, numbers)
    return dataset.take(np.flatnonzero(np.repeat(chosen, np.diff(dataset.episode_ends, prepend=0))))


def episodes_at(dataset: Dataset, places: Int[np.ndarray, "chosen"]) -> Dataset:
    """The episodes in these places, counted from 0, in this order."""
    bounds = np.stack([dataset.episode_starts, dataset.episode_ends], axis=1)[places].tolist()
    return dataset.take(np.concatenate([np.arange(start, end) for start, end in bounds]))


def join(datasets: Sequence[Dataset]) -> Dataset:
    """One after the other, in the environment of the first. Where rows come from is not kept."""
    transitions = Transitions(*map(np.concatenate, zip(*(dataset.transitions for dataset in datasets), strict=True)))
    timeout = np.concatenate([dataset.timeout for dataset in datasets])
    return Dataset(transitions, timeout, datasets[0].environment)


@dataclass(frozen=True, kw_only=True)
class EpisodeRows(FileRows):
    """The rows of some episodes of a file, in its order and its units."""

    whole: FileRows
    chosen: Bool[np.ndarray, "episodes"]  # of the file's

    def inside(self, first: int, end: int) -> Bool[np.ndarray, "rows"]:
        """Which of the file's rows from `first` to `end` these are."""
        ends = self.whole.episode_ends
        low, high = int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(ends, end, side="left")) + 1
        return np.repeat(self.chosen[low:high], np.diff(np.minimum(ends[low:high], end), prepend=first))

    @property
    def origin(self) -> Origin | None:
        origin = self.whole.origin
        if origin is None:
            return None
        return Origin(origin.code[self.inside(0, self.whole.num_rows)], origin.names)

    def action_range(self) -> Bounds:
        return self.whole.action_range()

    def with_actions(self, bounds: Bounds | None, num_actions: int | None) -> Self:
        return replace(super().with_actions(bounds, num_actions), whole=self.whole.with_actions(bounds, num_actions))

    def layout(self, rows: int = BLOCK) -> Layout:
        return self._held_blocks(rows)[1]

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        held, _ = self._held_blocks(rows)
        held = held[start:stop]
        edges = np.concatenate([[0], self.whole.layout(rows).ends])
        for run in np.split(held, np.flatnonzero(np.diff(held) > 1) + 1):
            if len(run):
                numbers, blocks = run.tolist(), self.whole.blocks(rows, int(run[0]), int(run[-1]) + 1)
                for number, (obs, action) in zip(numbers, blocks, strict=True):
                    own = self.inside(int(edges[number]), int(edges[number + 1]))
                    yield obs[own], action[own]

    def _held_blocks(self, rows: int) -> tuple[Int[np.ndarray, "blocks"], Layout]:
        """The numbers of the file's blocks that have rows of these episodes, and where those rows lie."""
        ends, apart = self.whole.layout(rows)
        # How many of these rows come before the end of each block: those of whole episodes, and of the one it cuts.
        starts, chosen = np.append(self.whole.episode_starts, self.whole.num_rows), np.append(self.chosen, False)
        before = np.concatenate([[0], np.cumsum(np.diff(self.whole.episode_ends, prepend=0) * self.chosen)])
        episode = np.searchsorted(self.whole.episode_ends, ends, side="right")
        own = before[episode] + chosen[episode] * (ends - starts[episode])
        held = np.flatnonzero(np.diff(own, prepend=0) > 0)
        # A block that cannot be read without the one before it can neither where that one has none of these rows.
        group = np.cumsum(apart)[held]
        return held, Layout(own[held], np.diff(group, prepend=0) > 0)

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        episode = np.searchsorted(self.episode_ends, indices, side="right")
        return self.whole.take(indices + (self.whole.episode_starts[self.chosen] - self.episode_starts)[episode])


def open_episodes(whole: FileRows, episodes: Episodes) -> EpisodeRows:
    chosen = episodes.choose(whole.source, whole.numbers)
    known = {one.name: getattr(whole, one.name) for one in fields(FileRows)}
    ends = np.cumsum(np.diff(whole.episode_ends, prepend=0)[chosen])
    known |= {"episode_ends": ends, "numbers": whole.numbers[chosen]}
    return EpisodeRows(**known, whole=whole, chosen=chosen)


def parse_condition(text: str) -> tuple[str, str, str]:
    """`success=1` as a name, how to compare, and a value."""
    match = re.fullmatch(r"\s*([^<>=\s]+)\s*(>=|<=|=|>|<)\s*(\S.*?)\s*", text)
    if match is None:
        raise InputError(f"{text[:60]!r}: expected NAME=VALUE, or another of >=, <=, > and <")
    return match[1], match[2], match[3]


def holds(value: object, how: str, wanted: str) -> bool:
    """Whether a fact from a file compares with what the user wants: as numbers where both are, else as text."""
    try:
        own, other = float(value), float(wanted)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return how == "=" and text.lower() == wanted.lower()
    return {"=": own == other, ">=": own >= other, "<=": own <= other, ">": own > other, "<": own < other}[how]
