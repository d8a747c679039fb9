"""Learning curves, diagnostics and the histogram of weights, as charts."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.report import numbers, statistics
from demosift.report.chart import Axis, Chart, Line, nice_ticks, padded
from demosift.report.groups import LAST_EVALUATIONS, Panel, Series, fingerprint, num_averaged, printable
from demosift.results.reading import Curve

MOST_POINTS = 200  # of a diagnostic; longer ones are averaged over blocks
FIRST_DIAGNOSTICS = ("discriminator_accuracy", "effective_share", "policy_loss", "discriminator_loss", "weight_mean")
EXPLAINED = {
    "discriminator_accuracy": "Discriminator accuracy (0.5 is a guess)",
    "effective_share": "Effective share (1 is equal weights)",
    "weight_mean": "Mean weight",
}


def style_of(series: Series, colours: Mapping[str, int]) -> str:
    """The method's colour, and a dash for each further setting of it."""
    return f"c{colours[series.method]} d{series.variant % 4}"


def key_of(series: Series) -> str:
    return f"{fingerprint(series.method)}/{series.variant}"


def iteration_axis(low: int, high: int) -> Axis:
    low = low if low < high else 0
    high = max(high, low + 1)
    return Axis(low, high, [(tick, numbers.compact(int(tick))) for tick in nice_ticks(low, high) if tick == int(tick)])


def learning_curves(panel: Panel, colours: Mapping[str, int], last: int = LAST_EVALUATIONS) -> Chart:
    """Mean over seeds at every evaluation, with Student's 95% interval of that mean."""
    scale, factor = panel.scale, 100 if panel.scale == "score" else 1
    lines = []
    for series in panel.series:
        seeds = series.measured(scale)
        iteration, centre = series.members[0].iteration, seeds.mean(axis=0)
        low, high = statistics.student_interval(seeds)
        ranges = zip(centre, low, high, strict=True)
        lines.append(
            Line(
                key=key_of(series),
                name=series.title,
                style=style_of(series, colours),
                x=iteration.astype(np.float64),
                y=factor * centre,
                low=factor * low,
                high=factor * high,
                title=[f"iteration {i:,}" for i in iteration.tolist()],
                value=[
                    numbers.measured(c, scale) + (f"  ({numbers.interval(a, b, scale)})" if math.isfinite(a) else "")
                    for c, a, b in ranges
                ],
                note=numbers.measured(float(series.final(scale, last).mean()), scale),
            )
        )
    first, final = min(int(line.x[0]) for line in lines), max(int(line.x[-1]) for line in lines)
    references = [(100.0, "expert"), (0.0, "random")] if scale == "score" else []
    ends = [end for line in lines for end in (line.y, line.low, line.high) if end is not None]
    low, high = padded(np.concatenate([*ends, [value for value, _ in references]]))
    return Chart(
        title="Score over training, % of the expert's" if scale == "score" else "Return over training",
        x_label="iterations",
        x=iteration_axis(first, final),
        y=Axis(low, high, numbers.ticks(nice_ticks(low, high))),
        lines=lines,
        references=references,
        window=averaged_window(panel, last),
    )


def averaged_window(panel: Panel, last: int) -> tuple[float, float] | None:
    """Where the reported number comes from, if it is the same stretch for every method."""
    windows = set()
    for series in panel.series:
        iteration = series.members[0].iteration
        averaged = num_averaged(len(iteration), last)
        windows.add((float(iteration[-averaged]), float(iteration[-1])))
    if len(windows) > 1:
        return None
    start, end = windows.pop()
    return (start, end) if start < end else None


def diagnostics(panel: Panel, colours: Mapping[str, int]) -> list[Chart]:
    """A small chart for every loss and measure, with the methods that have it."""
    names = {name for series in panel.series for member in series.members for name in member.diagnostics}
    rank = {name: place for place, name in enumerate(FIRST_DIAGNOSTICS)}
    charts = []
    for name in sorted(names, key=lambda name: (rank.get(name, len(rank)), name)):
        lines = []
        for series in panel.series:
            curve = mean_curve([member.diagnostics[name] for member in series.members if name in member.diagnostics])
            if curve is not None:
                lines.append(
                    Line(
                        key=key_of(series),
                        name=series.title,
                        style=style_of(series, colours),
                        x=curve.iteration.astype(np.float64),
                        y=curve.value,
                        title=[f"iteration {i:,}" for i in curve.iteration.tolist()],
                        value=[numbers.rounded(value) for value in curve.value.tolist()],
                    )
                )
        if lines:
            low, high = padded(np.concatenate([line.y for line in lines]))
            charts.append(
                Chart(
                    title=EXPLAINED.get(name, printable(name.replace("_", " ").capitalize())),
                    x_label="iterations",
                    x=iteration_axis(min(int(ln.x[0]) for ln in lines), max(int(ln.x[-1]) for ln in lines)),
                    y=Axis(low, high, numbers.ticks(nice_ticks(low, high, 4))),
                    lines=lines,
                    small=True,
                )
            )
    return charts


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean over seeds that were logged at the same iterations, thinned to what a small chart can show."""
    if not curves or any(not np.array_equal(curve.iteration, curves[0].iteration) for curve in curves):
        return None
    values = np.stack([curve.value for curve in curves])
    measured = ~np.isnan(values)
    count = measured.sum(axis=0)
    centre = np.where(count > 0, np.where(measured, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)
    return thin(curves[0].iteration, centre)


def thin(iteration: Int[np.ndarray, "points"], value: Float[np.ndarray, "points"]) -> Curve:
    """Block means, each at its last iteration; a block with a gap in it is a gap."""
    block = -(-len(iteration) // MOST_POINTS)
    whole = len(iteration) // block * block
    return Curve(iteration[:whole].reshape(-1, block)[:, -1], value[:whole].reshape(-1, block).mean(axis=1))


def weight_chart(method: str, histogram: Mapping[str, Any], place: int) -> Chart:
    """The share of each origin's samples in every bin of log10(weight): all areas alike, however many samples."""
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
