"""`index.html` of the theory lab: one self-contained page, with each claim in words beside its picture."""

import json
from collections.abc import Mapping
from html import escape

from demosift.report.document import asset, cell, document, header
from demosift.theory.claim import Numbers

CSS_CLASSES = {"holds": "holds", "holds as amended": "amended", "refuted": "refuted"}


def render_page(answer: Numbers, pictures: Mapping[str, str]) -> str:
    """`answer` is the content of `theory.json`; `pictures` holds an SVG for each claim."""
    body = [
        summary(answer),
        overview(answer),
        *(section(claim, pictures.get(claim["name"], "")) for claim in answer["claims"]),
        f"<footer>Made by demosift {escape(str(answer['demosift']))}: demosift theory --seed {answer['seed']} "
        f"--scale {answer['scale']:g}. All numbers are in theory.json.</footer>",
    ]
    style = f"{asset('page.css')}\n{asset('page.css', 'demosift.theory')}"
    return document("demosift · theory", body, style)


def summary(answer: Numbers) -> str:
    claims = answer["claims"]
    refuted, amended = len(answer["refuted"]), sum(claim["verdict"] == "holds as amended" for claim in claims)
    sentence = f"{len(claims) - refuted} of {len(claims)} claims hold"
    if not refuted:
        sentence = f"All {len(claims)} claims hold" if len(claims) > 1 else "The claim holds"
    rest = f", {amended} of them in an amended form" if amended else ""
    instances = sum(claim["instances"] for claim in claims)
    return header(
        "demosift · the theory of offline imitation with a supplementary dataset",
        sentence + rest,
        "Here each claim of the paper is a computation that could have refuted it: exact where that is possible, "
        "and on many random instances otherwise. The slack says how much room the tightest instance left.",
        [(str(len(claims)), "claims"), (f"{instances:,}", "instances computed"), (str(answer["seed"]), "seed")],
    )


def overview(answer: Numbers) -> str:
    rows = "".join(
        f'<tr><th scope="row"><a href="#{escape(claim["name"])}">{escape(claim["title"])}</a>'
        f"<small>{escape(claim['cites'])}</small></th>{cell('Instances', number(claim['instances']))}"
        f'{cell("Smallest slack", number(claim["slack"], 3))}<td data-label="Verdict">{badge(claim)}</td></tr>'
        for claim in answer["claims"]
    )
    heads = '<th scope="col">Claim</th><th scope="col" class="n">Instances</th>'
    heads += '<th scope="col" class="n">Smallest slack</th><th scope="col">Verdict</th>'
    return f'<section><table class="results"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></section>'


def badge(claim: Numbers) -> str:
    return f'<span class="verdict {CSS_CLASSES[claim["verdict"]]}">{claim["verdict"]}</span>'


def section(claim: Numbers, picture: str) -> str:
    name, title, cites, statement, measure, amendment = (
        escape(claim[key]) for key in ("name", "title", "cites", "statement", "measure", "amendment")
    )
    amended = f'<p class="amendment"><b>Amended.</b> {amendment}</p>' if amendment else ""
    figure = f'<figure role="img" aria-label="{title}">{picture}</figure>' if picture else ""
    refuted = ""
    if not claim["holds"]:
        example = escape(json.dumps(claim["counterexample"], indent=2, sort_keys=True))
        refuted = f'<div class="problems"><h2>Counterexample</h2><pre>{example}</pre></div>'
    numbers = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{number(value)}</dd></div>"
        for key, value in claim["numbers"].items()
        if isinstance(value, int | float)
    )
    numbers = f'<dl class="measured">{numbers}</dl>' if numbers else ""
    return (
        f'<section class="claim" id="{name}"><div class="words"><h2>{title}</h2>'
        f'<p class="cites">{badge(claim)} {cites}</p><p>{statement}</p>{amended}'
        f'<p class="note">{number(claim["instances"])} instances. Smallest slack {number(claim["slack"])}: '
        f"{measure}.</p>{numbers}{refuted}</div>{figure}</section>"
    )


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"
