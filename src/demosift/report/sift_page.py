"""`report.html` of a scores folder: the verdict, the episodes, and what it rests on.

Made from `summary.json` and `page.json` alone, which `demosift score` wrote, so the same files give the same page, byte
for byte, and a million rows cost no more than a thousand. Nothing that stands in a file reaches the page unescaped.
"""

import json
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from demosift.files import atomic_write
from demosift.report.chart import embed, percent
from demosift.report.groups import printable
from demosift.report.page import asset, details, document
from demosift.report.sift_charts import quality_section, weight_section
from demosift.report.sift_episodes import episode_section, level_text
from demosift.types import InputError

METHODS = {"bc": "BC", "nbcu": "NBCU", "wbcu": "WBCU"}

METHOD_NOTES = """<ul>
<li>A weight estimates d_E(s,a)/d_U(s,a), how much more common a row is in the expert's data than in the union. Every
row is weighed by models that were trained without it and without its episode, or the stretch of it around the row where
there are few episodes.</li>
<li>Near an expert state: no farther than 95% of expert states are from other expert states, a stretch of their own
episode left out. The expert's action: no farther from those at the five nearest expert states than 95% of expert
actions are. So about 5% of the expert's own rows would count as other states or actions.</li>
<li>Expert-like: weighs as much as at least a tenth of held-out expert rows do. The share is divided by the nine
tenths of them of which that is true.</li>
<li>Effective rows: (sum of weights)² / sum of squared weights over the union, the number of equally weighted rows that
learning from it is worth.</li>
<li>Calibration compares w/(1+w) with how often rows of that value are the expert's, expert set and union drawn equally
often. Rewards and origins are never shown to a scorer.</li>
</ul>"""


def is_scores_folder(folder: str | os.PathLike[str]) -> bool:
    return all((Path(folder) / name).is_file() for name in ("scores.parquet", "summary.json", "page.json"))


def write_sift_page(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into the folder, from the files that are in it."""
    summary, content = (read(Path(folder) / name) for name in ("summary.json", "page.json"))
    try:
        page = render_sift_page(summary, content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"{Path(folder) / 'page.json'}: it and summary.json are not what score writes") from error
    path = Path(folder) / "report.html"
    with atomic_write(path) as temporary:
        # JSON may hold half of a surrogate pair, which no encoding takes.
        temporary.write_bytes(page.encode("utf-8", "backslashreplace"))
    return path


def read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content


def render_sift_page(summary: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    seen = summary["diagnosis"]
    pile = Path(str(summary["supplementary"]["path"])).name
    title = f"demosift · {printable(pile)}"
    body = [
        header(summary, seen),
        warning_box(summary, seen),
        sample_section(seen),
        episode_section(summary, content["episodes"]),
        weight_section(summary, content),
        map_section(content["map"], seen),
        quality_section(seen, content["truth"]),
        details("How the numbers are made", METHOD_NOTES),
        details("Everything in summary.json", f"<pre>{escape(as_text(summary))}</pre>"),
        footer(summary),
        f'<script type="application/json" id="sift">{embed(for_script(content))}</script>',
    ]
    return document(title, body, asset("page.css") + asset("sift_page.css"), asset("page.js") + asset("sift_page.js"))


def as_text(summary: Mapping[str, Any]) -> str:
    return json.dumps(summary, indent=2, sort_keys=True, ensure_ascii=False)


def for_script(content: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and strips. Names stay in the document, where they are escaped already."""
    place = content["map"]
    return {
        "scale": {name: float(content["scale"][name]) for name in ("low", "middle", "high")},
        "map": {
            "expert": int(place["expert"]),
            "level": level_text(place["level"]),
            **{name: [int(value) for value in place[name]] for name in ("x", "y", "episode", "step")},
        },
    }


def header(summary: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    like, effective = seen["expert_like"], seen["effective_sample_size"]
    expert, pile = (printable(str(summary[name]["path"])) for name in ("expert", "supplementary"))
    method = METHODS.get(seen["advised"], "unclear")
    items = [
        (method, "advised"),
        (f"{float(like['share']):.0%}", "of the pile is expert-like"),
        (
            f"{int(effective['expert']['rows']):,} → {float(effective['union']['rows']):,.0f}",
            "effective rows, expert → union",
        ),
        (f"{float(seen['held_out']['auc']):.2f}", f"held-out AUC; {1 - float(like['share']) / 2:.2f} is the most here"),
        (f"{float(seen['states']['covered']):.0%}", "of expert states covered"),
    ]
    facts = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for value, what in items)
    return (
        f'<header><p class="kicker">demosift · {escape(pile)} against {escape(expert)}</p>'
        f'<h1>{escape(printable(seen["headline"]))}</h1><p class="lede">{escape(printable(seen["reason"]))}</p>'
        f'<dl class="facts">{facts}</dl></header>'
    )


def warning_box(summary: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    warnings = [*(one["text"] for one in seen["warnings"]), *summary["warnings"]]
    items = "".join(f"<li>{escape(printable(str(text)))}</li>" for text in warnings)
    return f'<section class="problems"><h2>Before you believe it</h2><ul>{items}</ul></section>' if items else ""


def sample_section(seen: Mapping[str, Any]) -> str:
    """The paper's table of samples, with this pile's shares in it."""
    cells = (
        ("helps", "o-clean", float(seen["samples"]["helpful"]), "expert state, expert action"),
        ("harms", "o-noisy", float(seen["samples"]["harmful"]), "expert state, another action"),
        ("in between", "c0", float(seen["samples"]["elsewhere"]), "another state"),
    )
    bar = "".join(f'<i class="{style}" style="width:{percent(share)}"></i>' for _, style, share, _ in cells)
    keys = "".join(
        f'<li class="{style}"><i class="dot"></i><b>{share:.0%}</b><span>{what}<small>{verdict}</small></span></li>'
        for verdict, style, share, what in cells
    )
    covered = float(seen["states"]["covered"])
    return (
        '<section><h2>What the pile is made of</h2><p class="said">'
        "A sample on a state of the expert's helps cloning if its action is the expert's too, and harms it if not; one "
        "on another state does little of either (the paper's Table 1). By nearest neighbours:</p>"
        f'<div class="mix">{bar}</div><ul class="mix-keys">{keys}</ul><p class="note">'
        f"Coverage: {covered:.0%} of the expert's states have a state of the pile nearby.</p></section>"
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


def footer(summary: Mapping[str, Any]) -> str:
    versions = summary.get("versions")
    version = versions.get("demosift") if isinstance(versions, dict) else None
    scorer = printable(str(summary["scorer"]["name"]))
    made = f"Scored by {scorer}, {int(summary['members'])} members, {int(summary['folds'])} folds"
    text = f"{made}, demosift {printable(str(version))}. The same files give the same page, byte for byte."
    return f"<footer>{escape(text)}</footer>"
