"""The paper's figures, as SVG and PNG: the same bytes for the same results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from demosift.learning.about import ROBUST
from demosift.report import numbers, statistics
from demosift.report.comparison import LIMITS, ComparisonTable
from demosift.report.drawing import PALETTE, figure, save
from demosift.report.groups import Methods, Panel, Series
from demosift.report.paper import Key, PaperRow, PaperTable, key_of
from demosift.report.paper_forms import NAMES, environment_name

PENALTY_COLOURS = ("#9ecae1", "#4292c6", "#084594", "#41ab5d", "#fd8d3c", "#8c6bb1")
GOOD, NOISY = "#b2182b", "#2166ac"  # red and blue, as in the paper
COLUMNS_OF_PROFILES = (("as published", False), ("with the robust cloner", True))
SHOWN_PENALTY = 1.0  # the setting that stands for a method where it has several


def draw_tables(
    folder: Path,
    tables: Sequence[PaperTable],
    penalties: Sequence[PaperTable],
    methods: Methods,
    colours: Mapping[str, int],
) -> None:
    """Every figure of the paper's tables; those over the gradient penalty from `penalties`."""
    penalised = sorted(name for name, about in methods.items() if about.penalised)
    summary(tables, colours, folder / "summary")
    for method in penalised:
        gradient_penalty(method, penalties, folder / f"gradient-penalty-{method}")
    for table in tables:
        curves(table.panels, [row.key for row in chosen(table)], colours, folder / f"curves-{table.recipe}")
        for method in penalised:
            keys = [row.key for row in table.rows if row.key.method == method]
            curves(table.panels, keys, colours, folder / f"curves-{table.recipe}-{method}")


def bars(drawn: Figure, groups: Sequence[tuple[str, Sequence[tuple[str, PaperRow | None, str]]]]) -> Axes:
    """Normalised scores side by side: bars with a bootstrap interval are ours, diamonds the paper's."""
    axes = drawn.add_subplot()
    labelled: set[str] = set()
    width = 0.8 / max(len(members) for _, members in groups)
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
    drawn.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=4)
    return axes


def colour_of(method: str, colours: Mapping[str, int]) -> str:
    return PALETTE[colours[method] % len(PALETTE)]


def chosen(table: PaperTable) -> list[PaperRow]:
    """One row per method: that of the penalty the paper uses by default, or else its first."""
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
        bars(drawn, groups)
        save(drawn, path)


def gradient_penalty(method: str, tables: Sequence[PaperTable], path: Path) -> None:
    """Scores of one method over its gradient penalties, task by task; no file where no table has the method."""
    keys = [row.key for table in tables for row in table.rows if row.key.method == method]
    if not keys:
        return
    own = [table for table in tables if any(row.key.method == method for row in table.rows)]
    penalties = sorted({key.gradient_penalty or 0.0 for key in keys})
    colour = {penalty: PENALTY_COLOURS[i % len(PENALTY_COLOURS)] for i, penalty in enumerate(penalties)}
    groups = [
        (NAMES[table.recipe], [(f"GP={p:g}", table.row(method, p), colour[p]) for p in penalties]) for table in own
    ]
    with figure(2.4 + 1.4 * len(own), 3.0) as drawn:
        bars(drawn, groups).set_title(keys[0].about.name)
        save(drawn, path)


def curves(panels: Mapping[str, Panel], series: Sequence[Key], colours: Mapping[str, int], path: Path) -> None:
    """Training curves of these rows, a panel per environment: means over seeds with Student's 95% interval."""
    if not series:
        return
    one_method = len({key.method for key in series}) == 1
    with figure(2.9 * len(panels), 2.8) as drawn:
        handles: dict[str, Any] = {}
        for axes, (env, panel) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            own = {key_of(each): each for each in panel.series}
            for number, key in enumerate(key for key in series if key in own):
                colour, dashes = colour_of(key.method, colours), "solid" if key.about.contender else "dashed"
                if one_method:
                    colour, dashes = PENALTY_COLOURS[number % len(PENALTY_COLOURS)], "solid"
                handles.setdefault(key.title, draw_curve(axes, own[key], color=colour, linestyle=dashes))
            axes.axhline(100, color="0.6", linestyle=":", linewidth=0.8)
            axes.set_title(environment_name(env))
            axes.set_xlabel("iterations")
            axes.xaxis.set_major_formatter(lambda value, _: numbers.compact(int(value)))
        drawn.supylabel("normalised score, %", fontsize=9)
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
        save(drawn, path)


def draw_curve(axes: Axes, series: Series, **style: Any) -> Any:
    scores = 100 * series.measured("score")
    iteration = series.members[0].iteration
    (line,) = axes.plot(iteration, scores.mean(axis=0), linewidth=1.3, **style)
    low, high = statistics.student_interval(scores)
    if np.isfinite(low).all():
        axes.fill_between(iteration, low, high, color=style["color"], alpha=0.18, linewidth=0)
    return line


def profiles(tables: Sequence[ComparisonTable], path: Path) -> None:
    """Performance profiles of the first table: the share of seeds above each score, as published and robust."""
    rows = [row for row in tables[0].rows if row.profile is not None]
    plain = list(dict.fromkeys(row.key[0].removesuffix(ROBUST) for row in rows))
    hues = mpl.colormaps["tab20"]
    columns = [(name, [row for row in rows if row.robust == robust]) for name, robust in COLUMNS_OF_PROFILES]
    columns = [(name, own) for name, own in columns if own]
    if not columns:
        return
    with figure(1.2 + 3.2 * len(columns), 3.6) as drawn:
        handles: dict[str, Any] = {}
        for axes, (name, own) in zip(drawn.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
            for row in own:
                assert row.profile is not None
                colour = hues(plain.index(row.key[0].removesuffix(ROBUST)) % 20)
                dashes = "solid" if row.series.about.contender else "dashed"
                (line,) = axes.plot(
                    100 * LIMITS, 100 * row.profile.share, color=colour, linewidth=1.3, linestyle=dashes
                )
                handles.setdefault(row.title.partition(", robust cloner")[0], line)
                if np.isfinite(row.profile.low).all():
                    low, high = 100 * row.profile.low, 100 * row.profile.high
                    axes.fill_between(100 * LIMITS, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.set(title=name, xlabel="score, % of the expert's", ylim=(0, 102))
        drawn.supylabel("seeds above it, %", fontsize=9)
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
        save(drawn, path)


def coverage(points: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Kernel PCA of states, a panel per environment: good samples red, noisy ones blue.

    A poly kernel throws a few states far out (an episode's start, a fall): a panel shows the middle 98% on each axis.
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
