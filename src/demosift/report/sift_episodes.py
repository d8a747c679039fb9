"""The part of the page of scores that shows episodes: the best, the worst and the hardest to tell, and the ranking."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from demosift.errors import printable
from demosift.report import numbers
from demosift.results.scores import EARLY

HIGHLIGHTED = 5  # best and worst episodes
LONGEST = 60  # letters of a task's name

DECIDE = """<div id="decide" hidden>
<p class="said">Decide for yourself: click on an episode or press ↓; then <kbd>K</kbd> keeps it, <kbd>D</kbd> drops it,
<kbd>U</kbd> takes that back, and ↑ and ↓ move on. The commands for your decisions are below.</p>
<p><button type="button" id="download">Download decisions</button> <span id="decided" class="faint"></span></p></div>"""


class Measure(NamedTuple):
    """What else is known of an episode than its weights: a column of the ranking, where `score` can tell it."""

    heading: str
    show: Callable[[float], str]
    note: str


def share(value: float) -> str:
    return f"{value:.0%}"


def two_digits(value: float) -> str:
    return numbers.number(value, 2)


MEASURES = {
    "second_look": Measure(
        "Second look", numbers.rounded, "the weight by the expert's episodes and the best of the pile together"
    ),
    "finish": Measure("Finish", share, "the share of the usual way that an episode went"),
    "agreement_rank": Measure("Agreement", lambda value: f"{value:.0f}", "the rank by agreement with the others"),
    "predictability": Measure(
        "Predictable", two_digits, "minus the error of its actions as predicted by other episodes, so 0 is best"
    ),
    "information": Measure("Information", two_digits, "mutual information of state and action, which does not count"),
    "idle": Measure("Idle", share, "the share of steps at which the state stands still"),
    "roughness": Measure("Rough", numbers.rounded, "how much the action's change changes from step to step"),
}


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
    own = ""
    if chosen["reference"]:
        origins = episodes["expert"]["origins"]
        own = card("The expert's own, for comparison", chosen["reference"], origins, "reference", of_expert, told=False)
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
            f'<img class="film" data-episode="{number}" alt="film of episode {number}, first step to last" '
            f'src="data:image/jpeg;base64,{text}">'
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
    listed = f"All {numbers.count_of(total, 'episode')}."
    if len(shown) < total:
        listed = f"The best, the worst, and evenly spaced ones between: {len(shown):,} of {total:,} episodes. "
        listed += "episodes.parquet has all."
    known = [name for name in MEASURES if any(name in one for one in shown)]
    texts = [key for key in ("origin", "task") if any(key in one for one in shown)]
    heads = [("rank", "Rank"), ("episode", "Episode"), ("rows", "Steps"), ("kept", "Kept"), ("typical", "Weight")]
    head = "".join(column_head(key, name) for key, name in heads)
    head += "".join(column_head(name, MEASURES[name].heading, " more") for name in known)
    head += "".join(f'<th scope="col">{"Truth" if key == "origin" else "Task"}</th>' for key in texts)
    rows = "".join(episode_row(one, names, known, texts, place, len(shown)) for place, one in enumerate(shown))
    signal_names = escape(", ".join(printable(str(name)) for name in content.get("signal_names", ())))
    find = " or ".join(["Find an episode", *texts])
    return (
        f'<section id="episodes" {scale_attributes(content)}><h2>Which episodes</h2><p class="said">'
        "Each strip is an episode from its first step "
        f'to its last: <b class="o-clean">green</b> weighs {threshold:g} or more and is kept, '
        f"<b class='o-noisy'>purple</b> less. Point at a strip to read a step's weight.{look_first(summary)}</p>"
        f"{best_and_worst(content)}{DECIDE}"
        f'<figure id="signals" data-names="{signal_names}" hidden><figcaption></figcaption><canvas></canvas></figure>'
        f'<div class="tools"><input type="search" id="find" placeholder="{find}" '
        f'aria-label="{find}"><span id="counted" class="faint"></span></div>'
        f'<div class="ranking{" dense" if len(known) > 2 else ""}"><table><thead><tr>{head}'
        '<th scope="col" class="wide">Steps, first to last</th></tr>'
        f'</thead><tbody>{rows}</tbody></table></div><p class="note">{listed} {ranking_note(threshold, known, texts)}'
        f"</p>{commands(summary)}</section>"
    )


def column_head(key: str, name: str, kind: str = "") -> str:
    return f'<th scope="col" class="n{kind}" data-sort="{key}"><button type="button">{name}</button></th>'


def look_first(summary: Mapping[str, Any]) -> str:
    """What to look at where nobody named an expert."""
    if not by_agreement(summary):
        return ""
    return (
        " Look at the best first: if these are not good, nothing here is. Then sort by what sets episodes apart: "
        "steps, idle, rough."
    )


def by_agreement(summary: Mapping[str, Any]) -> bool:
    return summary.get("expert_by") == "agreement"


def ranking_note(threshold: float, known: Sequence[str], texts: Sequence[str]) -> str:
    """What the columns are, and by which of them episodes are ranked."""
    ranked = "Episodes are ranked by weight"
    if "second_look" in known:
        ranked += ", or by the second look where that is better, and by how well they agree with the others"
    elif "agreement_rank" in known:
        ranked += " and by how well they agree with the others"
    if "finish" in known:
        ranked += f"; those that went less than {EARLY:.0%} of the way come last"
    ranked += "; each within its task." if "task" in texts else "."
    told = "; ".join(f"{MEASURES[name].heading.lower()}, {MEASURES[name].note}" for name in known)
    kept = f"Kept is the share of steps that weigh {threshold:g} or more; weight is the geometric mean over steps"
    return escape(f"{ranked} {kept}{'; ' if told else ''}{told}.")


def commands(summary: Mapping[str, Any]) -> str:
    """What to do with the ranking, and with decisions about it."""
    path = shlex.quote(printable(str((summary.get("dataset") or summary["supplementary"])["path"])))
    start = f"demosift filter {path} --scores SCORES"
    lines = (
        "# the best 70% of the episodes, whole; without --episodes, single steps by their weight",
        f"{start} --episodes 0.7 --out KEPT",
        "# as you decided, and the best of the others",
        f"{start} --episodes 0.7 --decisions decisions.json --out KEPT",
        "# the next round: by what you keep and what you drop",
        f"demosift score {path} --expert-episodes decisions.json --bad-episodes decisions.json --out NEXT",
    )
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def episode_row(
    one: Mapping[str, Any], names: Sequence[str], known: Sequence[str], texts: Sequence[str], place: int, count: int
) -> str:
    """`known`: the columns of measures; `texts`: those of the origin and of the task."""
    values = {key: int(one[key]) for key in ("rank", "episode", "rows")}
    values |= {"kept": float(one["kept"]), "typical": float(one["typical"])}
    told = {name: float(one[name]) if name in one else None for name in known}
    data = " ".join(f'data-{key}="{value}"' for key, value in values.items())
    data += "".join(f' data-{key}="{"" if value is None else value}"' for key, value in told.items())
    mark = "top" if place < HIGHLIGHTED <= count // 2 else "end" if place >= count - HIGHLIGHTED >= count // 2 else ""
    more = "".join(
        f'<td class="n more">{escape(numbers.MISSING if value is None else MEASURES[name].show(value))}</td>'
        for name, value in told.items()
    )
    said = {"origin": lambda: origin_name(one, names), "task": lambda: task_name(one)}
    more += "".join(f"<td>{escape(said[key]())}</td>" for key in texts)
    return (
        f'<tr class="{mark}" {data}><td class="n">{values["rank"]}</td><td class="n">{values["episode"]}</td>'
        f'<td class="n">{values["rows"]:,}</td><td class="n">{values["kept"]:.0%}</td>'
        f'<td class="n">{escape(numbers.rounded(values["typical"]))}</td>{more}'
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
