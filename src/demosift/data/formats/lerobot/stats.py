"""Statistics of LeRobot features, as its training reads them: for each episode, and for all episodes together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demosift.types import InputError

Stats = dict[str, np.ndarray]

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def feature_stats(name: str, values: np.ndarray) -> Stats:
    """Statistics of one feature over the rows of an episode, column by column."""
    columns = values.reshape(len(values), -1).astype(np.float64)
    with np.errstate(all="ignore"):
        stats = {
            "min": columns.min(axis=0),
            "max": columns.max(axis=0),
            "mean": columns.mean(axis=0),
            "std": columns.std(axis=0),
            "count": np.array([len(columns)]),
        }
        stats |= dict(zip(QUANTILES, np.quantile(columns, list(QUANTILES.values()), axis=0), strict=True))
    if not all(np.isfinite(each).all() for each in stats.values()):
        raise InputError(f"{name}: holds numbers that are not finite, or too large for statistics")
    return stats


def aggregate_stats(episodes: Sequence[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Statistics of all rows, from those of episodes. Quantiles become their weighted means, as in LeRobot."""
    try:
        with np.errstate(over="raise"):
            return {key: _aggregate([stats[key] for stats in episodes if key in stats]) for key in episodes[0]}
    except (KeyError, ValueError, IndexError, FloatingPointError) as error:
        raise InputError(f"the statistics of episodes do not go together: {' '.join(str(error).split())}") from error


def _aggregate(stats: Sequence[Stats]) -> Stats:
    count = np.array([float(np.ravel(each["count"])[0]) for each in stats])
    if not (count > 0).all():
        raise ValueError("an episode counts no frames")

    def mean(values: np.ndarray) -> np.ndarray:
        return np.tensordot(count / count.sum(), values, axes=1)

    def of_all(name: str) -> np.ndarray:
        return np.stack([np.asarray(each[name], np.float64) for each in stats])

    centre = mean(of_all("mean"))
    whole = {
        "min": of_all("min").min(axis=0),
        "max": of_all("max").max(axis=0),
        "mean": centre,
        "std": np.sqrt(mean(of_all("std") ** 2 + (of_all("mean") - centre) ** 2)),
        "count": np.array([int(count.sum())]),
    }
    shared = [name for name in QUANTILES if all(name in each for each in stats)]
    return whole | {name: mean(of_all(name)) for name in shared}


def to_json(stats: Mapping[str, Stats]) -> dict[str, dict[str, Any]]:
    return {key: {name: np.asarray(value).tolist() for name, value in each.items()} for key, each in stats.items()}


def from_json(where: str, stats: Any) -> dict[str, Stats]:
    """The statistics of features, as a dataset stores them; `where` names the place in messages."""
    if not isinstance(stats, dict) or not all(isinstance(each, dict) for each in stats.values()):
        raise InputError(f"{where}: not the statistics of features")
    return {
        key: {name: _array(f"{where}: {key}: {name}", value) for name, value in each.items()}
        for key, each in stats.items()
    }


def _array(where: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and array.size > 0 and np.isfinite(array).all():
            return array
    except ValueError:  # rows of unequal length
        pass
    raise InputError(f"{where}: not an array of finite numbers")
