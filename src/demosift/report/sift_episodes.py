"""The scores page's episodes: the best, the worst, and the ranking, each with a strip of its steps' weights."""

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from demosift.report import numbers
from demosift.report.groups import printable

HIGHLIGHTED = 5  # best and worst episodes


def episode_section(summary: Mapping[str, Any], episodes: Mapping[str, Any]) -> str:
    pile, expert = episodes["supplementary"], episodes["expert"]
    shown, total = pile["shown"], int(pile["total"])
    names = pile["origins"]
    few = min(HIGHLIGHTED, len(shown) // 2)
    panels = ""
    if few:
        own = card("The expert's own, for comparison", expert["shown"][:3], expert["origins"], "reference", False)
        best = card("Best of the pile", shown[:few], names, "good")
        worst = card("Worst of the pile", shown[::-1][:few], names, "bad")
        panels = f'<div class="cards">{best}{worst}</div>{own}'
    threshold = float(summary["threshold"])
    note = f"All {numbers.count_of(total, 'episode')}."
    if len(shown) < total:
        note = f"The best, the worst, and evenly spaced ones between: {len(shown):,} of {total:,} episodes. "
        note += "episodes.parquet has all."
    has_origin = any("origin" in one for one in shown)
    heads = [("rank", "Rank"), ("episode", "Episode"), ("rows", "Steps"), ("kept", "Kept"), ("typical", "Weight")]
    head = "".join(
        f'<th scope="col" class="n" data-sort="{key}"><button type="button">{name}</button></th>' for key, name in heads
    )
    head += '<th scope="col">Truth</th>' if has_origin else ""
    rows = "".join(episode_row(one, names, has_origin, place, len(shown)) for place, one in enumerate(shown))
    path = shlex.quote(printable(str(summary["supplementary"]["path"])))
    return (
        '<section id="episodes"><h2>Which episodes</h2><p class="said">Each strip is an episode from its first step '
        f'to its last: <b class="o-clean">green</b> weighs {threshold:g} or more and is kept, '
        f"<b class='o-noisy'>purple</b> less. Point at a strip to read a step's weight.</p>{panels}"
        '<div class="tools"><input type="search" id="find" placeholder="Find an episode or origin" '
        'aria-label="Find an episode or origin"><span id="counted" class="faint"></span></div>'
        f'<div class="ranking"><table><thead><tr>{head}<th scope="col" class="wide">Steps, first to last</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">{note} Kept is the share of steps that weigh {threshold:g} or more; weight is the geometric '
        "mean over steps, by which episodes are ranked. To drop the rest:</p>"
        f"<pre>demosift filter {escape(path)} --scores SCORES --out KEPT</pre></section>"
    )


def episode_row(one: Mapping[str, Any], names: Sequence[str], has_origin: bool, place: int, count: int) -> str:
    values = {key: int(one[key]) for key in ("rank", "episode", "rows")}
    kept, typical = float(one["kept"]), float(one["typical"])
    data = " ".join(f'data-{key}="{value}"' for key, value in (values | {"kept": kept, "typical": typical}).items())
    mark = "top" if place < HIGHLIGHTED <= count // 2 else "end" if place >= count - HIGHLIGHTED >= count // 2 else ""
    origin = f"<td>{escape(origin_name(one, names))}</td>" if has_origin else ""
    return (
        f'<tr class="{mark}" {data}><td class="n">{values["rank"]}</td><td class="n">{values["episode"]}</td>'
        f'<td class="n">{values["rows"]:,}</td><td class="n">{kept:.0%}</td>'
        f'<td class="n">{escape(numbers.rounded(typical))}</td>{origin}'
        f'<td class="wide">{canvas(one)}</td></tr>'
    )


def origin_name(one: Mapping[str, Any], names: Sequence[str]) -> str:
    return printable(names[int(one["origin"])]) if "origin" in one else numbers.MISSING


def canvas(one: Mapping[str, Any]) -> str:
    return (
        f'<canvas class="cells" data-cells="{level_text(one["strip"])}" data-rows="{int(one["rows"])}" '
        f'aria-label="weights of episode {int(one["episode"])}"></canvas>'
    )


def level_text(text: str) -> str:
    """A strip as `score` writes it, letters and digits only."""
    if not (text.isascii() and text.isalnum()):
        raise ValueError("not a strip of weights")
    return text


def card(title: str, episodes: Sequence[Mapping[str, Any]], names: Sequence[str], kind: str, told: bool = True) -> str:
    items = []
    for one in episodes:
        origin = f" · {escape(origin_name(one, names))}" if told and "origin" in one else ""
        said = f"<b>Episode {int(one['episode'])}</b><span>{float(one['kept']):.0%} kept{origin}</span>"
        items.append(f"<li><p>{said}</p>{canvas(one)}</li>")
    return f'<div class="card {kind}"><h3>{title}</h3><ul>{"".join(items)}</ul></div>'
