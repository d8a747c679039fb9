"""Which frames to cut: idle starts and ends of episodes, and stretches that hardly look like the expert's.

An episode stands still where its state does. At its start, sensors and things on the table may still settle while
nobody does anything; so a start is idle, too, as long as the first action is repeated, if the state comes to rest
meanwhile. Whoever moves on at a constant speed does not come to rest.

A row that weighs little among heavy ones is kept: single rows are judged badly, and a policy that predicts several
steps ahead needs episodes without holes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data import RowSource
from demosift.sift.agreement import movement

STRETCH = 25  # the fewest rows in a row that are cut for their weight
KEPT_STILL, KEPT_SHARE = 2, 0.1  # idle rows that stay before and after a movement, and as a share of those there are
FEWEST = 4  # fewer idle rows are a moment, which every episode may have
TREMBLING = 0.05  # a column with less of the usual spread than this does not show that anything moves


class Cut(NamedTuple):
    """Rows `start` up to `stop` of an episode, counted from its first."""

    episode: int
    start: int
    stop: int
    why: str  # idle start, idle end, low weight


def find_cuts(rows: RowSource, weight: Float[np.ndarray, "rows"], threshold: float) -> list[Cut]:
    idle, _, repeated = movement(rows, TREMBLING)
    cuts = []
    for episode, (start, end) in enumerate(zip(rows.episode_starts.tolist(), rows.episode_ends.tolist(), strict=True)):
        begun, over = still_ends(idle[start:end], repeated[start:end])
        cuts += [Cut(episode, 0, begun, "idle start")] if begun else []
        with np.errstate(divide="ignore"):
            low = light_stretches(np.log(weight[start + begun : end - over]), np.log(threshold))
        cuts += [Cut(episode, begun + a, begun + b, "low weight") for a, b in low]
        cuts += [Cut(episode, end - start - over, end - start, "idle end")] if over else []
    return cuts


def still_ends(idle: Bool[np.ndarray, "rows"], repeated: Bool[np.ndarray, "rows"]) -> tuple[int, int]:
    """How many rows to cut at the start and at the end; an episode without movement loses all at its start."""
    moving = np.flatnonzero(~idle)
    if not len(moving):
        return len(idle), 0
    begun, over = int(moving[0]), len(idle) - 1 - int(moving[-1])
    waited = int(np.argmin(repeated)) if not repeated.all() else 0  # rows before the action first changes
    if idle[:waited].any():
        begun = max(begun, waited)
    return worth_cutting(begun), worth_cutting(over)


def worth_cutting(count: int) -> int:
    """How many of so many idle rows to cut: a moment is none, and a few rows stay beside the movement."""
    return count - min(KEPT_STILL, int(KEPT_SHARE * count)) if count >= FEWEST else 0


def light_stretches(log_weight: Float[np.ndarray, "rows"], limit: float) -> list[tuple[int, int]]:
    """Stretches whose mean weight, over a window around every row, stays below the limit."""
    if not len(log_weight):
        return []
    sums = np.concatenate([[0.0], np.cumsum(np.maximum(log_weight, -50.0))])
    row = np.arange(len(log_weight))
    start, stop = np.maximum(row - STRETCH // 2, 0), np.minimum(row + STRETCH // 2 + 1, len(log_weight))
    light = (sums[stop] - sums[start]) / (stop - start) < limit
    edges = np.flatnonzero(np.diff(np.concatenate([[False], light, [False]])))
    found = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(a, b) for a, b in found if b - a >= min(STRETCH, len(log_weight))]


def rows_left(cuts: list[Cut], ends: Int[np.ndarray, "episodes"]) -> Bool[np.ndarray, "rows"]:
    keep = np.ones(int(ends[-1]), bool)
    starts = ends - np.diff(ends, prepend=0)
    for cut in cuts:
        keep[starts[cut.episode] + cut.start : starts[cut.episode] + cut.stop] = False
    return keep
