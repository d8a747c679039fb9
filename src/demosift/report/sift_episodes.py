"""The part of the page of scores that shows episodes: the best, the worst and the hardest to tell, and the ranking."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from demosift.errors import printable
from demosift.report import numbers

HIGHLIGHTED = 5  # best and worst episodes
LONGEST = 60  # letters of a task's name

DECIDE = """<div id="decide" hidden>
<p class="said">Decide for yourself: click on an episode or press ↓; then <kbd>K</kbd> keeps it, <kbd>D</kbd> drops it,
<kbd>U</kbd> takes that back, and ↑ and ↓ move on. The decisions are for <code>demosift filter --decisions FILE</code>,
or for the next round: <code>demosift score DATASET --expert-episodes FILE --bad-episodes FILE</code>.</p>
<p><button type="button" id="download">Download decisions</button> <span id="decided" class="faint"></span></p></div>"""


def highlighted(content: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The episodes that the page shows first, by the kind of their card; none of a pile of one."""
    shown = content["episodes"]["supplementary"]["shown"]
    few = min(HIGHLIGHTED, len(shown) // 2)
    if not few:
        return {kind: [] for kind in ("good", "bad", "unsure", "reference")}
    doubtful = math.log(10) * scale_of(content)["middle"]
    by_doubt = sorted(shown[few:-few], key=lambda one: abs(math.log(max(float(one["typical"]), 1e-9)) - doubtful))
    return {
        "good": list(shown[:few]),
        "bad": list(shown[::-1][:few]),
        "unsure": by_doubt[:few] if len(by_doubt) >= few else [],
        "reference": list(content["episodes"]["expert"]["shown"][:3]),
    }


def best_and_worst(content: Mapping[str, Any]) -> str:
    """The pile's best and worst episodes, and some of the expert's own, as strips; nothing for a pile of one."""
    chosen, episodes = highlighted(content), content["episodes"]
    names, films = episodes["supplementary"]["origins"], content.get("films")  # pages without cameras have none
    if not chosen["good"]:
        return ""
    of_pile, of_expert = (None if films is None else films[role] for role in ("supplementary", "expert"))
    unsure = card("Hardest to tell", chosen["unsure"], names, "unsure", of_pile) if chosen["unsure"] else ""
    own = card(
        "The expert's own, for comparison",
        chosen["reference"],
        episodes["expert"]["origins"],
        "reference",
        of_expert,
        told=False,
    )
    best = card("Best of the pile", chosen["good"], names, "good", of_pile)
    worst = card("Worst of the pile", chosen["bad"], names, "bad", of_pile)
    said = "" if films is None else film_note(films)
    return f'{said}<div class="cards">{best}{worst}</div><div class="cards">{unsure}{own}</div>'


def film_note(films: Mapping[str, Any]) -> str:
    cameras = ", ".join(printable(str(name)) for name in films["cameras"])
    text = f"Above a strip: {int(films['pictures'])} pictures from the episode's first step to its last ({cameras})."
    return f'<p class="note">{escape(text)}</p>'


def film_of(films: Mapping[str, Any] | None, one: Mapping[str, Any]) -> str:
    """An episode's film strips, one of each camera. What a file calls a picture is letters and digits, or refused."""
    number = int(one["episode"])
    parts = []
    for text in () if films is None else films.get(str(number), ()):
        if not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text, re.ASCII):
            raise ValueError("not a picture")
        parts.append(
            f'<img class="film" alt="film of episode {number}, first step to last" src="data:image/jpeg;base64,{text}">'
        )
    return "".join(parts)


def scale_of(content: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(content["scale"][name]) for name in ("low", "middle", "high")}


def scale_attributes(content: Mapping[str, Any]) -> str:
    """For the element around strips: what their colours mean."""
    return " ".join(f'data-{name}="{value}"' for name, value in scale_of(content).items())


def episode_section(summary: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    supplementary = content["episodes"]["supplementary"]
    shown, total = supplementary["shown"], int(supplementary["total"])
    names = supplementary["origins"]
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
    has_task = any("task" in one for one in shown)
    head += '<th scope="col">Task</th>' if has_task else ""
    rows = "".join(
        episode_row(one, names, (has_origin, has_task), place, len(shown)) for place, one in enumerate(shown)
    )
    scored = summary.get("dataset") or summary["supplementary"]
    signal_names = escape(", ".join(printable(str(name)) for name in content.get("signal_names", ())))
    path = shlex.quote(printable(str(scored["path"])))
    return (
        f'<section id="episodes" {scale_attributes(content)}><h2>Which episodes</h2><p class="said">'
        "Each strip is an episode from its first step "
        f'to its last: <b class="o-clean">green</b> weighs {threshold:g} or more and is kept, '
        f"<b class='o-noisy'>purple</b> less. Point at a strip to read a step's weight.</p>{best_and_worst(content)}"
        f"{DECIDE}"
        f'<figure id="signals" data-names="{signal_names}" hidden><figcaption></figcaption><canvas></canvas></figure>'
        '<div class="tools"><input type="search" id="find" placeholder="Find an episode or origin" '
        'aria-label="Find an episode or origin"><span id="counted" class="faint"></span></div>'
        f'<div class="ranking"><table><thead><tr>{head}<th scope="col" class="wide">Steps, first to last</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">{note} Kept is the share of steps that weigh {threshold:g} or more; weight is the geometric '
        f"mean over steps, by which episodes are ranked{', each within its task' if has_task else ''}. To drop the "
        "rest:</p>"
        f"<pre>demosift filter {escape(path)} --scores SCORES --out KEPT</pre></section>"
    )


def episode_row(one: Mapping[str, Any], names: Sequence[str], has: tuple[bool, bool], place: int, count: int) -> str:
    """`has`: whether there are columns of the origin and of the task."""
    values = {key: int(one[key]) for key in ("rank", "episode", "rows")}
    kept, typical = float(one["kept"]), float(one["typical"])
    data = " ".join(f'data-{key}="{value}"' for key, value in (values | {"kept": kept, "typical": typical}).items())
    mark = "top" if place < HIGHLIGHTED <= count // 2 else "end" if place >= count - HIGHLIGHTED >= count // 2 else ""
    origin = f"<td>{escape(origin_name(one, names))}</td>" if has[0] else ""
    origin += f"<td>{escape(task_name(one))}</td>" if has[1] else ""
    return (
        f'<tr class="{mark}" {data}><td class="n">{values["rank"]}</td><td class="n">{values["episode"]}</td>'
        f'<td class="n">{values["rows"]:,}</td><td class="n">{kept:.0%}</td>'
        f'<td class="n">{escape(numbers.rounded(typical))}</td>{origin}'
        f'<td class="wide">{canvas(one)}</td></tr>'
    )


def origin_name(one: Mapping[str, Any], names: Sequence[str]) -> str:
    return printable(names[int(one["origin"])]) if "origin" in one else numbers.MISSING


def task_name(one: Mapping[str, Any]) -> str:
    name = printable(str(one.get("task", numbers.MISSING)))
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def canvas(one: Mapping[str, Any]) -> str:
    return (
        f'<canvas class="cells" data-cells="{level_text(one["strip"])}" data-rows="{int(one["rows"])}" '
        f'aria-label="weights of episode {int(one["episode"])}"></canvas>'
    )


def level_text(text: str) -> str:
    """A strip as `score` writes it: letters and digits only."""
    if not (text.isascii() and text.isalnum()):
        raise ValueError("not a strip of weights")
    return text


def card(
    title: str,
    episodes: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    kind: str,
    films: Mapping[str, Any] | None,
    told: bool = True,
) -> str:
    items = []
    for one in episodes:
        origin = f" · {escape(origin_name(one, names))}" if told and "origin" in one else ""
        said = f"<b>Episode {int(one['episode'])}</b><span>{float(one['kept']):.0%} kept{origin}</span>"
        items.append(f"<li><p>{said}</p>{film_of(films, one)}{canvas(one)}</li>")
    return f'<div class="card {kind}"><h3>{title}</h3><ul>{"".join(items)}</ul></div>'
