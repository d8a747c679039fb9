"""The paper's figures, as SVG and PNG: the same bytes for the same results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from demosift.files import atomic_write
from demosift.report import numbers, statistics
from demosift.report.groups import Panel, Series
from demosift.report.paper import Key, PaperRow, PaperTable, key_of
from demosift.report.paper_forms import NAMES, environment_name

# The page's colours, by the number a method has there.
COLOURS = ("#6b7078", "#ee7733", "#33a5dd", "#0068a8", "#cc3311", "#d62976", "#009988", "#7a5ba8")
PENALTY_COLOURS = ("#9ecae1", "#4292c6", "#084594", "#41ab5d", "#fd8d3c", "#8c6bb1")
GOOD, NOISY = "#b2182b", "#2166ac"  # red and blue, as in the paper
SHOWN_PENALTY = 1.0  # the setting that stands for a method where it has several
STYLE: Any = {
    "svg.hashsalt": "demosift",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    with mpl.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def save(drawn: Figure, path: Path) -> None:
    """`path` with .svg and .png; no date in either."""
    for suffix in ("svg", "png"):
        with atomic_write(path.with_suffix(f".{suffix}")) as temporary:
            drawn.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == "svg" else None)


def bars(drawn: Figure, groups: Sequence[tuple[str, Sequence[tuple[str, PaperRow | None, str]]]], columns: int) -> Axes:
    """Normalised scores side by side: bars ours with their bootstrap interval, diamonds the paper's."""
    axes = drawn.add_subplot()
    labelled: set[str] = set()
    count = max(len(members) for _, members in groups)
    width = 0.8 / count
    for place, (_, members) in enumerate(groups):
        for number, (name, row, colour) in enumerate(members):
            x = place + (number - (len(members) - 1) / 2) * width
            if row is None:
                continue
            label = None if name in labelled else name
            if row.overall is not None:
                axes.bar(x, 100 * row.overall.score, 0.9 * width, color=colour, label=label)
                labelled.add(name)
                low, high = row.overall.interval
                if np.isfinite(low):
                    axes.plot([x, x], [100 * low, 100 * high], color="0.2", linewidth=1)
            if row.paper_overall is not None:
                axes.plot(x, 100 * row.paper_overall, "D", color="white", markeredgecolor="0.1", markersize=4)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.set_ylabel("normalised score, %")
    axes.axhline(100, color="0.6", linestyle=":", linewidth=0.8)
    axes.plot([], [], "D", color="white", markeredgecolor="0.1", markersize=4, label="the paper")
    drawn.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=columns)
    return axes


def colour_of(method: str, colours: Mapping[str, int]) -> str:
    return COLOURS[colours[method] % len(COLOURS)]


def chosen(table: PaperTable) -> list[PaperRow]:
    """One row a method: the penalty the paper uses unless it says otherwise, or the only one there is."""
    found: dict[str, PaperRow] = {}
    for row in table.rows:
        if row.key.method not in found or row.key.gradient_penalty == SHOWN_PENALTY:
            found[row.key.method] = row
    return list(found.values())


def summary(tables: Sequence[PaperTable], colours: Mapping[str, int], path: Path) -> None:
    """The paper's Figure 1: every method's score averaged over the environments, task by task."""
    groups = [
        (NAMES[table.recipe], [(row.key.title, row, colour_of(row.key.method, colours)) for row in chosen(table)])
        for table in tables
    ]
    with figure(2.2 + 2.6 * len(tables), 3.3) as drawn:
        bars(drawn, groups, columns=4)
        save(drawn, path)


def gradient_penalty(method: str, tables: Sequence[PaperTable], path: Path) -> bool:
    """Scores of one method over its gradient penalties, task by task; False where there is nothing to draw."""
    penalties = sorted(
        {row.key.gradient_penalty or 0.0 for table in tables for row in table.rows if row.key.method == method}
    )
    own = [table for table in tables if any(row.key.method == method for row in table.rows)]
    if not penalties:
        return False
    colour = {penalty: PENALTY_COLOURS[i % len(PENALTY_COLOURS)] for i, penalty in enumerate(penalties)}
    groups = [
        (NAMES[table.recipe], [(f"GP={p:g}", table.row(method, p), colour[p]) for p in penalties]) for table in own
    ]
    with figure(2.4 + 1.4 * len(own), 3.0) as drawn:
        bars(drawn, groups, columns=4).set_title(Key(method).title)
        save(drawn, path)
    return True


def curves(panels: Mapping[str, Panel], series: Sequence[Key], colours: Mapping[str, int], path: Path) -> bool:
    """Training curves of these rows, a panel per environment: means over seeds with Student's 95% interval."""
    with figure(2.9 * len(panels), 2.8) as drawn:
        handles: dict[str, Any] = {}
        for axes, (env, panel) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            own = {key_of(each): each for each in panel.series}
            for number, key in enumerate(key for key in series if key in own):
                style = curve_style(key, number, series, colours)
                handles.setdefault(key.title, draw_curve(axes, own[key], **style))
            axes.axhline(100, color="0.6", linestyle=":", linewidth=0.8)
            axes.set_title(environment_name(env))
            axes.set_xlabel("iterations")
            axes.xaxis.set_major_formatter(lambda value, _: numbers.compact(int(value)))
        if not handles:
            return False
        drawn.supylabel("normalised score, %", fontsize=9)
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
        save(drawn, path)
    return True


def curve_style(key: Key, number: int, series: Sequence[Key], colours: Mapping[str, int]) -> dict[str, Any]:
    if len({each.method for each in series}) == 1:  # one method's settings
        return {"color": PENALTY_COLOURS[number % len(PENALTY_COLOURS)], "linestyle": "solid"}
    linestyle = "dashed" if key.method == "oracle" else "solid"
    return {"color": colour_of(key.method, colours), "linestyle": linestyle}


def draw_curve(axes: Axes, series: Series, **style: Any) -> Any:
    scores = 100 * series.measured("score")
    iteration = series.members[0].iteration
    (line,) = axes.plot(iteration, scores.mean(axis=0), linewidth=1.3, **style)
    low, high = statistics.student_interval(scores)
    if np.isfinite(low).all():
        axes.fill_between(iteration, low, high, color=style["color"], alpha=0.18, linewidth=0)
    return line


def coverage(points: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Kernel PCA of states, a panel per environment: good samples red, noisy ones blue.

    A poly kernel throws a few states far out (an episode's start, a fall): a panel shows the middle 98% each way.
    """
    with figure(2.7 * len(points), 2.8) as drawn:
        for axes, (env, content) in zip(drawn.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True):
            for kind, colour, size in (("good", GOOD, 5), ("noisy", NOISY, 4)):
                x, y = np.asarray(content[kind], float).T
                axes.scatter(x, y, s=size, color=colour, alpha=0.5, linewidths=0, label=kind)
            axes.set_title(f"{environment_name(env)}, mixing {content['mixing']:.2f}")
            every = np.concatenate([np.asarray(content[kind], float) for kind in ("good", "noisy")])
            (left, bottom), (right, top) = np.quantile(every, [0.01, 0.99], axis=0)
            margin_x, margin_y = 0.1 * (right - left) or 1.0, 0.1 * (top - bottom) or 1.0
            axes.set(xlim=(left - margin_x, right + margin_x), ylim=(bottom - margin_y, top + margin_y))
            axes.set_xticks([])
            axes.set_yticks([])
        handles = [Line2D([], [], marker="o", markersize=4, linestyle="", color=colour) for colour in (GOOD, NOISY)]
        drawn.legend(handles, ["good", "noisy"], loc="outside lower center", ncols=2, frameon=False)
        save(drawn, path)
