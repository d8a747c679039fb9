"""How the pile's states and actions compare with the expert's: the paper's table of samples, filled in without a model.

    near    a state no farther from the nearest expert state than 95% of expert states are from other expert states
    agree   an action no farther from those at the nearest expert states than 95% of expert actions are

An expert state's neighbours in time are near copies of it, so a stretch around it does not count. By construction about
5% of the expert's own rows fail either test, so smaller shares mean nothing.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data import RowSource
from demosift.learning.neighbours import find_nearest
from demosift.sift.training_sample import draw_rows

MOST_EXPERT, MOST_SUPPLEMENTARY = 5_000, 10_000  # rows that are compared
NEIGHBOURS = 5
OWN_SHARE = 0.95
STRETCH = 0.05  # part of an episode on either side of a row that is not compared with it

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
    row = draw_rows(source.num_rows, most, rng)
    obs, action = source.take(row)
    ends = source.episode_ends
    episode = np.searchsorted(ends, row, side="right")
    length = np.diff(ends, prepend=0)[episode]
    return Sample(
        row, episode, row - (ends[episode] - length), length, obs.astype(np.float64), action.astype(np.float64)
    )


class Overlap(NamedTuple):
    near: Bool[np.ndarray, "supplementary"]
    agree: Bool[np.ndarray, "supplementary"]
    covered: Bool[np.ndarray, "expert"]  # whether the pile has a state near this one

    @property
    def helpful(self) -> Bool[np.ndarray, "supplementary"]:
        return self.near & self.agree

    @property
    def harmful(self) -> Bool[np.ndarray, "supplementary"]:
        return self.near & ~self.agree


def state_scale(expert: Rows, supplementary: Rows) -> Float[np.ndarray, "columns"]:
    """The expert's own spread; where it has next to none, a tenth of the pile's."""
    return np.maximum(np.maximum(expert.std(axis=0), 0.1 * supplementary.std(axis=0)), 1e-6)


def measure_overlap(expert: Sample, supplementary: Sample, left_out: Bool[np.ndarray, "columns"]) -> Overlap:
    """`left_out`: columns of the state that tell the files apart by how they were recorded, not by behaviour."""
    scale = state_scale(expert.obs, supplementary.obs)
    states, others = ((sample.obs / scale)[:, ~left_out] for sample in (expert, supplementary))
    own_distance, own_action = compare(states, expert.action, states, expert.action, own=expert)
    known = np.isfinite(own_distance)
    if not known.any():  # a few rows, all of them neighbours in time: there is no scale for distances
        return Overlap(*(np.zeros(len(part.obs), bool) for part in (supplementary, supplementary, expert)))
    radius, reach = (np.quantile(values[known], OWN_SHARE) + 1e-6 for values in (own_distance, own_action))
    distance, action = compare(others, supplementary.action, states, expert.action)
    back, _ = compare(states, expert.action, others, supplementary.action)
    return Overlap(distance <= radius, action <= reach, back <= radius)


def compare(
    states: Rows, actions: Rows, reference: Rows, reference_actions: Rows, own: Sample | None = None
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """The distance to the nearest reference state, and that of the action to the most similar one at the nearest few.

    `own`: given where states and reference are the same rows; the stretch around a row is then left out.
    """

    def close_in_time(part: slice) -> Bool[np.ndarray, "part references"]:
        assert own is not None
        stretch = np.maximum(1, STRETCH * own.length[part, None])
        near = np.abs(own.step[part, None] - own.step[None]) <= stretch
        return near & (own.episode[part, None] == own.episode[None])

    index, distance = find_nearest(states, reference, NEIGHBOURS, None if own is None else close_in_time)
    away = np.sqrt(((reference_actions[index] - actions[:, None]) ** 2).sum(axis=-1))
    return distance.min(axis=1), np.where(np.isfinite(distance), away, np.inf).min(axis=1)
