"""`report.html`: one page that needs nothing else, made from result files only, the same bytes for the same files."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from demosift.files import atomic_write
from demosift.report import numbers, statistics
from demosift.report.chart import padded, percent, render
from demosift.report.curves import diagnostics, learning_curves, origin_style, style_of, weight_chart
from demosift.report.grid import chosen_tables, read_grids, write_grid_files
from demosift.report.groups import LAST_EVALUATIONS, METHODS, Panel, Series, colours, group, printable
from demosift.report.headline import headline
from demosift.report.paper_section import paper_section
from demosift.report.table import BEST_NOTE, BOOTSTRAP_SEED, TableRow, explain, span, tabulate
from demosift.results.folder import is_grid_folder, read_folder
from demosift.results.reading import Results, Run, label

UNREAD_NAMED = 20

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
stratified percentile bootstrap: {statistics.RESAMPLES:,} resamples from a generator with seed {BOOTSTRAP_SEED}.</li>
<li>The probability that a seed of one method beats a seed of another counts ties as one half.</li>
</ul>"""


def write_report(folder: str | os.PathLike[str], last: int = LAST_EVALUATIONS) -> Path:
    """Write `report.html` into the folder, from every run and cell below it, and of a grid its tables and figures.

    `last`: the most evaluations that the page averages; the paper's tables average ten.
    """
    results = read_folder(folder)
    if is_grid_folder(Path(folder)):
        _, problems = write_grid_files(Path(folder), results)
        results = replace(results, problems=(*results.problems, *problems))
    page = render_page(results, last)
    path = Path(folder) / "report.html"
    with atomic_write(path) as temporary:
        # JSON may hold half of a surrogate pair, which no encoding takes.
        temporary.write_bytes(page.encode("utf-8", "backslashreplace"))
    return path


def render_page(results: Results, last: int = LAST_EVALUATIONS) -> str:
    panels, repeats = group(results)
    of_method = colours(panels)
    grids = read_grids(results)
    sentence, sureness = headline(panels, last)
    title = " · ".join(["demosift", *(panel.name for panel in panels[:3])])
    body = [
        f'<header><p class="kicker">{escape(title)}</p><h1>{escape(sentence)}</h1>'
        f'<p class="lede">{escape(sureness)}</p>{facts(panels, last)}</header>',
        problem_box([*results.problems, *repeats]),
        *(paper_section(table, of_method) for table in chosen_tables(grids)),
        *(panel_section(panel, of_method, last, len(panels) > 1) for panel in panels),
        weight_section(results.weights),
        diagnostics_part(panels, of_method),
        details("How the numbers are made", METHOD_NOTES) if panels else "",
        config_part(results.runs),
        unread_part(results.unread),
        footer(results.every_run),
    ]
    return document(title, body, asset("page.css"), asset("page.js"))


def asset(name: str) -> str:
    return resources.files("demosift.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, body: Sequence[str], style: str, script: str) -> str:
    """The whole page. Should anything from a file ever reach it unescaped, the browser runs this script alone."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = {"default": "'none'", "style": "'unsafe-inline'", "script": f"'sha256-{digest}'"}
    policy = (
        "; ".join(f"{kind}-src {source}" for kind, source in sources.items()) + "; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>\n<style>{style}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{script}</script></body></html>\n"
    )


def facts(panels: Sequence[Panel], last: int) -> str:
    rows = tabulate(panels, last)
    if not rows:
        return ""
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
    return '<dl class="facts">' + "".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for v, n in items) + "</dl>"


def problem_box(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(printable(problem))}</li>" for problem in problems)
    return f'<section class="problems"><h2>Left out</h2><ul>{items}</ul></section>'


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
    heads += [
        ("Each seed", "strip"),
        (f"IQM{unit}", "n"),
        ("95% interval", "n"),
        ("Return", "n"),
        ("Last", "n"),
        ("Best", "n faint"),
    ]
    head = "".join(f'<th scope="col" class="{kind}">{escape(text)}</th>' for text, kind in heads)
    low, high = padded(
        [v for s in panel.series for v in s.final(panel.scale, last)] + ([0.0, 1.0] if unit else []), 0.03
    )
    best = max(row.mean for row in rows)
    body = []
    for series, row in zip(panel.series, rows, strict=True):
        idea = f"<small>{escape(series.idea)}</small>" if series.idea and not series.variant else ""
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
    return (
        f'<div class="scroll"><table class="results"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def cell(heading: str, text: str, kind: str = "n") -> str:
    return f'<td class="{kind}" data-label="{escape(heading)}">{escape(text)}</td>'


def strip(series: Series, row: TableRow, low: float, high: float, style: str, last: int) -> str:
    """Every seed as a dot, the mean as a tick, on one scale for the whole table."""

    def place(value: float) -> str:
        return percent((value - low) / (high - low))

    dots = "".join(f'<i style="left:{place(v)}"></i>' for v in series.final(row.scale, last).tolist())
    ends = "".join(f'<u style="left:{place(v)}"></u>' for v in ((0.0, 1.0) if row.scale == "score" else ()))
    return f'<span class="track {style}">{ends}{dots}<b style="left:{place(row.mean)}"></b></span>'


def weight_section(weights: Mapping[str, Any]) -> str:
    if not weights:
        return ""
    parts = []
    for place, (method, histogram) in enumerate(sorted(weights.items())):
        name = METHODS[method].name if method in METHODS else printable(method)
        said = separation_in_words(histogram["separation"])
        parts.append(
            f'<p class="said">{escape(said)}</p>{shares(histogram)}{render(weight_chart(name, histogram, place))}'
        )
    return f"<section><h2>Which samples count</h2>{''.join(parts)}</section>"


def separation_in_words(separation: Mapping[str, Any] | None) -> str:
    if separation is None:
        return "Where the samples come from is not known well enough to say how well the weights separate them."
    auc, better, worse = separation["auc"], printable(separation["better"]), printable(separation["worse"])
    grades = (
        (0.97, "almost perfectly"),
        (0.85, "well"),
        (0.6, "in part"),
        (0.4, "hardly"),
        (-1, "the wrong way round"),
    )
    grade = next(words for above, words in grades if auc > above)
    return (
        f"The weights tell {better} from {worse} samples {grade}: a {better} one weighs more than a {worse} one with "
        f"probability {numbers.number(auc, 3)} (the AUC)."
    )


def shares(histogram: Mapping[str, Any]) -> str:
    """Who has the samples, and who has the weight."""
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


def config_part(runs: Sequence[Run]) -> str:
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


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(printable(summary))}</summary>{content}</details>"


def footer(runs: Sequence[Run]) -> str:
    versions = sorted({version for run in runs if (version := version_of(run))})
    made = f" of demosift {', '.join(versions)}" if versions else ""
    text = f"Made from {numbers.count_of(len(runs), 'run')}{made}. The same files give the same page, byte for byte."
    return f"<footer>{escape(printable(text))}</footer>"


def version_of(run: Run) -> str | None:
    versions = run.config.get("versions")
    found = versions.get("demosift") if isinstance(versions, dict) else None
    return found if isinstance(found, str) else None
