"""How weights fall on samples whose true origin is known: the demo's view of what the discriminator has learned.

`weights.json` at the top of a results folder maps a method to a histogram. `demosift.results.reading` checks it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.files import write_json
from demosift.report.statistics import probability_greater


def weight_histogram(
    weight: Float[np.ndarray, "rows"],
    origin_code: Int[np.ndarray, "rows"],
    names: Sequence[str],
    bins: int = 60,
    better: str = "clean",
    worse: str = "noisy",
) -> dict[str, Any]:
    """Counts of log10(weight) for each origin, on common bins.

    Weights of zero or below have no logarithm and are counted apart. `separation` is the area under the ROC curve: how
    likely a sample of the better origin weighs more than one of the worse; None where one of the two has no samples.
    """
    weight = np.asarray(weight, np.float64)
    origin_code = np.asarray(origin_code)
    if weight.ndim != 1 or weight.shape != origin_code.shape or not len(weight):
        raise ValueError(
            f"weights {weight.shape} and origins {origin_code.shape} must be one number each for every row"
        )
    if not np.isfinite(weight).all():
        raise ValueError(f"weight {int(np.flatnonzero(~np.isfinite(weight))[0])} is not finite")
    positive = weight > 0
    log_weight = np.log10(weight, where=positive, out=np.zeros_like(weight))
    low, high = (log_weight[positive].min(), log_weight[positive].max()) if positive.any() else (-1.0, 1.0)
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    total = weight[positive].sum()
    origins = []
    for code, name in enumerate(names):
        own = origin_code == code
        if own.any():
            counts, _ = np.histogram(log_weight[own & positive], edges)
            share = weight[own & positive].sum() / total if total else 0.0
            zero = int((own & ~positive).sum())
            origins.append(
                {
                    "name": name,
                    "rows": int(own.sum()),
                    "zero": zero,
                    "counts": counts.tolist(),
                    "weight_share": float(share),
                }
            )
    separation = None
    present = {origin["name"] for origin in origins}
    if {better, worse} <= present:
        of_better, of_worse = (weight[origin_code == list(names).index(name)] for name in (better, worse))
        separation = {"better": better, "worse": worse, "auc": probability_greater(of_better, of_worse)}
    return {"edges": edges.tolist(), "origins": origins, "separation": separation}


def write_weights(folder: str | os.PathLike[str], histograms: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `weights.json`: for each method by its registered name, what `weight_histogram` returned."""
    path = Path(folder) / "weights.json"
    write_json(path, dict(histograms))
    return path
