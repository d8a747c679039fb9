"""Rows whose action is unknown, or not to be used: what the state becomes takes its place.

`ChangeRows` is a `RowSource`, so whatever compares states and actions then compares states and where they lead.
A change is the next row's state minus the row's own; the last row of an episode has no next one and takes the change
that led to it. Changes are divided by their spread in the supplementary set, so that columns count alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data.rows import BLOCK, Rows, RowSource, WrappedRows

MEASURED = 10_000  # rows that the spread of changes is measured on


@dataclass(frozen=True)
class ChangeRows(WrappedRows):
    """The rows of a source with the change of the state in place of the action."""

    spread: Float[np.ndarray, "obs"]

    @property
    def obs_dim(self) -> int:
        return self.rows.obs_dim

    @property
    def action_dim(self) -> int:
        return self.rows.obs_dim

    @property
    def discrete(self) -> bool:
        return False

    @property
    def obs_keys(self) -> dict[str, int] | None:
        return getattr(self.rows, "obs_keys", None)

    @cached_property
    def _last(self) -> Bool[np.ndarray, "rows"]:
        last = np.zeros(self.num_rows, bool)
        last[self.episode_ends - 1] = True
        return last

    @cached_property
    def _alone(self) -> Bool[np.ndarray, "rows"]:
        """Rows that are an episode by themselves."""
        alone = np.zeros(self.num_rows, bool)
        alone[self.episode_starts[self.episode_ends - self.episode_starts == 1]] = True
        return alone

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        bounds = list(self.layout(rows).bounds(start, stop))
        before = self._state(bounds[0][0] - 1) if bounds else None
        blocks = (obs for obs, _ in self.rows.blocks(rows, start, stop))
        here = next(blocks, None)
        for first, end in bounds:
            assert here is not None
            following = next(blocks, None)
            after = self._state(end) if following is None else following[0]
            yield here, self._changes(first, before, here, after)
            before, here = here[-1], following

    def _state(self, row: int) -> Float[np.ndarray, "obs"] | None:
        return self.rows.take(np.array([row]))[0][0] if 0 <= row < self.num_rows else None

    def _changes(
        self, start: int, before: np.ndarray | None, obs: np.ndarray, after: np.ndarray | None
    ) -> Float[np.ndarray, "rows obs"]:
        """Those of consecutive rows, from the row before them and the one after."""
        around = np.concatenate(
            [obs[:1] if before is None else before[None], obs, obs[-1:] if after is None else after[None]]
        )
        steps = np.diff(around, axis=0)
        block = slice(start, start + len(obs))
        change = np.where(self._last[block, None], steps[:-1], steps[1:])
        change[self._alone[block]] = 0.0
        return (change / self.spread).astype(np.float32)

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        last, alone = self._last[indices], self._alone[indices]
        obs, _ = self.rows.take(indices)
        other, _ = self.rows.take(np.where(alone, indices, np.where(last, indices - 1, indices + 1)))
        change = np.where(last[:, None], obs - other, other - obs)
        return obs, (change / self.spread).astype(np.float32)


def by_changes(expert: RowSource, supplementary: RowSource) -> tuple[ChangeRows, ChangeRows]:
    """Both sources, compared by where their states lead."""
    unit = ChangeRows(supplementary, np.ones(supplementary.obs_dim))
    chosen = np.linspace(0, supplementary.num_rows - 1, min(supplementary.num_rows, MEASURED)).astype(np.int64)
    deviation = unit.take(chosen)[1].std(axis=0, dtype=np.float64)
    spread = np.where(deviation > 0, deviation, 1.0)
    return ChangeRows(expert, spread), ChangeRows(supplementary, spread)
