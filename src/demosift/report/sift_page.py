"""`report.html` of a scores folder: the verdict, the episodes, and the evidence; and the part of it that the page of a
run shows.

It is made from `summary.json` and `page.json` alone, so the same files give the same page, byte for byte, and a million
rows cost no more than a thousand. Nothing from a file reaches the page unescaped.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from demosift.errors import printable
from demosift.files import Unusable
from demosift.report import numbers
from demosift.report.chart import Axis, Chart, Line, embed, percent, render
from demosift.report.document import asset, cell, details, document, header, problem_box, scrolled_table, write_page
from demosift.report.groups import Methods, about
from demosift.report.sift_episodes import (
    best_and_worst,
    by_agreement,
    episode_section,
    level_text,
    scale_attributes,
    scale_of,
    task_name,
)
from demosift.report.weights import shares, weight_chart
from demosift.results.folder import REPORT
from demosift.results.scores import PAGE, SUMMARY, read_page

KEPT_CHARTS = 100  # the histograms of a run's scores count from here, after those of its weights
UNIT = Axis(0.0, 1.0, [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")])
ENDS = np.array([0.0, 1.0])
IDEAL = Line("ideal", "ideal", "c0 d2", ENDS, ENDS, ["", ""], ["", ""], stops=np.array([]))

RIGHT = ' class="n"'
TASK_COLUMNS = {"Task": "", "Expert": RIGHT, "Pile": RIGHT, "Kept": RIGHT, "Expert-like": RIGHT, "By": "", "Advice": ""}
DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
)  # of files that score did not write

METHOD_NOTES = """<ul>
<li>A weight estimates d_E(s,a)/d_U(s,a), how much more common a row is in the expert's data than in the union. Every
row is weighed by models that were trained without its episode or, where there are few episodes, without the stretch of
the episode around the row.</li>
<li>A row is near an expert state if the nearest one is no farther away than the nearest other state is for 95% of the
expert's own rows. It has the expert's action if its action is as close to those taken at the five nearest expert states
as the actions of 95% of the expert's own rows are. An expert row is not compared with the stretch of its own episode
around it. By construction, about 5% of the expert's own rows count as other states or actions.</li>
<li>A row is expert-like if its weight reaches the 10% quantile of the weights of held-out expert rows. Nine in ten
expert rows reach it, so the share of the pile that does is divided by 0.9.</li>
<li>Effective rows: (sum of weights)² / sum of squared weights over the union, the number of equally weighted rows that
learning from it is worth.</li>
<li>Calibration compares w/(1+w) with how often rows of that value are the expert's, when the expert set and the union
are drawn equally often. A scorer never sees rewards or origins.</li>
</ul>"""


def write_sift_page(folder: str | os.PathLike[str], methods: Methods) -> Path:
    """Write `report.html` into the folder, from the files that are in it."""
    folder = Path(folder)
    summary, content = read_page(folder)
    try:
        page = render_sift_page(summary, content, methods)
    except DAMAGE as error:
        raise Unusable(f"{folder / PAGE}: it and {SUMMARY} are not what score writes") from error
    return write_page(folder / REPORT, page)


def render_sift_page(summary: Mapping[str, Any], content: Mapping[str, Any], methods: Methods) -> str:
    seen = summary["diagnosis"]
    scored = Path(str((summary.get("dataset") or summary["supplementary"])["path"])).name
    title = f"demosift · {printable(scored)}"
    warnings = [*(one["text"] for one in seen["warnings"]), *summary["warnings"]]
    summary_text = json.dumps(summary, indent=2, sort_keys=True, ensure_ascii=False)
    body = [
        verdict(summary, seen, methods),
        problem_box("Before you believe it", list(map(str, warnings))),
        f"<section><h2>What the pile is made of</h2>{sample_mix(seen)}{known_bad(seen)}</section>",
        task_section(summary.get("tasks")),  # where there are several
        episode_section(summary, content),
        weight_section(summary, content),
        map_section(content["map"], seen),
        quality_section(seen, content["truth"]),
        details("How the numbers are made", METHOD_NOTES),
        details("Everything in summary.json", f"<pre>{escape(summary_text)}</pre>"),
        footer(summary),
        f'<script type="application/json" id="sift">{embed(for_script(summary, content))}</script>',
    ]
    script = asset("page.js") + asset("strips.js") + asset("sift_page.js")
    return document(title, body, asset("page.css") + asset("sift_page.css"), script, pictures="films" in content)


def kept_section(scores: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]) -> tuple[str, list[str]]:
    """What the page of runs shows of the scores they trained on, and a line for each that is damaged.

    `scores`: the summary and the page's content, by the folder, relative to the page. The first is shown in full, the
    others on demand.
    """
    parts, problems = [], []
    for folder, (summary, content) in scores.items():
        try:
            shown = essentials(summary, content, len(parts))
            headline = printable(str(summary["diagnosis"]["headline"]))
        except DAMAGE:
            problems.append(f"{folder}: {SUMMARY} and {PAGE} are not what score writes")
            continue
        link = escape(f"./{quote(folder)}/{REPORT}")
        shown += f'<p class="note"><a href="{link}">Everything about these scores: {escape(printable(folder))}</a></p>'
        headed = f"<h3>{escape(headline)}</h3>{shown}"
        parts.append(details(f"{folder}: {headline}", shown) if parts else headed)
    if not parts:
        return "", problems
    several = f"The first of {len(parts)} draws of the data, each with its own scores." if len(parts) > 1 else ""
    said = f'<p class="note">{several}</p>' if several else ""
    return f'<section class="kept"><h2>What sift kept</h2>{said}{"".join(parts)}</section>', problems


def essentials(summary: Mapping[str, Any], content: Mapping[str, Any], place: int) -> str:
    """`place` tells the charts of one page apart."""
    seen = summary["diagnosis"]
    chart = histogram_chart("Share of the rows of each set", content["histogram"], KEPT_CHARTS + place)
    return (
        f'<p class="said">{escape(printable(str(seen["reason"])))}</p>{sample_mix(seen)}{known_bad(seen)}'
        f'<p class="said">{escape(kept_in_words(summary))}</p>{render(chart)}'
        f"<div {scale_attributes(content)}>{best_and_worst(content)}</div>"
    )


def for_script(summary: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and strips for the script. Names stay in the document, where they are escaped."""
    place = content["map"]
    scored = summary.get("dataset") or summary["supplementary"]
    digest = str(scored["digest"])
    return {
        "dataset": digest if re.fullmatch("[0-9a-f]{64}", digest) else "",
        "signals": {  # pages of before have none
            int(one["episode"]): [level_text(text) for text in one.get("signals", ())]
            for one in content["episodes"]["supplementary"]["shown"]
        },
        "named": {
            choice: [int(one) for one in content.get("named", {}).get(choice, ())] for choice in ("keep", "drop")
        },
        "scale": scale_of(content),
        "map": {
            "expert": int(place["expert"]),
            "level": level_text(place["level"]),
            **{name: [int(value) for value in place[name]] for name in ("x", "y", "episode", "step")},
        },
    }


def verdict(summary: Mapping[str, Any], seen: Mapping[str, Any], methods: Methods) -> str:
    like, effective = seen["expert_like"], seen["effective_sample_size"]
    method = "unclear" if seen["advised"] is None else about(seen["advised"], methods).name
    auc, most = float(seen["held_out"]["auc"]), 1 - float(like["share"]) / 2
    nobody = by_agreement(summary)
    items = [
        (str(int(effective["expert"]["episodes"])), "stand in for an expert") if nobody else (method, "advised"),
        (f"{float(like['share']):.0%}", "of the others is like them" if nobody else "of the pile is expert-like"),
        (
            f"{int(effective['expert']['rows']):,} → {float(effective['union']['rows']):,.0f}",
            f"effective rows, {'theirs' if nobody else 'expert'} → union",
        ),
        (f"{auc:.2f}", f"held-out AUC; at most {most:.2f} here" if auc <= most else "held-out AUC"),
        (f"{float(seen['states']['covered']):.0%}", f"of {'their' if nobody else 'expert'} states covered"),
    ]
    return header(
        f"demosift · {what_was_scored(summary)}", printable(seen["headline"]), printable(seen["reason"]), items
    )


def what_was_scored(summary: Mapping[str, Any]) -> str:
    whole = summary.get("dataset")
    if whole is None:
        return " against ".join(printable(str(summary[name]["path"])) for name in ("supplementary", "expert"))
    expert, others = (int(summary[name]["episodes"]) for name in ("expert", "supplementary"))
    place = printable(str(whole["path"]))
    if by_agreement(summary):
        return f"{place}: {expert + others:,} episodes against each other"
    return f"{place}: {numbers.count_of(expert, 'expert episode')} against {others:,} others"


def sample_mix(seen: Mapping[str, Any]) -> str:
    """The paper's table of samples, with the shares of this supplementary set."""
    action = "action" if seen.get("compared", "actions") == "actions" else "next state"  # older files compare actions
    cells = (
        ("helps", "o-clean", float(seen["samples"]["helpful"]), f"expert state, expert {action}"),
        ("harms", "o-noisy", float(seen["samples"]["harmful"]), f"expert state, another {action}"),
        ("in between", "c0", float(seen["samples"]["elsewhere"]), "another state"),
    )
    bar = "".join(f'<i class="{style}" style="width:{percent(share)}"></i>' for _, style, share, _ in cells)
    keys = "".join(
        f'<li class="{style}"><i class="dot"></i><b>{share:.0%}</b><span>{what}<small>{verdict}</small></span></li>'
        for verdict, style, share, what in cells
    )
    covered = float(seen["states"]["covered"])
    return (
        '<p class="said">'
        f"A sample on an expert state helps cloning if its {action} is the expert's too, and harms it if not; one on "
        "another state does little of either (the paper's Table 1). By nearest neighbours:</p>"
        f'<div class="mix">{bar}</div><ul class="mix-keys">{keys}</ul><p class="note">'
        f"Coverage: {covered:.0%} of the expert's states have a state of the pile nearby.</p>"
    )


def task_section(tasks: Sequence[Mapping[str, Any]] | None) -> str:
    """What was found task by task: an expert's episodes are compared with the rest of their own task alone."""
    if not tasks:
        return ""
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in TASK_COLUMNS.items())
    rows = []
    for one in tasks:
        counted = [f"{int(one[key]):,}" for key in ("expert_episodes", "supplementary_episodes")]
        counted += [f"{float(one[key]):.0%}" if key in one else numbers.MISSING for key in ("kept", "expert_like")]
        cells = [cell(name, text) for name, text in zip(list(TASK_COLUMNS)[1:5], counted, strict=True)]
        said = str(one.get("headline", "Not scored: every row weighs 1."))
        words = [cell("Task", task_name(one), "name"), *cells]
        words += [cell("By", str(one["by"]), ""), cell("Advice", printable(said), "")]
        rows.append(f"<tr>{''.join(words)}</tr>")
    note = "Weights of different tasks do not compare: episodes are ranked by where they stand within their own task."
    table = scrolled_table("tasks", head, rows)
    return f'<section><h2>Task by task</h2><p class="said">{note}</p>{table}</section>'


def known_bad(seen: Mapping[str, Any]) -> str:
    bad = seen.get("bad")  # diagnoses of before have none
    return "" if bad is None else f'<p class="said">{escape(printable(str(bad["text"])))}</p>'


def weight_section(summary: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    truth = content["truth"]
    chart = render(histogram_chart("Share of the rows of each set", content["histogram"], 0))
    known = ""
    if truth is not None:
        known = (
            f"<h3>By true origin</h3>{shares(truth['histogram'])}"
            f"{render(histogram_chart('Share of the rows of each origin', truth['histogram'], 1))}"
        )
    said = escape(kept_in_words(summary))
    return f'<section class="weights"><h2>Weights</h2><p class="said">{said}</p>{chart}{known}</section>'


def kept_in_words(summary: Mapping[str, Any]) -> str:
    return (
        f"{float(summary['kept']):.0%} of the pile's rows weigh {float(summary['threshold']):g} or more. A row that "
        "weighs 1 is as common in the expert's data as in the union."
    )


def histogram_chart(title: str, histogram: Mapping[str, Any], place: int) -> Chart:
    """Heights are square roots: weights crowd at both ends, and those between must be visible too."""
    chart = weight_chart("", histogram, place)
    ticks = [(share**0.5, f"{share}%") for share in (0, 1, 5, 20, 50, 100) if share <= chart.y.high]
    return replace(
        chart,
        title=f"{title} by weight, heights as square roots",
        y=Axis(0.0, chart.y.high**0.5, ticks),
        lines=[replace(line, y=np.sqrt(line.y)) for line in chart.lines],
    )


def map_section(place: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    near, covered = float(seen["states"]["near"]), float(seen["states"]["covered"])
    said = (
        f"States of both sets on the two directions in which they vary most (PCA, {float(place['variance']):.0%} of "
        "the variance). Rings are the expert's; dots are the pile's, coloured by weight."
    )
    note = (
        f"A sample of {len(place['x']):,} states. {near:.0%} of the pile's states lie near an expert state; "
        f"{covered:.0%} of the expert's have one of the pile nearby."
    )
    return (
        f'<section><h2>Map of states</h2><p class="said">{said}</p><div class="legend" id="layers">'
        '<button type="button" class="key" data-layer="1" aria-pressed="true"><i class="dot o-clean"></i>pile</button>'
        '<button type="button" class="key" data-layer="0" aria-pressed="true"><i class="ring"></i>expert</button>'
        '<span class="ramp"><i></i><small id="low"></small><small id="middle"></small><small id="high"></small></span>'
        '</div><div class="plot map"><canvas id="map" aria-label="map of states"></canvas></div>'
        f'<p class="note">{note}</p></section>'
    )


def quality_section(seen: Mapping[str, Any], truth: Mapping[str, Any] | None) -> str:
    held_out = seen["held_out"]
    auc, error = float(held_out["auc"]), float(held_out["calibration_error"])
    share = float(seen["expert_like"]["share"])
    rocs = [roc_line(0, "expert set against pile, held out", "o-expert", held_out["roc"], auc)]
    calibrations = [calibration_line(0, "expert set against union, held out", "o-expert", held_out["calibration"])]
    said = (
        f"A held-out expert row outweighs a row of the pile with probability {auc:.2f}. That is the AUC; as "
        f"{share:.0%} of the pile is expert-like, it cannot be much above {1 - share / 2:.2f}. Stated and found "
        f"probabilities differ by {error:.3f} on average."
    )
    if truth is not None and truth["auc"] is not None:
        good, other = (" or ".join(printable(str(name)) for name in truth[key]) for key in ("good", "other"))
        right = float(truth["auc"])
        rocs.append(roc_line(1, f"truth: {good} against {other}", "o-clean", truth["roc"], right))
        calibrations.append(calibration_line(1, f"truth: {good}", "o-clean", truth["calibration"]))
        said += f" By the origins in the file, a {good} row outweighs a {other} one with probability {right:.3f}."
    charts = (
        Chart("ROC: share of the better rows above a threshold", "share of the others above it", UNIT, UNIT, rocs),
        Chart(
            "Calibration: found share, by stated chance",
            "stated chance to be the expert's",
            UNIT,
            UNIT,
            [*calibrations, IDEAL],
        ),
    )
    return (
        f'<section><h2>Can the discriminator tell?</h2><p class="said">{escape(said)}</p>'
        f'<div class="pair">{"".join(map(render, charts))}</div></section>'
    )


def roc_line(number: int, name: str, style: str, curve: Sequence[Sequence[float]], auc: float) -> Line:
    x, y = np.asarray(curve, np.float64).reshape(-1, 2).T
    titles, values = [f"{one:.0%} of the others" for one in x.tolist()], [f"{one:.0%}" for one in y.tolist()]
    return Line(f"roc {number}", name, f"{style} d0", x, y, titles, values, note=f"AUC {numbers.number(auc, 3)}")


def calibration_line(number: int, name: str, style: str, bins: Sequence[Mapping[str, float]]) -> Line:
    keys = ("predicted", "found", "rows")
    x, y, rows = np.array([[float(one[key]) for key in keys] for one in bins]).reshape(-1, 3).T
    titles = [f"stated {one:.2f}" for one in x.tolist()]
    values = [f"found {one:.2f}  ({n:,.0f} rows)" for one, n in zip(y.tolist(), rows.tolist(), strict=True)]
    return Line(f"calibration {number}", name, f"{style} d0", x, y, titles, values)


def footer(summary: Mapping[str, Any]) -> str:
    versions = summary.get("versions")
    version = versions.get("demosift") if isinstance(versions, dict) else None
    scorer = printable(str(summary["scorer"]["name"]))
    made = f"Scored by {scorer}, {int(summary['members'])} members, {int(summary['folds'])} folds"
    text = f"{made}, demosift {printable(str(version))}. The same files give the same page, byte for byte."
    return f"<footer>{escape(text)}</footer>"
