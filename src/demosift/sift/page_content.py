"""`page.json`: what the page shows beyond `summary.json`, small however many rows were scored.

It has histograms, a strip of weights for each episode that is shown, a map of states and, where the files say who made
each row, how well the weights agree with that. This truth is read here only, after all weights are known.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.utils.extmath import randomized_svd

from demosift.data import RowSource
from demosift.report.sift_episodes import MEASURES
from demosift.report.statistics import probability_greater
from demosift.report.weights import weight_histogram
from demosift.results.scores import TASK, merit, standing
from demosift.sift.calibration import LOG_LIMIT
from demosift.sift.diagnosis import calibration_bins, roc_curve
from demosift.sift.overlap import Sample, state_scale
from demosift.types import Origin

CELLS = 200  # in an episode's strip
ALL_EPISODES, BEST, WORST, BETWEEN = 500, 100, 100, 300
EXPERT_EPISODES = 10
SIGNAL_CELLS, STATES, ACTIONS = 100, 4, 2  # of the signals of an episode: points, columns of states and of actions
MAP_EXPERT, MAP_SUPPLEMENTARY = 1_000, 3_000
LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # 61 of them: the threshold is the middle one
MIDDLE = 30
GOOD = ("expert", "clean", "second")  # origins worth imitating
MOST_JUDGED = 200_000

Columns = dict[str, np.ndarray]
Weights = Float[np.ndarray, "rows"]


def page_content(
    sources: tuple[RowSource, RowSource],
    weight: Weights,
    episodes: Columns,
    samples: tuple[Sample, Sample],
    threshold: float,
    together: bool = False,
) -> dict[str, Any]:
    """`episodes`: the columns of `episodes.parquet`. `samples`: rows of both sets, for the map.

    `together`: nobody named an expert, so episodes of both sets are ranked and shown as one.
    """
    num_expert = sources[0].num_rows
    scale = colour_scale(weight, threshold)
    first = len(sources[0].episode_ends)
    if together:
        episodes = episodes | {"rank": rank_together(episodes)}
    place = np.arange(0 if together else first, len(episodes["rank"]))
    place = place[shown_episodes(episodes["rank"][place])]
    origin = sources[1].origin
    names, shown = [], {}
    for source, start, own_weight in ((sources[0], 0, weight[:num_expert]), (sources[1], first, weight[num_expert:])):
        own = place[(place >= start) & (place < start + len(source.episode_ends))] - start
        if len(own):
            listed = show_episodes(source, start, own, own_weight, episodes, scale)
            names, told = signals(source, own, samples[1])
            shown |= {
                start + at: {**one, "signals": lines} for at, one, lines in zip(own.tolist(), listed, told, strict=True)
            }
    best = np.argsort(episodes["rank"][:first], kind="stable")[:EXPERT_EPISODES]
    own = [] if together else show_episodes(sources[0], 0, best, weight[:num_expert], episodes, scale)
    source = (np.arange(len(weight)) >= num_expert).astype(np.int8)
    return {
        "scale": scale,
        "signal_names": names,
        "histogram": weight_histogram(weight, source, ("expert", "supplementary")),
        "episodes": {
            "expert": {"total": 0 if together else first, "shown": own, "origins": origin_names(sources[0].origin)},
            "supplementary": {
                "total": len(episodes["rank"]) - (0 if together else first),
                "shown": [shown[at] for at in place.tolist()],
                "origins": origin_names(origin),
            },
        },
        "map": state_map(*samples, weight, num_expert, scale, sources),
        "truth": judge_by_truth(sources, weight, num_expert),
    }


def rank_together(episodes: Columns) -> Int[np.ndarray, "episodes"]:
    """The rank among all episodes, as `filter` takes them."""
    looks = (episodes.get(name) for name in ("finish", "second_look", "support"))
    best = standing(merit(episodes["log_weight"], *looks), episodes.get(TASK))
    rank = np.empty(len(best), np.int64)
    rank[np.lexsort((episodes["number"], -best))] = np.arange(1, len(best) + 1)
    return rank


def origin_names(origin: Origin | None) -> list[str]:
    return [] if origin is None else list(origin.names)


def colour_scale(weight: Weights, threshold: float) -> dict[str, float]:
    """log10 of the weights at both ends of the colour scale and at its middle, the threshold."""
    low, high = np.quantile(weight, [0.01, 0.99])
    middle = float(np.log10(threshold))
    return {
        "low": round(min(float(np.log10(low)), middle - 0.5), 4),
        "middle": round(middle, 4),
        "high": round(max(float(np.log10(high)), middle + 0.3), 4),
    }


def as_levels(log_weight: Float[np.ndarray, "cells"], scale: dict[str, float]) -> str:
    """A character for each weight; the middle one stands for the threshold."""
    below = (log_weight - scale["low"]) / (scale["middle"] - scale["low"])
    above = (log_weight - scale["middle"]) / (scale["high"] - scale["middle"])
    level = np.where(log_weight < scale["middle"], np.minimum(MIDDLE * below, MIDDLE - 1), MIDDLE + MIDDLE * above)
    return "".join(LEVELS[i] for i in np.clip(np.round(level), 0, 2 * MIDDLE).astype(int).tolist())


def shown_episodes(rank: Int[np.ndarray, "episodes"]) -> Int[np.ndarray, "shown"]:
    """Which episodes the page lists, best first."""
    order, count = np.argsort(rank, kind="stable"), len(rank)
    if count <= ALL_EPISODES:
        return order
    between = np.linspace(BEST, count - WORST - 1, BETWEEN).astype(int)
    return order[np.concatenate([np.arange(BEST), between, np.arange(count - WORST, count)])]


def show_episodes(
    source: RowSource,
    first: int,
    order: Int[np.ndarray, "shown"],
    weight: Weights,
    episodes: Columns,
    scale: dict[str, float],
) -> list[dict[str, Any]]:
    """`first` is where the source's episodes begin in `episodes`."""
    own = {name: values[first : first + len(source.episode_ends)] for name, values in episodes.items()}
    truth = majority_origin(source.origin, source.episode_starts) if source.origin else None
    return [
        {
            "episode": int(own["number"][index]),
            "rank": int(own["rank"][index]),
            "rows": int(own["rows"][index]),
            "kept": round(float(own["kept"][index]), 4),
            "mean": float(f"{own['mean'][index]:.4g}"),
            "typical": float(f"{np.exp(own['log_weight'][index]):.4g}"),
            "strip": strip(weight[source.episode_starts[index] : source.episode_ends[index]], scale),
            **({} if truth is None else {"origin": int(truth[index])}),
            **({"task": str(own[TASK][index])} if TASK in own else {}),
            **measures(own, index),
        }
        for index in order.tolist()
    ]


def measures(own: Columns, index: int) -> dict[str, float]:
    """What else is known of an episode; nothing of what its task does not tell."""
    found = {name: float(own[name][index]) for name in MEASURES if name in own}
    if found.get("second_look", -LOG_LIMIT) <= -LOG_LIMIT:
        found.pop("second_look", None)
    else:
        found["second_look"] = float(np.exp(found["second_look"]))
    return {name: float(f"{value:.4g}") for name, value in found.items() if np.isfinite(value)}


def strip(weight: Weights, scale: dict[str, float]) -> str:
    """An episode's weights as geometric means over at most `CELLS` stretches."""
    log_weight = np.log10(weight)
    cells = min(CELLS, len(weight))
    starts = np.arange(cells) * len(weight) // cells
    means = np.add.reduceat(log_weight, starts) / np.diff(starts, append=len(weight))
    return as_levels(means, scale)


def signals(source: RowSource, order: Int[np.ndarray, "shown"], sample: Sample) -> tuple[list[str], list[list[str]]]:
    """What happens in the episodes that are shown: the columns that move most, and each episode's levels of them.

    The lowest level stands for a column's 1% quantile, the highest for its 99% quantile.
    """
    lengths, starts = np.diff(source.episode_ends, prepend=0)[order], source.episode_starts[order]
    points = [np.linspace(0, length - 1, min(SIGNAL_CELLS, length)).astype(np.int64) for length in lengths]
    rows = source.take(np.concatenate([start + own for start, own in zip(starts, points, strict=True)]))
    names, columns = [], []
    for name, most, known, values in zip(("state", "action"), (STATES, ACTIONS), sample[-2:], rows, strict=True):
        low, high = np.quantile(known, [0.01, 0.99], axis=0)
        moves = within_episodes(known, sample.episode).std(axis=0) / np.maximum(high - low, 1e-9)
        moving = sorted(int(one) for one in np.argsort(-moves, kind="stable")[:most] if high[one] > low[one])
        labels = state_names(source) if name == "state" else [f"{name} {one}" for one in range(known.shape[1])]
        names += [labels[one] for one in moving]
        columns += [2 * MIDDLE * (values[:, one] - low[one]) / (high[one] - low[one]) for one in moving]
    edges = np.cumsum([len(own) for own in points])[:-1]
    levels = [np.split(np.clip(np.round(own), 0, 2 * MIDDLE).astype(int), edges) for own in columns]
    texts = [["".join(LEVELS[level] for level in part.tolist()) for part in own] for own in levels]
    return names, [[own[place] for own in texts] for place in range(len(order))]


def within_episodes(values: Float[np.ndarray, "rows columns"], episode: Int[np.ndarray, "rows"]) -> np.ndarray:
    """Values less the mean of their episode: where things start, and goals, are no movement."""
    _, place, count = np.unique(episode, return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), values.shape[1]))
    np.add.at(sums, place, values)
    return values - (sums / count[:, None])[place]


def state_names(source: RowSource) -> list[str]:
    """The part of the state and the number within it, where a format has named parts."""
    keys: Mapping[str, int] | None = getattr(source, "obs_keys", None)
    if keys is None or sum(keys.values()) != source.obs_dim:
        return [f"state {column}" for column in range(source.obs_dim)]
    bare = {key.removeprefix("observation.").replace(",", " "): width for key, width in keys.items()}
    return [f"{key} {column}" for key, width in bare.items() for column in range(width)]


def majority_origin(origin: Origin, starts: Int[np.ndarray, "episodes"]) -> Int[np.ndarray, "episodes"]:
    counts = np.stack([np.add.reduceat((origin.code == c).astype(np.int64), starts) for c in range(len(origin.names))])
    return counts.argmax(axis=0)


def state_map(
    expert: Sample,
    supplementary: Sample,
    weight: Weights,
    num_expert: int,
    scale: dict[str, float],
    sources: tuple[RowSource, RowSource],
) -> dict[str, Any]:
    """The sampled states along the two directions in which they vary most, in the scale used for distances."""
    per = state_scale(expert.obs, supplementary.obs)
    parts = [thinned(expert, MAP_EXPERT), thinned(supplementary, MAP_SUPPLEMENTARY)]
    # Otherwise the map would show nothing but a few outliers.
    states = np.clip(np.concatenate([part.obs for part in parts]) / per - expert.obs.mean(axis=0) / per, -10, 10)
    states = states - states.mean(axis=0)
    _, singular, axes = randomized_svd(states, min(2, states.shape[1]), random_state=0)
    place = states @ axes.T
    if place.shape[1] < 2:  # one number per state
        place = np.concatenate([place, np.zeros_like(place)], axis=1)
    low, high = np.quantile(place, [0.002, 0.998], axis=0)
    place = np.clip((place - low) / np.maximum(high - low, 1e-9), 0, 1)
    rows = np.concatenate([parts[0].row, num_expert + parts[1].row])
    return {
        "expert": len(parts[0].row),
        "x": np.round(1000 * place[:, 0]).astype(int).tolist(),
        "y": np.round(1000 * place[:, 1]).astype(int).tolist(),
        "level": as_levels(np.log10(weight[rows]), scale),
        "episode": np.concatenate(
            [source.numbers[part.episode] for source, part in zip(sources, parts, strict=True)]
        ).tolist(),
        "step": np.concatenate([part.step for part in parts]).tolist(),
        "variance": min(1.0, float((singular**2).sum() / max((states**2).sum(), 1e-12))),
    }


def thinned(sample: Sample, most: int) -> Sample:
    rows = np.linspace(0, len(sample.row) - 1, min(most, len(sample.row))).astype(int)
    return Sample(*(values[rows] for values in sample))


def judge_by_truth(sources: tuple[RowSource, RowSource], weight: Weights, num_expert: int) -> dict[str, Any] | None:
    """The weights of the pile's rows by their true origin, where its file says so."""
    origin = sources[1].origin
    if origin is None:
        return None
    own = weight[num_expert:]
    good = np.isin(origin.code, [code for code, name in enumerate(origin.names) if name in GOOD])
    result: dict[str, Any] = {
        "histogram": weight_histogram(own, origin.code, origin.names) | {"separation": None},
        "auc": None,
    }
    thin = slice(None, None, -(-len(own) // MOST_JUDGED))
    value, right = own[thin], good[thin]
    if right.all() or not right.any():
        return result
    # A row's chance to be the expert's is proportional to its weight, up to one.
    chance = np.minimum(value / np.quantile(weight[:num_expert], 0.5), 1.0)
    ones = np.ones(len(value))
    return result | {
        "good": named(origin.names, origin.code[good]),
        "other": named(origin.names, origin.code[~good]),
        "auc": probability_greater(value[right], value[~right]),
        "roc": roc_curve(value[right], value[~right]),
        "calibration": calibration_bins(chance, right.astype(np.float64), ones),
    }


def named(names: tuple[str, ...], codes: Int[np.ndarray, "rows"]) -> list[str]:
    return [names[code] for code in np.unique(codes).tolist()]
