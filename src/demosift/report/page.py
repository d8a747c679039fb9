"""`report.html`: one page that needs nothing else, made from result files only, the same bytes for the same files."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from demosift.errors import printable
from demosift.report import numbers
from demosift.report.chart import Axis, Chart, Line, nice_ticks, padded, percent, render
from demosift.report.comparison_forms import comparison_sections, write_comparison_files
from demosift.report.document import asset, cell, details, document, header, problem_box, scrolled_table, write_page
from demosift.report.groups import LAST_EVALUATIONS, Methods, Panel, Series, colours, fingerprint, group
from demosift.report.paper import chosen_tables, read_tables
from demosift.report.paper_forms import paper_section, write_grid_files
from demosift.report.sift_page import kept_section
from demosift.report.statistics import BOOTSTRAP_SEED, RESAMPLES, student_interval
from demosift.report.table import BEST_NOTE, TableRow, explain, headline, span, tabulate
from demosift.report.weights import weight_section
from demosift.results.folder import REPORT, Results, is_grid_folder, read_folder
from demosift.results.measured import Curve, MeasuredRun, label

UNREAD_NAMED = 20
MOST_POINTS = 200  # of a diagnostic; longer ones are averaged over blocks
FIRST_DIAGNOSTICS = ("discriminator_accuracy", "effective_share", "policy_loss", "discriminator_loss", "weight_mean")
EXPLAINED = {
    "discriminator_accuracy": "Discriminator accuracy (0.5 is a guess)",
    "effective_share": "Effective share (1 is equal weights)",
    "weight_mean": "Mean weight",
}

TABLE_NOTE = f"IQM is the mean of the middle half of the seeds. Last is the final evaluation alone. {BEST_NOTE}"
CURVES_NOTE = """Lines are means over seeds, bands their 95% interval (Student's t). Point at the chart, or focus it and
use the arrow keys, to read values; click a name to hide or show it."""
WINDOW_NOTE = " The result averages the evaluations in the shaded part."
DIAGNOSTICS_NOTE = "Means over seeds of what training logged. Losses of different methods are different quantities."
METHOD_NOTES = f"""<ul>
<li>A seed's result is the mean of its last evaluations: ten, or half of all where there are fewer than twenty. It is
never the best one.</li>
<li>± is the standard deviation over seeds, with n - 1 in the denominator. Evaluation episodes are averaged first; their
spread is not part of it.</li>
<li>IQM, the interquartile mean, leaves out a quarter of the seeds, rounded down, at each end. Its interval is the
stratified percentile bootstrap: {RESAMPLES:,} resamples from a generator with seed {BOOTSTRAP_SEED}.</li>
<li>The probability that a seed of one method beats a seed of another counts ties as one half.</li>
</ul>"""


def write_report(folder: str | os.PathLike[str], methods: Methods, last: int = LAST_EVALUATIONS) -> Path:
    """Write `report.html` into the folder, from every run and cell below it; for a grid, tables and figures too.

    `methods`: what is known of them (`demosift.algorithms.facts`); one that is not there goes by its own name.
    `last`: at most how many evaluations the page averages; the paper's tables average ten.
    """
    results = read_folder(folder)
    if is_grid_folder(Path(folder)):
        problems = write_grid_files(Path(folder), results, methods)
        write_comparison_files(Path(folder), results, methods)
        results = replace(results, problems=(*results.problems, *problems))
    return write_page(Path(folder) / REPORT, render_page(results, methods, last))


def render_page(results: Results, methods: Methods, last: int = LAST_EVALUATIONS) -> str:
    panels, repeats = group(results.every_run, methods)
    of_method = colours({series.method for panel in panels for series in panel.series}, methods)
    sentence, sureness = headline(panels, last)
    title = " · ".join(["demosift", *(panel.name for panel in panels[:3])])
    kept, damaged = kept_section(results.scores)
    body = [
        header(title, sentence, sureness, facts(panels, last)),
        problem_box("Left out", [*results.problems, *damaged, *repeats]),
        *(paper_section(table, of_method) for table in chosen_tables(read_tables(results, methods))),
        comparison_sections(results, methods),
        *(panel_section(panel, of_method, last, len(panels) > 1) for panel in panels),
        kept,
        weight_section(results.weights, methods),
        diagnostics_part(panels, of_method),
        details("How the numbers are made", METHOD_NOTES) if panels else "",
        config_part(results.runs),
        unread_part(results.unread),
        footer(results.every_run),
    ]
    style, script = ("page.css", "sift_page.css"), ("page.js", "strips.js")
    used = 2 if kept else 1
    return document(title, body, "".join(map(asset, style[:used])), "".join(map(asset, script[:used])))


def facts(panels: Sequence[Panel], last: int) -> list[tuple[str, str]]:
    rows = tabulate(panels, last)
    if not rows:
        return []
    methods = len({(row.method, row.setting) for row in rows})
    seeds = span([row.seeds for row in rows])
    items = [
        (str(methods), "method" if methods == 1 else "methods"),
        (seeds, "seed" if seeds == "1" else "seeds each"),
        (span([row.iterations for row in rows]), "iterations"),
        (f"{sum(row.episodes for row in rows):,}", "episodes behind the table"),
    ]
    if len(panels) > 1:
        items.insert(0, (str(len(panels)), "tasks" if any(panel.task for panel in panels) else "environments"))
    return items


def panel_section(panel: Panel, of_method: Mapping[str, int], last: int, named: bool) -> str:
    rows = tabulate([panel], last)
    heading = f"Results on {panel.name}" if named else "Results"
    said = f'<p class="said">{escape(" ".join(headline([panel], last)))}</p>' if named else ""
    chart = learning_curves(panel, of_method, last)
    return (
        f"<section><h2>{escape(heading)}</h2>{said}{table(panel, rows, of_method, last)}"
        f'<p class="note">{escape(explain(rows))} {TABLE_NOTE}</p></section>'
        f"<section><h2>Learning curves</h2>{render(chart)}"
        f'<p class="note">{CURVES_NOTE}{WINDOW_NOTE if chart.window else ""}</p></section>'
    )


def table(panel: Panel, rows: Sequence[TableRow], of_method: Mapping[str, int], last: int) -> str:
    unit = ", %" if panel.scale == "score" else ""
    has_setting = any(row.setting for row in rows)
    heads = [("Method", ""), *([("Setting", "")] if has_setting else []), ("Seeds", "n"), (f"Score{unit}", "n")]
    heads += [("Each seed", "strip"), (f"IQM{unit}", "n"), ("95% interval", "n"), ("Return", "n"), ("Last", "n")]
    heads += [("Best", "n faint")]
    head = "".join(f'<th scope="col" class="{kind}">{escape(text)}</th>' for text, kind in heads)
    low, high = padded(
        [v for s in panel.series for v in s.final(panel.scale, last)] + ([0.0, 1.0] if unit else []), 0.03
    )
    best = max(row.mean for row in rows)
    body = []
    for series, row in zip(panel.series, rows, strict=True):
        idea = f"<small>{escape(series.about.idea)}</small>" if series.about.idea and not series.variant else ""
        style = style_of(series, of_method)
        texts = [
            f'<th scope="row"><div><i class="dot {style}"></i><span>{escape(series.name)}{idea}</span></div></th>',
            *([f'<td data-label="Setting">{escape(row.setting)}</td>'] if has_setting else []),
            cell("Seeds", str(row.seeds)),
            cell(f"Score{unit}", numbers.with_spread(row.mean, row.std, row.scale), "n score"),
            f'<td class="strip" data-label="Each seed">{strip(series, row, low, high, style, last)}</td>',
            cell(f"IQM{unit}", numbers.measured(row.iqm, row.scale)),
            cell("95% interval", numbers.interval(row.iqm_low, row.iqm_high, row.scale)),
            cell("Return", numbers.with_spread(row.return_mean, row.return_std, "return")),
            cell("Last", numbers.measured(row.last, row.scale)),
            cell("Best, not a result", numbers.measured(row.best, row.scale), "n faint"),
        ]
        body.append(f"<tr{' class=best' if row.mean == best and len(rows) > 1 else ''}>{''.join(texts)}</tr>")
    return scrolled_table("results", head, body)


def strip(series: Series, row: TableRow, low: float, high: float, style: str, last: int) -> str:
    """Every seed as a dot, the mean as a tick, on one scale for the whole table."""

    def place(value: float) -> str:
        return percent((value - low) / (high - low))

    dots = "".join(f'<i style="left:{place(v)}"></i>' for v in series.final(row.scale, last).tolist())
    ends = "".join(f'<u style="left:{place(v)}"></u>' for v in ((0.0, 1.0) if row.scale == "score" else ()))
    return f'<span class="track {style}">{ends}{dots}<b style="left:{place(row.mean)}"></b></span>'


def style_of(series: Series, colours: Mapping[str, int]) -> str:
    """The method's colour, and a dash for each further setting of it."""
    return f"c{colours[series.method]} d{series.variant % 4}"


def training_line(
    series: Series, colours: Mapping[str, int], curve: Curve, value: Sequence[str], factor: float = 1, **rest: Any
) -> Line:
    return Line(
        key=f"{fingerprint(series.method)}/{series.variant}",
        name=series.title,
        style=style_of(series, colours),
        x=curve.iteration.astype(np.float64),
        y=factor * curve.value,
        title=[f"iteration {i:,}" for i in curve.iteration.tolist()],
        value=value,
        **rest,
    )


def training_chart(title: str, lines: Sequence[Line], shown: Sequence[float], ticks: int, **rest: Any) -> Chart:
    """`shown` are values that the y axis must have room for besides the lines."""
    first, last = min(int(line.x[0]) for line in lines), max(int(line.x[-1]) for line in lines)
    first = first if first < last else 0
    last = max(last, first + 1)
    labels = [(tick, numbers.compact(int(tick))) for tick in nice_ticks(first, last) if tick == int(tick)]
    ends = [end for line in lines for end in (line.y, line.low, line.high) if end is not None]
    low, high = padded(np.concatenate([*ends, shown]))
    y = Axis(low, high, numbers.ticks(nice_ticks(low, high, ticks)))
    return Chart(title, "iterations", Axis(first, last, labels), y, lines, **rest)


def learning_curves(panel: Panel, colours: Mapping[str, int], last: int = LAST_EVALUATIONS) -> Chart:
    """Mean over seeds at every evaluation, with Student's 95% interval of that mean."""
    scale, factor = panel.scale, 100 if panel.scale == "score" else 1
    lines = []
    for series in panel.series:
        seeds = series.measured(scale)
        curve = Curve(series.members[0].iteration, seeds.mean(axis=0))
        low, high = student_interval(seeds)
        value = [
            numbers.measured(c, scale) + (f"  ({numbers.interval(a, b, scale)})" if math.isfinite(a) else "")
            for c, a, b in zip(curve.value, low, high, strict=True)
        ]
        note = numbers.measured(float(series.final(scale, last).mean()), scale)
        bands = {"low": factor * low, "high": factor * high}
        lines.append(training_line(series, colours, curve, value, factor, **bands, note=note))
    title = "Score over training, % of the expert's" if scale == "score" else "Return over training"
    references = [(100.0, "expert"), (0.0, "random")] if scale == "score" else []
    window = averaged_window(panel, last)
    return training_chart(title, lines, [at for at, _ in references], 5, references=references, window=window)


def averaged_window(panel: Panel, last: int) -> tuple[float, float] | None:
    """Where the reported number comes from, if it is the same stretch for every method."""
    windows = set()
    for series in panel.series:
        iteration = series.members[0].iteration
        windows.add((float(iteration[-series.num_averaged(last)]), float(iteration[-1])))
    if len(windows) > 1:
        return None
    start, end = windows.pop()
    return (start, end) if start < end else None


def diagnostics_part(panels: Sequence[Panel], of_method: Mapping[str, int]) -> str:
    parts = []
    for panel in panels:
        charts = "".join(render(chart) for chart in diagnostics(panel, of_method))
        if charts:
            heading = f"<h3>{escape(panel.name)}</h3>" if len(panels) > 1 else ""
            keys = "".join(
                f'<span class="{style_of(series, of_method)}"><i class="dot"></i>{escape(series.title)}</span>'
                for series in panel.series
            )
            parts.append(f'{heading}<p class="keys">{keys}</p><div class="multiples">{charts}</div>')
    note = f'<p class="note">{DIAGNOSTICS_NOTE}</p>'
    return details("Losses and diagnostics", "".join(parts) + note) if parts else ""


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
                value = [numbers.rounded(value) for value in curve.value.tolist()]
                lines.append(training_line(series, colours, curve, value))
        if lines:
            title = EXPLAINED.get(name, printable(name.replace("_", " ").capitalize()))
            charts.append(training_chart(title, lines, [], 4, small=True))
    return charts


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean over seeds that were logged at the same iterations, thinned to what a small chart can show.

    Thinning takes means of blocks, each shown at its last iteration; a block with a gap in it is a gap.
    """
    if not curves or any(not np.array_equal(curve.iteration, curves[0].iteration) for curve in curves):
        return None
    iteration, values = curves[0].iteration, np.stack([curve.value for curve in curves])
    measured = ~np.isnan(values)
    count = measured.sum(axis=0)
    centre = np.where(count > 0, np.where(measured, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)
    block = -(-len(iteration) // MOST_POINTS)
    whole = len(iteration) // block * block
    return Curve(iteration[:whole].reshape(-1, block)[:, -1], centre[:whole].reshape(-1, block).mean(axis=1))


def config_part(runs: Sequence[MeasuredRun]) -> str:
    parts = "".join(
        details(
            label(run.name),
            f"<pre>{escape(json.dumps(run.config, indent=2, sort_keys=True, ensure_ascii=False))}</pre>",
        )
        for run in runs
    )
    return details(f"Configuration of {numbers.count_of(len(runs), 'run')}", parts) if parts else ""


def unread_part(unread: Sequence[str]) -> str:
    if not unread:
        return ""
    named = "".join(f"<li>{escape(printable(name))}</li>" for name in unread[:UNREAD_NAMED])
    more = f"<li>and {len(unread) - UNREAD_NAMED:,} more</li>" if len(unread) > UNREAD_NAMED else ""
    return details(f"{numbers.count_of(len(unread), 'other file')} in the folder, not read", f"<ul>{named}{more}</ul>")


def footer(runs: Sequence[MeasuredRun]) -> str:
    found = [run.config.get("versions") for run in runs]
    named = [each.get("demosift") for each in found if isinstance(each, dict)]
    versions = sorted({version for version in named if isinstance(version, str) and version})
    made = f" of demosift {', '.join(versions)}" if versions else ""
    text = f"Made from {numbers.count_of(len(runs), 'run')}{made}. The same files give the same page, byte for byte."
    return f"<footer>{escape(printable(text))}</footer>"
