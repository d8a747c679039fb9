"""How weights are distributed over samples of known origin: a histogram for each origin, and the page's section."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.errors import printable
from demosift.report import numbers
from demosift.report.chart import Axis, Chart, Line, nice_ticks, render
from demosift.report.document import cell
from demosift.report.groups import Methods, about
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

    Weights of zero or below have no logarithm and are counted separately. `separation` is the area under the ROC curve:
    how likely a sample of the better origin weighs more than one of the worse; None where either has no samples.
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
            counts = np.histogram(log_weight[own & positive], edges)[0].tolist()
            share = float(weight[own & positive].sum() / total) if total else 0.0
            zero = int((own & ~positive).sum())
            origins.append(
                {"name": name, "rows": int(own.sum()), "zero": zero, "counts": counts, "weight_share": share}
            )
    separation = None
    if {better, worse} <= {origin["name"] for origin in origins}:
        of_better, of_worse = (weight[origin_code == list(names).index(name)] for name in (better, worse))
        separation = {"better": better, "worse": worse, "auc": probability_greater(of_better, of_worse)}
    return {"edges": edges.tolist(), "origins": origins, "separation": separation}


def weight_section(weights: Mapping[str, Any], methods: Methods) -> str:
    if not weights:
        return ""
    parts = []
    for place, (method, histogram) in enumerate(sorted(weights.items())):
        name = about(method, methods).name
        said = separation_in_words(histogram["separation"])
        heading = f"<h3>{escape(name)}</h3>" if len(weights) > 1 else ""
        chart = render(weight_chart(name, histogram, place))
        parts.append(f'{heading}<p class="said">{escape(said)}</p>{shares(histogram)}{chart}')
    return f"<section><h2>Which samples count</h2>{''.join(parts)}</section>"


def separation_in_words(separation: Mapping[str, Any] | None) -> str:
    if separation is None:
        return "Where the samples come from is not known well enough to say how well the weights separate them."
    auc, better, worse = separation["auc"], printable(separation["better"]), printable(separation["worse"])
    grades = {0.97: "almost perfectly", 0.85: "well", 0.6: "in part", 0.4: "hardly", -1.0: "the wrong way round"}
    grade = next(words for above, words in grades.items() if auc > above)
    return (
        f"The weights tell {better} from {worse} samples {grade}: a {better} one weighs more than a {worse} one with "
        f"probability {numbers.number(auc, 3)} (the AUC)."
    )


def shares(histogram: Mapping[str, Any]) -> str:
    """Each origin's share of the samples and of the weight."""
    total = sum(origin["rows"] for origin in histogram["origins"])
    any_zero = any(origin["zero"] for origin in histogram["origins"])
    heads = ["Samples", "Share of samples, %", "Share of weight, %", *(["Weigh nothing"] if any_zero else [])]
    body = []
    for index, origin in enumerate(histogram["origins"]):
        texts = [f"{origin['rows']:,}", numbers.number(100 * origin["rows"] / max(total, 1), 1)]
        texts += [numbers.number(100 * origin["weight_share"], 1), *([f"{origin['zero']:,}"] if any_zero else [])]
        name = (
            f'<i class="dot {origin_style(origin["name"], index)}"></i><span>{escape(printable(origin["name"]))}</span>'
        )
        cells = "".join(cell(head, text) for head, text in zip(heads, texts, strict=True))
        body.append(f'<tr><th scope="row"><div>{name}</div></th>{cells}</tr>')
    head = "".join(f'<th scope="col" class="n">{text}</th>' for text in heads)
    return (
        f'<table class="shares"><thead><tr><th scope="col">Origin</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def weight_chart(method: str, histogram: Mapping[str, Any], place: int) -> Chart:
    """The share of each origin's samples in every bin of log10(weight): equal areas, however many samples."""
    edges = np.asarray(histogram["edges"], np.float64)
    lines = []
    for index, origin in enumerate(histogram["origins"]):
        share = 100 * np.asarray(origin["counts"], np.float64) / max(origin["rows"], 1)
        bounds = [f"weight {numbers.power_of_ten(a)} to {numbers.power_of_ten(b)}" for a, b in pairwise(edges.tolist())]
        values = [f"{numbers.number(s, 1)}%  ({count:,})" for s, count in zip(share, origin["counts"], strict=True)]
        lines.append(
            Line(
                key=f"origin {place}/{index}",
                name=printable(origin["name"]),
                style=f"{origin_style(origin['name'], index)} d0",
                x=np.repeat(edges, 2)[1:-1],
                y=np.repeat(share, 2),
                title=bounds,
                value=values,
                stops=(edges[:-1] + edges[1:]) / 2,
                note=numbers.count_of(origin["rows"], "sample"),
                filled=True,
            )
        )
    top = max(float(line.y.max()) for line in lines) or 1.0
    first, last = math.ceil(edges[0] - 1e-9), math.floor(edges[-1] + 1e-9)
    every = max(1, -(-(last - first + 1) // 7))
    return Chart(
        title=f"Weights of {method}: share of each origin's samples, %",
        x_label="weight, logarithmic",
        x=Axis(
            edges[0], edges[-1], [(float(e), numbers.power_of_ten(float(e))) for e in range(first, last + 1, every)]
        ),
        y=Axis(0.0, top * 1.05, numbers.ticks(nice_ticks(0.0, top * 1.05, 4))),
        lines=lines,
    )


def origin_style(name: str, index: int) -> str:
    return {"expert": "o-expert", "clean": "o-clean", "noisy": "o-noisy"}.get(name, f"c{index % 8}")
