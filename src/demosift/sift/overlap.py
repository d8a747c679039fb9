"""How the pile's states and actions lie among the expert's: the paper's table of samples, filled in without a model.

    near    a state no farther from the nearest expert state than 95% of expert states are from other expert states
    agree   an action no farther from those at the nearest expert states than 95% of expert actions are

An expert state's own neighbours in time are near copies of it, so a stretch around it does not count. By construction
about 5% of the expert's own rows would fail either test: shares below that mean nothing.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data import RowSource

MOST_EXPERT, MOST_PILE = 5_000, 10_000  # rows compared
NEIGHBOURS = 5
OWN_SHARE = 0.95
STRETCH = 0.05  # of an episode, on either side
CHUNK = 1_000

Rows = Float[np.ndarray, "rows columns"]


class Sample(NamedTuple):
    """Some rows of a source: where they are, and what they hold."""

    row: Int[np.ndarray, "rows"]
    episode: Int[np.ndarray, "rows"]
    step: Int[np.ndarray, "rows"]
    length: Int[np.ndarray, "rows"]  # of the row's episode
    obs: Rows
    action: Rows


def draw_sample(source: RowSource, most: int, rng: np.random.Generator) -> Sample:
    """At most that many rows, drawn uniformly, in order."""
    row = np.arange(source.num_rows)
    if source.num_rows > most:
        row = np.sort(rng.choice(source.num_rows, most, replace=False, shuffle=False))
    obs, action = source.take(row)
    ends = source.episode_ends
    episode = np.searchsorted(ends, row, side="right")
    length = np.diff(ends, prepend=0)[episode]
    return Sample(
        row, episode, row - (ends[episode] - length), length, obs.astype(np.float64), action.astype(np.float64)
    )


class Overlap(NamedTuple):
    near: Bool[np.ndarray, "pile"]
    agree: Bool[np.ndarray, "pile"]
    covered: Bool[np.ndarray, "expert"]  # the pile has a state as near to this one

    @property
    def helpful(self) -> Bool[np.ndarray, "pile"]:
        return self.near & self.agree

    @property
    def harmful(self) -> Bool[np.ndarray, "pile"]:
        return self.near & ~self.agree


def state_scale(expert: Rows, pile: Rows) -> Float[np.ndarray, "columns"]:
    """The expert's own spread; where it has next to none, a tenth of the pile's."""
    return np.maximum(np.maximum(expert.std(axis=0), 0.1 * pile.std(axis=0)), 1e-6)


def measure_overlap(expert: Sample, pile: Sample, left_out: Bool[np.ndarray, "columns"]) -> Overlap:
    """`left_out`: columns of the state that tell the files apart by bookkeeping, not by behaviour."""
    scale = state_scale(expert.obs, pile.obs)
    states, others = ((sample.obs / scale)[:, ~left_out] for sample in (expert, pile))
    own_distance, own_action = compare(states, expert.action, states, expert.action, own=expert)
    known = np.isfinite(own_distance)
    if not known.any():  # a few rows, all of them neighbours in time: nothing to measure distances by
        return Overlap(*(np.zeros(len(part.obs), bool) for part in (pile, pile, expert)))
    radius, reach = (np.quantile(values[known], OWN_SHARE) + 1e-6 for values in (own_distance, own_action))
    distance, action = compare(others, pile.action, states, expert.action)
    back, _ = compare(states, expert.action, others, pile.action)
    return Overlap(distance <= radius, action <= reach, back <= radius)


def compare(
    states: Rows, actions: Rows, reference: Rows, reference_actions: Rows, own: Sample | None = None
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Distance to the nearest reference state, and from the action to the most similar one at the nearest few.

    `own`: states and reference are the same rows, and a row's stretch of its episode is left out.
    """
    distance, apart = np.empty(len(states)), np.empty(len(states))
    count = min(NEIGHBOURS, len(reference))
    squares = (reference**2).sum(axis=1)
    for start in range(0, len(states), CHUNK):
        part = slice(start, start + CHUNK)
        square = (states[part] ** 2).sum(axis=1)[:, None] + squares[None] - 2 * states[part] @ reference.T
        if own is not None:
            same = own.episode[part, None] == own.episode[None]
            stretch = np.maximum(1, STRETCH * own.length[part, None])
            square[same & (np.abs(own.step[part, None] - own.step[None]) <= stretch)] = np.inf
        nearest = np.argpartition(square, count - 1, axis=1)[:, :count]
        # The product above loses digits where states are nearly equal; the few that matter are measured again.
        exact = np.sqrt(((reference[nearest] - states[part, None]) ** 2).sum(axis=-1))
        usable = np.isfinite(np.take_along_axis(square, nearest, axis=1))
        away = np.sqrt(((reference_actions[nearest] - actions[part, None]) ** 2).sum(axis=-1))
        distance[part] = np.where(usable, exact, np.inf).min(axis=1)
        apart[part] = np.where(usable, away, np.inf).min(axis=1)
    return distance, apart
