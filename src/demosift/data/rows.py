"""Rows of a source that need not fit in memory: what scoring reads.

    rows = open_rows("pile.hdf5")            # or a Dataset that is already in memory
    rows.num_rows, rows.obs_dim, rows.action_dim, rows.discrete
    rows.episode_starts, rows.episode_ends   # int64, one entry per episode
    for obs, action in rows.blocks(65536): ...
    obs, action = rows.take(indices)

A `RowSource` gives exactly the rows of `read_dataset`, in its order and in its units: observations float32, actions
float32 in [-1, 1] or int8 one-hot. Rewards and `infos` are not among them. A file's structure is checked when it is
opened, its numbers (finite, inside their bounds) whenever a block of them is read, with the same messages.
`open_pair` opens two sources that belong together, as `load` reads them; `formats.digest_source` fingerprints a source.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from jaxtyping import Float32, Int, Shaped

from demosift.data.actions import ActionMode, Bounds, StatesActions, count_actions, shared_action_space
from demosift.data.checks import Described, check_pair, check_same_keys
from demosift.data.formats import Source, format_of, parts_of
from demosift.data.formats.hdf5_rows import open_hdf5_rows
from demosift.data.recording import Recording, assemble, check_alike, check_recording, followed_rows
from demosift.types import Dataset, EnvironmentSpec, InputError, Origin

BLOCK = 65536

Rows = tuple[Float32[np.ndarray, "rows obs"], Shaped[np.ndarray, "rows action"]]


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
    def environment(self) -> EnvironmentSpec | None: ...
    @property
    def origin(self) -> Origin | None:
        """The truth, where the file tells it: to judge scores, never to make them."""
        ...

    def blocks(self, rows: int = BLOCK) -> Iterator[Rows]:
        """Every row once, in order, in blocks of at most `rows`."""
        ...

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        """The given rows, in the given order; one may be asked for twice."""
        ...


class FileRows(RowSource, StatesActions, Protocol):
    """Rows of a file, whose action units may still be set by the file it is read together with."""

    @property
    def obs_keys(self) -> Mapping[str, int] | None: ...
    def with_actions(self, bounds: Bounds | None, num_actions: int | None) -> Self: ...


def open_rows(
    source: Source | Dataset, actions: ActionMode = "check", max_episode_steps: int | None = None
) -> RowSource:
    """The rows of any source that `read_dataset` takes. The options are the same."""
    if isinstance(source, Dataset):
        return DatasetRows(source)
    return _open(source, actions, max_episode_steps)


def open_pair(
    expert: Source | Dataset,
    supplementary: Source | Dataset,
    actions: ActionMode = "check",
    max_episode_steps: int | None = None,
) -> tuple[RowSource, RowSource]:
    """Expert and supplementary rows that belong together: the same checks and the same action units as in `load`."""
    if isinstance(expert, Dataset) or isinstance(supplementary, Dataset):
        first = open_rows(expert, actions, max_episode_steps)
        second = open_rows(supplementary, actions, max_episode_steps)
    else:
        first, second = _open(expert, actions, max_episode_steps), _open(supplementary, actions, max_episode_steps)
        check_same_keys(first.source, first.obs_keys, second.source, second.obs_keys)
        bounds, num_actions = shared_action_space(first, second, actions)
        first, second = first.with_actions(bounds, num_actions), second.with_actions(bounds, num_actions)
    check_pair(first, second)
    return first, second


def _open(source: Source, actions: ActionMode, max_episode_steps: int | None) -> FileRows:
    if actions not in ("check", "clip", "rescale"):
        raise InputError(f"actions: {actions!r} is unknown; choose check, clip or rescale")
    found = format_of(source)
    if found.name == "hdf5":
        return open_hdf5_rows(source, actions, max_episode_steps)
    return open_part_rows(os.fspath(source), parts_of(source), actions, max_episode_steps)


@dataclass(frozen=True)
class DatasetRows:
    """A dataset in memory, seen as a `RowSource`."""

    dataset: Dataset

    @property
    def source(self) -> str:
        return self.dataset.source

    @property
    def num_rows(self) -> int:
        return len(self.dataset)

    @property
    def obs_dim(self) -> int:
        return self.dataset.obs_dim

    @property
    def action_dim(self) -> int:
        return self.dataset.action_dim

    @property
    def discrete(self) -> bool:
        return self.dataset.discrete

    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]:
        return self.dataset.episode_starts

    @property
    def episode_ends(self) -> Int[np.ndarray, "episodes"]:
        return self.dataset.episode_ends

    @property
    def environment(self) -> EnvironmentSpec | None:
        return self.dataset.environment

    @property
    def origin(self) -> Origin | None:
        return self.dataset.origin

    def blocks(self, rows: int = BLOCK) -> Iterator[Rows]:
        for start in range(0, self.num_rows, rows):
            block = slice(start, start + rows)
            yield self.dataset.transitions.obs[block], self.dataset.transitions.action[block]

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        return self.dataset.transitions.obs[indices], self.dataset.transitions.action[indices]


@dataclass(frozen=True)
class PartRows:
    """Rows of a source that comes in parts of whole episodes (demonstrations, shards), held one part at a time."""

    source: str
    parts: Sequence[Callable[[], Recording]]
    mode: ActionMode
    max_episode_steps: int | None
    discrete: bool
    obs_dim: int
    obs_keys: Mapping[str, int] | None
    action_columns: int
    stored_range: Bounds
    part_ends: Int[np.ndarray, "parts"]  # one past the last row of each part
    episode_ends: Int[np.ndarray, "episodes"]
    environment: EnvironmentSpec | None
    origin: Origin | None
    bounds: Bounds | None
    num_actions: int | None

    @property
    def num_rows(self) -> int:
        return int(self.part_ends[-1])

    @property
    def action_dim(self) -> int:
        if self.discrete:
            return self.num_actions or count_actions(self.stored_range)
        return self.action_columns

    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]:
        return np.concatenate([[0], self.episode_ends[:-1]])

    def action_range(self) -> Bounds:
        return self.stored_range

    def with_actions(self, bounds: Bounds | None, num_actions: int | None) -> "PartRows":
        return replace(self, bounds=bounds or self.bounds, num_actions=num_actions or self.num_actions)

    def blocks(self, rows: int = BLOCK) -> Iterator[Rows]:
        for index in range(len(self.parts)):
            part = self._read(index)
            if part is not None:
                yield from DatasetRows(part).blocks(rows)

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        obs = np.empty((len(indices), self.obs_dim), np.float32)
        action = np.empty((len(indices), self.action_dim), np.int8 if self.discrete else np.float32)
        home = np.searchsorted(self.part_ends, indices, side="right")
        starts = np.concatenate([[0], self.part_ends[:-1]])
        for index in np.unique(home):
            part, here = self._read(index), home == index
            assert part is not None
            obs[here], action[here] = DatasetRows(part).take(indices[here] - starts[index])
        return obs, action

    def _read(self, index: int) -> Dataset | None:
        bounds = self.stored_range if self.mode == "rescale" and self.bounds is None else self.bounds
        part = check_recording(self.parts[index]())
        return _assemble_part(part, self.mode, self.max_episode_steps, bounds, self.action_dim)


def open_part_rows(
    source: str, parts: Sequence[Callable[[], Recording]], actions: ActionMode, max_episode_steps: int | None
) -> PartRows:
    """One pass over all parts to learn where rows and episodes lie; nothing of it is kept but that."""
    first: Recording | None = None
    environment = stored_range = None
    num_rows, part_ends, episode_ends, codes = 0, [], [], []
    for read in parts:
        part = check_recording(read())
        stored_range = part.action_range() if stored_range is None else stored_range.joined(part.action_range())
        # Clipped, because whether an action is outside its bounds may depend on the file this one is read with.
        rows = _assemble_part(part, "clip", max_episode_steps)
        if first is None:
            first = part
        check_alike(first, part)
        if rows is not None:
            environment = rows.environment
            episode_ends.append(num_rows + rows.episode_ends)
            num_rows += len(rows)
            if rows.origin is not None:
                codes.append(rows.origin.code)
        part_ends.append(num_rows)
    if first is None or stored_range is None or num_rows == 0:
        raise InputError(f"{source}: observations: the set is empty")
    return PartRows(
        source=source,
        parts=parts,
        mode=actions,
        max_episode_steps=max_episode_steps,
        discrete=first.discrete,
        obs_dim=first.observations.shape[1],
        obs_keys=first.obs_keys,
        action_columns=first.action_columns,
        stored_range=stored_range,
        part_ends=np.array(part_ends),
        episode_ends=np.concatenate(episode_ends),
        environment=environment,
        origin=Origin(np.concatenate(codes), first.origin.names) if first.origin is not None else None,
        bounds=None if actions == "rescale" else first.bounds,
        num_actions=first.num_actions,
    )


def _assemble_part(
    part: Recording,
    actions: ActionMode,
    max_episode_steps: int | None,
    bounds: Bounds | None = None,
    num_actions: int | None = None,
) -> Dataset | None:
    """A part as a dataset, or None where none of its rows is followed by another and so none is known whole."""
    if not followed_rows(part, max_episode_steps).any():
        return None
    return assemble(part, actions, max_episode_steps, bounds, num_actions)
