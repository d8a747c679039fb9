"""Rows of a source that need not fit in memory: what scoring reads.

    rows = open_rows("pile.hdf5")            # or a Dataset that is already in memory
    rows.num_rows, rows.obs_dim, rows.action_dim, rows.discrete
    rows.episode_starts, rows.episode_ends   # int64, one entry per episode
    for obs, action in rows.blocks(65536): ...
    for obs, action in rows.blocks(65536, 10, 20): ...   # the blocks from number 10 on, up to number 20
    obs, action = rows.take(indices)

A `RowSource` gives exactly the rows of `read_dataset`, in the same order and units: observations float32, actions
float32 in [-1, 1] or int8 one-hot. Rewards and `infos` are left out. The structure of a file is checked when it is
opened, its numbers (finite, inside their bounds) whenever a block of them is read, with the same messages.
Where blocks lie is known before any is read (`layout`), and it does not depend on which of them are read: so several
machines can share the work of one and see the same blocks.

`open_pair` opens two sources that belong together, as `load` reads them; `digest_source` fingerprints a source.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped

from demosift.data.actions import ActionMode, count_actions
from demosift.data.checks import Described
from demosift.data.format import EpisodicPart
from demosift.data.recording import Recording, assemble, check_alike, check_recording, episode_numbers, followed_rows
from demosift.types import Bounds, Dataset, EnvironmentSpec, InputError, Origin

BLOCK = 65536

Rows = tuple[Float32[np.ndarray, "rows obs"], Shaped[np.ndarray, "rows action"]]


class Layout(NamedTuple):
    """Where the blocks of a source lie."""

    ends: Int[np.ndarray, "blocks"]  # one past the last row of each block
    apart: Bool[np.ndarray, "blocks"]  # whether it can be read without what comes before it

    @classmethod
    def even(cls, num_rows: int, rows: int) -> Self:
        """Blocks of the same number of rows, but for the last; each can be read by itself."""
        ends = np.minimum(np.arange(rows, num_rows + rows, rows), num_rows)
        return cls(ends, np.ones(len(ends), bool))

    def bounds(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """The first row, and one past the last, of each block from number `start` up to `stop`."""
        edges = np.concatenate([[0], self.ends])
        return zip(edges[:-1][start:stop].tolist(), edges[1:][start:stop].tolist(), strict=True)


class RowSource(Described, Protocol):
    @property
    def num_rows(self) -> int: ...
    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]: ...
    @property
    def episode_ends(self) -> Int[np.ndarray, "episodes"]:
        """One past the last row of each episode."""
        ...

    @property
    def numbers(self) -> Int[np.ndarray, "episodes"]:
        """The episodes' own numbers in their file."""
        ...

    @property
    def environment(self) -> EnvironmentSpec | None: ...
    @property
    def origin(self) -> Origin | None:
        """Where each row truly came from, if the file says so: used to judge scores, never to make them."""
        ...

    def layout(self, rows: int = BLOCK) -> Layout:
        """Where the blocks lie that `blocks` gives; nothing is read."""
        ...

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        """Every row once, in order, in blocks of at most `rows`; or the blocks from number `start` up to `stop`."""
        ...

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        """The given rows, in the given order; a row may be asked for twice."""
        ...


class DatasetRows:
    """A dataset in memory, seen as a `RowSource`."""

    def __init__(self, dataset: Dataset) -> None:
        self.source, self.num_rows = dataset.source, len(dataset)
        self.obs_dim, self.action_dim, self.discrete = dataset.obs_dim, dataset.action_dim, dataset.discrete
        self.bounds = dataset.bounds
        self.episode_starts, self.episode_ends = dataset.episode_starts, dataset.episode_ends
        self.numbers = np.arange(len(dataset.episode_ends))
        self.environment, self.origin = dataset.environment, dataset.origin
        self._obs, self._action = dataset.transitions.obs, dataset.transitions.action

    def layout(self, rows: int = BLOCK) -> Layout:
        return Layout.even(self.num_rows, rows)

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        for first, end in self.layout(rows).bounds(start, stop):
            yield self.slice(first, end)

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        return self._obs[indices], self._action[indices]

    def slice(self, first: int, end: int) -> Rows:
        return self._obs[first:end], self._action[first:end]


@dataclass(frozen=True)
class WrappedRows:
    """The rows of a source with something put to them or in their place: what a wrapper does not change."""

    rows: RowSource

    @property
    def source(self) -> str:
        return self.rows.source

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]:
        return self.rows.episode_starts

    @property
    def episode_ends(self) -> Int[np.ndarray, "episodes"]:
        return self.rows.episode_ends

    @property
    def numbers(self) -> Int[np.ndarray, "episodes"]:
        return self.rows.numbers

    @property
    def environment(self) -> EnvironmentSpec | None:
        return self.rows.environment

    @property
    def origin(self) -> Origin | None:
        return self.rows.origin

    @property
    def bounds(self) -> Bounds | None:
        """Not told: units are compared before rows are wrapped, and something else may stand in the action's place."""
        return None

    def layout(self, rows: int = BLOCK) -> Layout:
        return self.rows.layout(rows)


@dataclass(frozen=True, kw_only=True)
class FileRows(ABC):
    """Rows of a file, whose action units may still be set by the file it is read together with."""

    source: str
    mode: ActionMode
    discrete: bool
    obs_dim: int
    obs_keys: Mapping[str, int] | None
    action_columns: int
    stated: EnvironmentSpec | None  # without action bounds
    bounds: Bounds | None
    num_actions: int | None
    episode_ends: Int[np.ndarray, "episodes"]
    numbers: Int[np.ndarray, "episodes"]  # of the episodes, in their file

    @staticmethod
    def facts(source: str, recording: Recording, mode: ActionMode) -> dict[str, Any]:
        """The fields that any part of the file tells, be it without rows."""
        name = recording.environment_id
        return {
            "source": source,
            "mode": mode,
            "discrete": recording.discrete,
            "obs_dim": recording.observations.shape[1],
            "obs_keys": recording.obs_keys,
            "action_columns": recording.action_columns,
            "stated": None if name is None else EnvironmentSpec(name, dict(recording.environment_kwargs)),
            "bounds": None if mode == "rescale" else recording.bounds,
            "num_actions": recording.num_actions,
        }

    @property
    def num_rows(self) -> int:
        return int(self.episode_ends[-1])

    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]:
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def action_dim(self) -> int:
        if not self.discrete:
            return self.action_columns
        return self.num_actions or count_actions(self.action_range())

    @property
    def environment(self) -> EnvironmentSpec | None:
        if self.stated is None:
            return None
        if self.discrete:
            return replace(self.stated, num_actions=self.action_dim)
        low, high = self.scale or (None, None)
        return replace(self.stated, action_low=low, action_high=high)

    @property
    def scale(self) -> Bounds | None:
        """What the -1 and +1 of actions stand for."""
        return self.action_range() if self.mode == "rescale" and self.bounds is None else self.bounds

    def with_actions(self, bounds: Bounds | None, num_actions: int | None) -> Self:
        return replace(self, bounds=bounds or self.bounds, num_actions=num_actions or self.num_actions)

    @property
    @abstractmethod
    def origin(self) -> Origin | None: ...

    @abstractmethod
    def action_range(self) -> Bounds: ...

    @abstractmethod
    def layout(self, rows: int = BLOCK) -> Layout: ...

    @abstractmethod
    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]: ...

    @abstractmethod
    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows: ...


@dataclass(frozen=True, kw_only=True)
class PartRows(FileRows):
    """Rows of a source that comes in parts of whole episodes (demonstrations, shards), held one part at a time."""

    parts: Sequence[Callable[[], Recording]]
    max_episode_steps: int | None
    part_ends: Int[np.ndarray, "parts"]  # one past the last row of each part
    stored_range: Bounds
    codes: Origin | None

    @property
    def origin(self) -> Origin | None:
        return self.codes

    def action_range(self) -> Bounds:
        return self.stored_range

    @property
    def part_starts(self) -> Int[np.ndarray, "parts"]:
        return np.concatenate([[0], self.part_ends[:-1]])

    def layout(self, rows: int = BLOCK) -> Layout:
        ends, apart = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        for part, first, end in zip(self.parts, self.part_starts, self.part_ends, strict=True):
            own = Layout.even(end - first, rows)
            ends.append(first + own.ends)
            splits = self._splits(part)
            apart.append(own.apart & (splits | (np.arange(len(own.ends)) == 0)))
        return Layout(np.concatenate(ends), np.concatenate(apart))

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        bounds = list(self.layout(rows).bounds(start, stop))
        home = np.searchsorted(self.part_ends, [first for first, _ in bounds], side="right")
        for index in np.unique(home).tolist():
            inside = [own for own, part in zip(bounds, home, strict=True) if part == index]
            read, offset = self._read_rows(index, inside[0][0], inside[-1][1])
            for first, end in inside:
                yield read.slice(first - offset, end - offset)

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        obs = np.empty((len(indices), self.obs_dim), np.float32)
        action = np.empty((len(indices), self.action_dim), np.int8 if self.discrete else np.float32)
        home = np.searchsorted(self.part_ends, indices, side="right")
        for index in np.unique(home):
            here = home == index
            obs[here], action[here] = self._assemble(self.parts[index]()).take(indices[here] - self.part_starts[index])
        return obs, action

    def _splits(self, part: Callable[[], Recording]) -> bool:
        """Whether episodes of this part can be read without the others."""
        return isinstance(part, EpisodicPart) and self.max_episode_steps is None

    def _read_rows(self, index: int, first: int, end: int) -> tuple[DatasetRows, int]:
        """Rows of a part, among them those from `first` to `end`, and the number of the first of them."""
        part, start = self.parts[index], int(self.part_starts[index])
        if (first, end) == (start, self.part_ends[index]) or not self._splits(part):
            return self._assemble(part()), start
        assert isinstance(part, EpisodicPart)
        low = int(np.searchsorted(self.episode_ends, first, side="right"))
        high = int(np.searchsorted(self.episode_ends, end, side="left")) + 1
        return self._assemble(part.only(self.numbers[low:high].tolist())), int(self.episode_starts[low])

    def _assemble(self, recording: Recording) -> DatasetRows:
        part = check_recording(recording)
        return DatasetRows(assemble(part, self.mode, self.max_episode_steps, self.scale, self.action_dim))


def open_part_rows(
    source: str, parts: Sequence[Callable[[], Recording]], actions: ActionMode, max_episode_steps: int | None
) -> PartRows:
    """Reads all parts once to learn where rows and episodes lie, and keeps only that."""
    first: Recording | None = None
    stored_range: Bounds | None = None
    num_rows, part_ends, episode_ends, codes, numbers = 0, [], [], [], []
    for read in parts:
        part = check_recording(read())
        stored_range = part.action_range() if stored_range is None else stored_range.joined(part.action_range())
        first = first or part
        check_alike(first, part)
        # A part in which no row is followed by another has no row whose successor is known.
        if followed_rows(part, max_episode_steps).any():
            # Clipped, because whether an action is outside its bounds may depend on the file this one is read with.
            rows = assemble(part, "clip", max_episode_steps)
            episode_ends.append(num_rows + rows.episode_ends)
            num_rows += len(rows)
            own = episode_numbers(part, max_episode_steps)
            numbers.append(own if part.number is not None else sum(map(len, numbers)) + own)
            if rows.origin is not None:
                codes.append(rows.origin.code)
        part_ends.append(num_rows)
    if first is None or stored_range is None or num_rows == 0:
        raise InputError(f"{source}: observations: the set is empty")
    return PartRows(
        **FileRows.facts(source, first, actions),
        episode_ends=np.concatenate(episode_ends),
        numbers=np.concatenate(numbers),
        parts=parts,
        max_episode_steps=max_episode_steps,
        part_ends=np.array(part_ends),
        stored_range=stored_range,
        codes=None if first.origin is None else Origin(np.concatenate(codes), first.origin.names),
    )
