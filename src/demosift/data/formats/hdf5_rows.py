"""The native file, read in blocks: its rows need not fit in memory.

Held in memory are a flag per row, while the file is opened, and two integers per episode. Rows asked for by number are
copied out of a mapping of the file, a stretch at a time, so that what has been read does not add up.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped

from demosift.data.actions import ActionMode, Bounds, count_actions, one_hot, scale_actions
from demosift.data.checks import (
    as_flags,
    as_matrix,
    as_vector,
    check_columns,
    check_lengths,
    check_memory,
    find_hdf5,
    open_hdf5,
)
from demosift.data.formats.hdf5 import ORIGIN, find_arrays, read_attributes, read_names, read_rows
from demosift.data.recording import as_actions, as_origin, cut_episodes
from demosift.types import EnvironmentSpec, InputError, Origin

_BLOCK = 65536
_MAPPED_BYTES = 1 << 26  # of the file at a time

Rows = tuple[Float32[np.ndarray, "rows obs"], Shaped[np.ndarray, "rows action"]]


@dataclass(frozen=True)
class HDF5Rows:
    path: Path
    mode: ActionMode
    discrete: bool
    obs_dim: int
    obs_keys: Mapping[str, int] | None
    action_columns: int
    stored_rows: int
    dropped: Int[np.ndarray, "dropped"]  # stored rows that no known state follows; `read_dataset` drops them too
    episode_ends: Int[np.ndarray, "episodes"]
    stated: EnvironmentSpec | None
    bounds: Bounds | None
    num_actions: int | None

    @property
    def source(self) -> str:
        return str(self.path)

    @property
    def num_rows(self) -> int:
        return self.stored_rows - len(self.dropped)

    @property
    def action_dim(self) -> int:
        if not self.discrete:
            return self.action_columns
        return self.num_actions or count_actions(self.action_range())

    @property
    def episode_starts(self) -> Int[np.ndarray, "episodes"]:
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def environment(self) -> EnvironmentSpec | None:
        if self.stated is None:
            return None
        if self.discrete:
            return replace(self.stated, num_actions=self.action_dim)
        low, high = self._scale or (None, None)
        return replace(self.stated, action_low=low, action_high=high)

    @property
    def origin(self) -> Origin | None:
        with open_hdf5(self.path) as file:
            found = find_hdf5(file, ORIGIN)
            if found is None:
                return None
            code = np.delete(np.asarray(found[()]), self.dropped)
            return as_origin(self.source, Origin(code, read_names(self.path, found)))

    @cached_property
    def _range(self) -> Bounds:
        with open_hdf5(self.path) as file:
            actions = find_arrays(file)["actions"]
            ranges = [
                Bounds.of_data(as_actions(self.source, read_rows(actions, np.s_[start : start + _BLOCK]), start))
                for start in range(0, self.stored_rows, _BLOCK)
            ]
        whole = ranges[0]
        for each in ranges[1:]:
            whole = whole.joined(each)
        return whole

    def action_range(self) -> Bounds:
        return self._range

    @property
    def _scale(self) -> Bounds | None:
        return self._range if self.mode == "rescale" and self.bounds is None else self.bounds

    def with_actions(self, bounds: Bounds | None, num_actions: int | None) -> "HDF5Rows":
        return replace(self, bounds=bounds or self.bounds, num_actions=num_actions or self.num_actions)

    def blocks(self, rows: int = _BLOCK) -> Iterator[Rows]:
        with open_hdf5(self.path) as file:
            found = find_arrays(file)
            for start in range(0, self.stored_rows, rows):
                block = np.s_[start : start + rows]
                obs, action = (read_rows(found[key], block) for key in ("observations", "actions"))
                obs, action = self._convert(obs, action, start)
                low, high = np.searchsorted(self.dropped, (start, start + rows))
                if high - low == len(obs):
                    continue
                if high > low:
                    gone = self.dropped[low:high] - start
                    obs, action = np.delete(obs, gone, axis=0), np.delete(action, gone, axis=0)
                yield obs, action

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        indices = np.asarray(indices)
        if len(indices) and (indices.min() < 0 or indices.max() >= self.num_rows):
            raise IndexError(f"{self.source}: no row {indices.min()} or {indices.max()} among {self.num_rows}")
        wanted, back = np.unique(self.stored(indices), return_inverse=True)
        with open_hdf5(self.path) as file:
            found = find_arrays(file)
            obs, action = (_gather(found[key], self.path, wanted) for key in ("observations", "actions"))
        try:
            obs, action = self._convert(obs, action, 0)
        except InputError:
            for row, *one in zip(wanted, obs, action, strict=True):  # which of the file's rows it was
                self._convert(np.stack(one[:1]), np.stack(one[1:]), int(row))
            raise
        return obs[back], action[back]

    def stored(self, indices: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """Where the file has these rows: the k-th dropped row d lies before every row from number d - k on."""
        return indices + np.searchsorted(self.dropped - np.arange(len(self.dropped)), indices, side="right")

    def _convert(self, obs: np.ndarray, action: np.ndarray, first: int) -> Rows:
        obs = as_matrix(self.source, "observations", obs, first)
        action = as_actions(self.source, action, first)
        if self.discrete:
            return obs, one_hot(self.source, action, self.action_dim, first)
        return obs, scale_actions(self.source, action, self._scale, self.mode, first)


def open_hdf5_rows(
    path: str | os.PathLike[str], actions: ActionMode = "check", max_episode_steps: int | None = None
) -> HDF5Rows:
    path = Path(path)
    source = str(path)
    with open_hdf5(path) as file:
        found = find_arrays(file)
        obs_dim, action_columns, discrete = _check_shapes(source, found)
        stored_rows = len(found["observations"])
        check_memory(source, 8 * stored_rows)
        terminal = _read_flags(source, "terminals", found["terminals"])
        end = terminal.copy()
        if "timeouts" in found:
            end |= _read_flags(source, "timeouts", found["timeouts"])
        elif "next_observations" in found:
            end[:-1] |= _breaks(source, found["observations"], found["next_observations"])
        end = cut_episodes(source, end, max_episode_steps)
        stated = read_attributes(path, dict(file.attrs))
    ends = np.flatnonzero(end) + 1
    dropped = np.zeros(0, np.int64)
    if "next_observations" not in found:
        unfollowed = ~terminal[ends - 1]
        dropped = ends[unfollowed] - 1
        lengths = np.diff(ends, prepend=0) - unfollowed
        ends = np.cumsum(lengths[lengths > 0])
        if len(ends) == 0:
            raise InputError(
                f"{source}: next_observations: absent, and no row is followed by another of its episode: "
                "the set is empty"
            )
    environment_id, obs_keys = stated["environment_id"], stated["attributes"].get("obs_keys")
    if stated["num_actions"] is not None and not discrete:
        raise InputError(f"{source}: actions: the file states num_actions, but they are not one integer per row")
    return HDF5Rows(
        path=path,
        mode=actions,
        discrete=discrete,
        obs_dim=obs_dim,
        obs_keys=obs_keys if isinstance(obs_keys, dict) else None,
        action_columns=action_columns,
        stored_rows=stored_rows,
        dropped=dropped,
        episode_ends=ends,
        stated=None if environment_id is None else EnvironmentSpec(environment_id, stated["environment_kwargs"]),
        bounds=None if actions == "rescale" else stated["bounds"],
        num_actions=stated["num_actions"],
    )


def _check_shapes(source: str, found: dict[str, h5py.Dataset]) -> tuple[int, int, bool]:
    """The columns of observations and of actions, and whether these are discrete; the checks of `check_recording`."""
    for key, dataset in found.items():
        if dataset.ndim == 0:
            raise InputError(f"{source}: {key}: has shape (), needs a row per transition")
    empty = {key: np.empty((0, *dataset.shape[1:]), dataset.dtype) for key, dataset in found.items()}
    obs = as_matrix(source, "observations", empty["observations"])
    actions = as_actions(source, empty["actions"])
    for key in ("rewards", "terminals", "timeouts"):
        if key in empty:
            as_vector(source, key, empty[key])
    if "next_observations" in empty:
        following = as_matrix(source, "next_observations", empty["next_observations"])
        check_columns(source, obs, following)
    check_lengths(source, found)
    discrete = actions.dtype.kind in "iu"
    return obs.shape[1], 1 if discrete else actions.shape[1], discrete


def _read_flags(source: str, key: str, dataset: h5py.Dataset) -> Bool[np.ndarray, "rows"]:
    step = 16 * _BLOCK
    starts = range(0, len(dataset), step)
    return np.concatenate([as_flags(source, key, read_rows(dataset, np.s_[i : i + step]), i) for i in starts])


def _breaks(source: str, obs: h5py.Dataset, following: h5py.Dataset) -> Bool[np.ndarray, "rows-1"]:
    """Where a row's successor is not the next row's observation."""
    breaks = np.empty(len(obs) - 1, bool)
    for start in range(0, len(breaks), _BLOCK):
        stop = min(start + _BLOCK, len(breaks))
        a = as_matrix(source, "next_observations", read_rows(following, np.s_[start:stop]), start)
        b = as_matrix(source, "observations", read_rows(obs, np.s_[start + 1 : stop + 1]), start + 1)
        breaks[start:stop] = (a != b).any(axis=1)
    return breaks


def _gather(dataset: h5py.Dataset, path: Path, wanted: Int[np.ndarray, "rows"]) -> np.ndarray:
    """The given rows, sorted and distinct, from a stretch of the file at a time."""
    row_bytes = max(dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])), 1)
    stretch = max(_MAPPED_BYTES // row_bytes, 1)
    offset = dataset.id.get_offset()  # None where rows are stored in chunks, compressed perhaps
    if offset is None and dataset.chunks:
        stretch = dataset.chunks[0] * max(_BLOCK // dataset.chunks[0], 1)
    rows = np.empty((len(wanted), *dataset.shape[1:]), np.float32 if dataset.dtype.kind == "f" else dataset.dtype)
    borders = np.flatnonzero(np.diff(wanted // stretch)) + 1
    for here in np.split(np.arange(len(wanted)), borders):
        if len(here) == 0:
            continue
        span = slice(here[0], here[-1] + 1)
        first, last = int(wanted[here[0]]), int(wanted[here[-1]])
        if offset is None:
            part = read_rows(dataset, np.s_[first : last + 1])
        else:
            shape, start = (last + 1 - first, *dataset.shape[1:]), offset + first * row_bytes
            part = np.memmap(path, dataset.dtype, "r", start, shape)
        with np.errstate(over="ignore"):
            rows[span] = part[wanted[span] - first]
    return rows
