"""`page.json`: what the page shows beyond `summary.json`, small however many rows were scored.

It has histograms, a strip of weights for each episode that is shown, a map of states and, where the files say who made
each row, how well the weights agree with that. This truth is read here only, after all weights are known.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.utils.extmath import randomized_svd

from demosift.data import RowSource
from demosift.report.statistics import probability_greater
from demosift.report.weights import weight_histogram
from demosift.results.scores import TASK
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
) -> dict[str, Any]:
    """`episodes`: the columns of `episodes.parquet`. `samples`: rows of both sets, for the map."""
    num_expert = sources[0].num_rows
    scale = colour_scale(weight, threshold)
    first = len(sources[0].episode_ends)
    order = shown_episodes(first, len(sources[1].episode_ends), episodes)
    shown = show_episodes(sources[1], first, order, weight[num_expert:], episodes, scale)
    names, told = signals(sources[1], order, samples[1])
    for one, own in zip(shown["shown"], told, strict=True):
        one["signals"] = own
    source = (np.arange(len(weight)) >= num_expert).astype(np.int8)
    return {
        "scale": scale,
        "signal_names": names,
        "histogram": weight_histogram(weight, source, ("expert", "supplementary")),
        "episodes": {
            "expert": show_episodes(
                sources[0], 0, shown_episodes(0, first, episodes), weight[:num_expert], episodes, scale
            ),
            "supplementary": shown,
        },
        "map": state_map(*samples, weight, num_expert, scale, sources),
        "truth": judge_by_truth(sources, weight, num_expert),
    }


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


def shown_episodes(first: int, count: int, episodes: Columns) -> Int[np.ndarray, "shown"]:
    """Which episodes of a source the page lists, best first; `first` is where the source's begin in `episodes`."""
    order = np.argsort(episodes["rank"][first : first + count], kind="stable")
    if first == 0:
        return order[:EXPERT_EPISODES]
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
) -> dict[str, Any]:
    own = {name: values[first : first + len(source.episode_ends)] for name, values in episodes.items()}
    truth = majority_origin(source.origin, source.episode_starts) if source.origin else None
    shown = [
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
        }
        for index in order.tolist()
    ]
    return {
        "total": len(source.episode_ends),
        "shown": shown,
        "origins": [] if source.origin is None else list(source.origin.names),
    }


def strip(weight: Weights, scale: dict[str, float]) -> str:
    """An episode's weights as geometric means over at most `CELLS` stretches."""
    log_weight = np.log10(weight)
    cells = min(CELLS, len(weight))
    starts = np.arange(cells) * len(weight) // cells
    means = np.add.reduceat(log_weight, starts) / np.diff(starts, append=len(weight))
    return as_levels(means, scale)


def signals(source: RowSource, order: Int[np.ndarray, "shown"], sample: Sample) -> tuple[list[str], list[list[str]]]:
    """What happens in the episodes that are shown: the columns that vary most, and each episode's levels of them.

    The lowest level stands for a column's 1% quantile, the highest for its 99% quantile.
    """
    lengths, starts = np.diff(source.episode_ends, prepend=0)[order], source.episode_starts[order]
    points = [np.linspace(0, length - 1, min(SIGNAL_CELLS, length)).astype(np.int64) for length in lengths]
    rows = source.take(np.concatenate([start + own for start, own in zip(starts, points, strict=True)]))
    names, columns = [], []
    for name, most, known, values in zip(("state", "action"), (STATES, ACTIONS), sample[-2:], rows, strict=True):
        low, high = np.quantile(known, [0.01, 0.99], axis=0)
        varies = known.std(axis=0) / (np.abs(known).mean(axis=0) + 1e-9)
        moving = sorted(int(one) for one in np.argsort(-varies, kind="stable")[:most] if high[one] > low[one])
        names += [f"{name} {one}" for one in moving]
        columns += [2 * MIDDLE * (values[:, one] - low[one]) / (high[one] - low[one]) for one in moving]
    edges = np.cumsum([len(own) for own in points])[:-1]
    levels = [np.split(np.clip(np.round(own), 0, 2 * MIDDLE).astype(int), edges) for own in columns]
    texts = [["".join(LEVELS[level] for level in part.tolist()) for part in own] for own in levels]
    return names, [[own[place] for own in texts] for place in range(len(order))]


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
