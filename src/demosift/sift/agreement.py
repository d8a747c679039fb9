"""Where nobody has named an expert: how well the episodes of one dataset agree with each other.

    information      mutual information of state and action, by nearest neighbours (Kraskov et al. 2004; DemInf, 2025)
    predictability   minus the error of a row's action as predicted from the most similar states of other episodes
    idle             share of steps at which the state stands still
    roughness        mean change of the action's change from step to step, over the action's spread
    length           steps
    finish           share of the usual way that it went, where states tell how far along they are

The first two are better when larger; the next three count against an episode only where it is an outlier, and the last
where it stops early. The information is shown but does not count: a hand that moves in its own way has little of it,
good or bad. All this measures agreement, not quality: where most episodes make the same mistake, the mistake agrees
best. The episodes that agree most stand in for an expert, and everything else is then scored against them.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import digamma

from demosift.data import RowSource
from demosift.learning.neighbours import find_nearest
from demosift.results.scores import EARLY
from demosift.sift.finish import Finish, agree_on_finish

MOST_ROWS = 10_000  # that are compared with each other
BATCH, ROUNDS, NEIGHBOURS = 1_024, 4, (5, 6, 7)  # of the estimate of mutual information
STATE_COLUMNS, ACTION_COLUMNS = 16, 6  # directions of largest variance in which neighbours are sought
SIMILAR = 10  # states of other episodes that predict an action
SMOOTHED, STILL = 5, 0.1  # steps over which speed is averaged; share of the usual speed below which a state is idle
OUTLIER = 3.0  # deviations from the median, by the median absolute deviation
STOPPED = 3 * OUTLIER  # what an early stop costs: as much as to be an outlier in everything else
STAND_INS = 1 / 3  # share of the episodes that stand in for an expert

Values = Float[np.ndarray, "episodes"]


class Agreement(NamedTuple):
    """A number for every episode, and for every row whether it is idle."""

    information: Values
    predictability: Values
    idle: Values
    roughness: Values
    length: Int[np.ndarray, "episodes"]
    finish: Finish | None
    combined: Values  # larger is better
    rank: Int[np.ndarray, "episodes"]  # from 1, the best
    idle_rows: Bool[np.ndarray, "rows"]

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What `episodes.parquet` and the page show."""
        known = self._asdict()
        shown = ("information", "predictability", "idle", "roughness")
        finish = {} if self.finish is None else {"finish": self.finish.share}
        rank = {"agreement": self.combined, "agreement_rank": self.rank}
        return {name: known[name] for name in shown} | finish | rank

    def stand_ins(self) -> Int[np.ndarray, "episodes"]:
        """The episodes that agree most, in their order; at least one, and never all."""
        count = min(max(1, round(STAND_INS * len(self.rank))), len(self.rank) - 1)
        return np.flatnonzero(self.rank <= count)

    @property
    def order(self) -> Int[np.ndarray, "episodes"]:
        """All episodes, those that stand in for an expert first."""
        first = self.stand_ins()
        return np.concatenate([first, np.setdiff1d(np.arange(len(self.rank)), first)])


def measure_agreement(source: RowSource, seed: int = 0) -> Agreement:
    ends = source.episode_ends
    length = np.diff(ends, prepend=0)
    rng = np.random.default_rng([seed, 6])
    row = some_rows(source)
    obs, action = (values.astype(np.float64) for values in source.take(row))
    episode = np.searchsorted(ends, row, side="right")
    state, taken = whitened(obs, STATE_COLUMNS), whitened(action, ACTION_COLUMNS)
    information = by_episode(local_information(state, taken, rng), episode, len(ends))
    predictability = -by_episode(prediction_error(state, taken, episode), episode, len(ends))
    idle_rows, bend, _ = movement(source)
    starts = ends - length
    idle = np.add.reduceat(idle_rows.astype(np.float64), starts) / length
    roughness = np.add.reduceat(bend, starts) / length
    penalty = sum(excess(values) for values in (idle, roughness)) + excess(np.abs(centred(np.log(length))))
    finish = agree_on_finish(source, seed)
    stopped = np.zeros(len(ends)) if finish is None else STOPPED * (finish.share < EARLY)
    combined = standing(predictability) - penalty - stopped
    rank = np.empty(len(ends), np.int64)
    # Outliers count alike, but of two the worse ranks lower.
    rank[np.lexsort((-predictability, -combined))] = np.arange(1, len(ends) + 1)
    return Agreement(information, predictability, idle, roughness, length, finish, combined, rank, idle_rows)


def whitened(values: Float[np.ndarray, "rows columns"], most: int) -> Float[np.ndarray, "rows directions"]:
    """The directions in which standardised columns vary most, each with deviation 1. Constant columns are left out."""
    centre, scale = values.mean(axis=0), values.std(axis=0)
    moving = scale > 1e-9 * (1 + np.abs(centre))
    standard = (values - centre)[:, moving] / scale[moving]
    if not moving.any():
        return np.zeros((len(values), 1))
    size, axes = np.linalg.eigh(standard.T @ standard / len(standard))
    kept = [index for index in np.argsort(-size)[:most] if size[index] > 1e-6 * size.max()]
    return standard @ (axes[:, kept] / np.sqrt(size[kept]))


def local_information(
    state: Float[np.ndarray, "rows a"], action: Float[np.ndarray, "rows b"], rng: np.random.Generator
) -> Float[np.ndarray, "rows"]:
    """Each row's part of the mutual information in nats, mean over several divisions into batches."""
    total = np.zeros(len(state))
    for _ in range(ROUNDS):
        # Ties, as between discrete actions, are broken at random.
        a, b = (values + 1e-9 * rng.normal(size=values.shape) for values in (state, action))
        order = rng.permutation(len(state))
        for part in np.array_split(order, -(-len(order) // BATCH)):
            total[part] += batch_information(a[part], b[part])
    low, high = np.quantile(total, [0.01, 0.99])
    return np.clip(total, low, high) / ROUNDS


def batch_information(a: Float[np.ndarray, "rows a"], b: Float[np.ndarray, "rows b"]) -> Float[np.ndarray, "rows"]:
    """Kraskov, Stögbauer and Grassberger's first estimator, row by row, mean over several numbers of neighbours."""
    count = len(a)
    usable = [k for k in NEIGHBOURS if k < count]
    if not usable:
        return np.zeros(count)
    away = [distances(values) for values in (a, b)]
    joint = np.maximum(*away)
    reach = np.partition(joint, [k - 1 for k in usable], axis=1)
    found = np.zeros(count)
    for k in usable:
        limit = reach[:, k - 1 : k]
        inside = [(own < limit).sum(axis=1) for own in away]  # a row itself is infinitely far
        found += digamma(k) + digamma(count) - digamma(inside[0] + 1) - digamma(inside[1] + 1)
    return found / len(usable)


def distances(values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows rows"]:
    squares = (values**2).sum(axis=1)
    found = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * values @ values.T, 0.0))
    np.fill_diagonal(found, np.inf)
    return found


def prediction_error(
    state: Float[np.ndarray, "rows a"], action: Float[np.ndarray, "rows b"], episode: Int[np.ndarray, "rows"]
) -> Float[np.ndarray, "rows"]:
    """The distance of a row's action from the mean of those at the most similar states of other episodes."""
    index, distance = find_nearest(state, state, SIMILAR, lambda part: episode[part, None] == episode[None])
    known = np.isfinite(distance)
    share = known / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.sqrt((((action[index] * share[..., None]).sum(axis=1) - action) ** 2).sum(axis=1))


def movement(
    source: RowSource, least: float = 0.0
) -> tuple[Bool[np.ndarray, "rows"], Float[np.ndarray, "rows"], Bool[np.ndarray, "rows"]]:
    """Which rows are idle, how much the action's change changes at each, and which repeat the action before them.

    Columns of the state are compared by their spread. One that spreads over less than `least` of what most do hardly
    counts: that a thing on the table trembles does not mean that the robot moves.
    """
    starts = source.episode_starts
    first = np.zeros(source.num_rows, bool)
    first[starts] = True
    speed, bend = np.zeros(source.num_rows), np.zeros(source.num_rows)
    scale = [np.maximum(values.astype(np.float64).std(axis=0), 1e-9) for values in source.take(some_rows(source))]
    scale[0] = np.maximum(scale[0], least * np.quantile(scale[0], 0.75))
    turn = np.zeros(source.num_rows)
    position, before = 0, None
    for obs, action in source.blocks():
        here = slice(position, position + len(obs))
        state, taken = obs.astype(np.float64) / scale[0], action.astype(np.float64) / scale[1]
        if before is None:
            before = state[:1], taken[:1], taken[:1]
        state, taken = np.concatenate([before[0], state]), np.concatenate([before[1], before[2], taken])
        speed[here] = np.linalg.norm(np.diff(state, axis=0), axis=1)
        bend[here] = np.abs(np.diff(taken, 2, axis=0)).mean(axis=1)
        turn[here] = np.linalg.norm(np.diff(taken, axis=0)[1:], axis=1)
        before = state[-1:], taken[-2:-1], taken[-1:]
        position = here.stop
    # A difference across the start of an episode is none; the row takes that of the next.
    later = np.minimum(np.flatnonzero(first) + 1, source.num_rows - 1)
    speed[first] = np.where(first[later], 0.0, speed[later])
    bend[first | np.append(False, first[:-1])] = 0.0
    smooth = smoothed(speed, source.episode_ends)
    usual = np.quantile(smooth, 0.75)
    turn[first] = 0.0
    return smooth < STILL * usual, bend, turn <= STILL * np.quantile(turn, 0.75)


def some_rows(source: RowSource) -> Int[np.ndarray, "rows"]:
    return np.unique(np.linspace(0, source.num_rows - 1, min(MOST_ROWS, source.num_rows)).astype(np.int64))


def smoothed(values: Float[np.ndarray, "rows"], ends: Int[np.ndarray, "episodes"]) -> Float[np.ndarray, "rows"]:
    """Means over a few rows around each, inside its episode."""
    length = np.diff(ends, prepend=0)
    low, high = np.repeat(ends - length, length), np.repeat(ends, length)
    row = np.arange(len(values))
    start, stop = np.maximum(row - SMOOTHED // 2, low), np.minimum(row + SMOOTHED // 2 + 1, high)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[stop] - sums[start]) / (stop - start)


def by_episode(values: Float[np.ndarray, "rows"], episode: Int[np.ndarray, "rows"], count: int) -> Values:
    """Means; an episode of which no row was compared has the mean of all."""
    rows = np.bincount(episode, minlength=count)
    means = np.bincount(episode, values, count) / np.maximum(rows, 1)
    return np.where(rows > 0, means, values.mean())


def centred(values: np.ndarray) -> Values:
    return values - np.median(values)


def standing(values: Values) -> Values:
    """How far above the median, in robust deviations, within ±3."""
    away = centred(values)
    return np.clip(away / (1.4826 * np.median(np.abs(away)) + 1e-9), -OUTLIER, OUTLIER)


def excess(values: Values) -> Values:
    """How far an episode is an outlier upwards; zero for all others. What hardly differs has none."""
    away = centred(values)
    spread = 1.4826 * np.median(np.abs(away)) + 0.02
    return np.clip(away / spread - OUTLIER, 0.0, OUTLIER)
