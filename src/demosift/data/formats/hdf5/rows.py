"""The native file, read in blocks: its rows need not fit in memory.

Memory holds a few flags per row while the file is opened, and an integer per episode. Rows asked for by number are
copied out of a mapping of the file, a stretch at a time, so that the memory for pages that were read is given back.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Bool, Int

from demosift.data.actions import ActionMode, one_hot, scale_actions
from demosift.data.checks import as_flags, as_matrix, check_lengths, check_memory, enter_hdf5, find_hdf5, open_hdf5
from demosift.data.formats.hdf5.file import ORIGIN, find_arrays, read_attributes, read_names, read_rows
from demosift.data.recording import as_actions, as_origin, check_types, cut_episodes, drop_unfollowed
from demosift.data.rows import BLOCK, FileRows, Layout, Rows
from demosift.types import Bounds, InputError, Origin

_MAPPED_BYTES = 1 << 26  # of the file at a time


@dataclass(frozen=True, kw_only=True)
class HDF5Rows(FileRows):
    dropped: Int[np.ndarray, "dropped"]  # stored rows that no known state follows; `read_dataset` drops them too

    @property
    def path(self) -> Path:
        return Path(self.source)

    @property
    def stored_rows(self) -> int:
        return self.num_rows + len(self.dropped)

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
                Bounds.of_data(as_actions(self.source, read_rows(actions, np.s_[start : start + BLOCK]), start))
                for start in range(0, self.stored_rows, BLOCK)
            ]
        return reduce(Bounds.joined, ranges)

    def action_range(self) -> Bounds:
        return self._range

    def layout(self, rows: int = BLOCK) -> Layout:
        stored, ends = self._stored_blocks(rows)
        return Layout(ends, np.ones(len(stored), bool))

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        stored, _ = self._stored_blocks(rows)
        with open_hdf5(self.path) as file:
            found = find_arrays(file)
            for first in stored[start:stop].tolist():
                block = np.s_[first : first + rows]
                obs, action = (read_rows(found[key], block) for key in ("observations", "actions"))
                obs, action = self._convert(obs, action, first)
                low, high = np.searchsorted(self.dropped, (first, first + rows))
                if high > low:
                    gone = self.dropped[low:high] - first
                    obs, action = np.delete(obs, gone, axis=0), np.delete(action, gone, axis=0)
                yield obs, action

    def _stored_blocks(self, rows: int) -> tuple[Int[np.ndarray, "blocks"], Int[np.ndarray, "blocks"]]:
        """The first stored row of each block, and one past its last row. Blocks of dropped rows alone are left out."""
        stored = Layout.even(self.stored_rows, rows).ends
        ends = stored - np.searchsorted(self.dropped, stored)
        held = np.diff(ends, prepend=0) > 0
        return np.arange(0, self.stored_rows, rows)[held], ends[held]

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
        return obs, scale_actions(self.source, action, self.scale, self.mode, first)


def open_hdf5_rows(
    path: str | os.PathLike[str], actions: ActionMode = "check", max_episode_steps: int | None = None
) -> HDF5Rows:
    path = Path(path)
    source = str(path)
    with open_hdf5(path) as file:
        found = find_arrays(file)
        for key, dataset in found.items():
            if dataset.ndim == 0:
                raise InputError(f"{source}: {key}: has shape (), needs a row per transition")
        empty = {key: np.empty((0, *array.shape[1:]), array.dtype) for key, array in found.items() if key != ORIGIN}
        header = check_types(read_attributes(file).recording(source, **empty))
        check_lengths(source, found)
        check_memory(source, 8 * len(found["observations"]))
        terminal = _read_flags(source, "terminals", found["terminals"])
        end = terminal.copy()
        if "timeouts" in found:
            end |= _read_flags(source, "timeouts", found["timeouts"])
        elif "next_observations" in found:
            end[:-1] |= _breaks(source, found["observations"], found["next_observations"])
        end = cut_episodes(source, end, max_episode_steps)
    dropped = np.zeros(0, np.int64)
    if "next_observations" not in found:
        followed, timeout = drop_unfollowed(source, terminal, end & ~terminal)
        dropped, end = np.flatnonzero(~followed), (terminal | timeout)[followed]
    ends = np.flatnonzero(end) + 1
    facts = FileRows.facts(source, header, actions)
    return HDF5Rows(**facts, dropped=dropped, episode_ends=ends, numbers=np.arange(len(ends)))


def hdf5_facts(place: str, name: str) -> dict[int, Any]:
    """The value of `infos/NAME`, or of the array NAME, at each episode's last row."""
    rows = open_hdf5_rows(place)
    with open_hdf5(rows.path) as file:
        found = find_hdf5(file, f"infos/{name}") or find_hdf5(file, name)
        if found is None or found.shape != (rows.stored_rows,):
            return {}
        last = rows.stored(rows.episode_ends - 1)
        return dict(enumerate(read_rows(found)[last].tolist()))


def hdf5_fact_names(place: str) -> Iterator[str]:
    rows = open_hdf5_rows(place)
    with open_hdf5(rows.path) as file:
        infos = enter_hdf5(file, "infos") if "infos" in file else None
        inside = [f"infos/{name}" for name in infos] if isinstance(infos, h5py.Group) else []
        for key in (*map(str, file), *inside):
            with suppress(InputError):  # a group, or no numbers
                found = find_hdf5(file, key)
                if found is not None and found.shape == (rows.stored_rows,):
                    yield key.removeprefix("infos/")


def _read_flags(source: str, key: str, dataset: h5py.Dataset) -> Bool[np.ndarray, "rows"]:
    step = 16 * BLOCK
    starts = range(0, len(dataset), step)
    return np.concatenate([as_flags(source, key, read_rows(dataset, np.s_[i : i + step]), i) for i in starts])


def _breaks(source: str, obs: h5py.Dataset, following: h5py.Dataset) -> Bool[np.ndarray, "rows-1"]:
    """Where a row's successor is not the next row's observation."""
    breaks = np.empty(len(obs) - 1, bool)
    for start in range(0, len(breaks), BLOCK):
        stop = min(start + BLOCK, len(breaks))
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
        stretch = dataset.chunks[0] * max(BLOCK // dataset.chunks[0], 1)
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
