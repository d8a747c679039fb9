"""`index.html` of the theory lab: one page that needs nothing else, each claim in words beside its picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from demosift.theory.claim import Claim, Finding

VERDICTS = {"holds": "holds", "holds as amended": "amended", "refuted": "refuted"}  # -> CSS class
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Result:
    claim: Claim
    finding: Finding

    @property
    def verdict(self) -> str:
        if not self.finding.holds:
            return "refuted"
        return "holds as amended" if self.claim.amendment else "holds"


def render_page(results: Sequence[Result], pictures: Mapping[str, str], answer: Mapping[str, Any]) -> str:
    """`pictures` are SVG by claim, `answer` what `theory.json` holds."""
    shared = resources.files("demosift.report").joinpath("page.css").read_text(encoding="utf-8")
    own = resources.files("demosift.theory").joinpath("page.css").read_text(encoding="utf-8")
    written = {claim["name"]: claim for claim in answer["claims"]}
    body = [
        header(results, answer),
        overview(results),
        *(section(result, pictures.get(result.claim.name, ""), written[result.claim.name]) for result in results),
        f"<footer>Made by demosift {escape(str(answer['demosift']))}: demosift theory --seed {answer['seed']} "
        f"--scale {answer['scale']:g}. All numbers are in theory.json.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(CONTENT_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>demosift · theory</title>\n<style>{shared}\n{own}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def header(results: Sequence[Result], answer: Mapping[str, Any]) -> str:
    refuted, amended = (sum(r.verdict == verdict for r in results) for verdict in ("refuted", "holds as amended"))
    sentence = f"{len(results) - refuted} of {len(results)} claims hold"
    if not refuted:
        sentence = f"All {len(results)} claims hold" if len(results) > 1 else "The claim holds"
    rest = f", {amended} of them in an amended form" if amended else ""
    instances = sum(result.finding.instances for result in results)
    items = [("claims", str(len(results))), ("instances computed", f"{instances:,}"), ("seed", str(answer["seed"]))]
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items)
    return (
        '<header><p class="kicker">demosift · the theory of offline imitation with a supplementary dataset</p>'
        f"<h1>{escape(sentence + rest)}</h1>"
        '<p class="lede">Each claim of the paper is a computation here that could have refuted it: exact where that is '
        "possible, on many random instances otherwise. The slack says how much room the tightest of them left.</p>"
        f'<dl class="facts">{facts}</dl></header>'
    )


def overview(results: Sequence[Result]) -> str:
    rows = "".join(
        f'<tr><th scope="row"><a href="#{escape(result.claim.name)}">{escape(result.claim.title)}</a>'
        f"<small>{escape(result.claim.cites)}</small></th>"
        f'<td class="n" data-label="Instances">{result.finding.instances:,}</td>'
        f'<td class="n" data-label="Smallest slack">{result.finding.slack:.3g}</td>'
        f'<td data-label="Verdict">{badge(result)}</td></tr>'
        for result in results
    )
    heads = '<th scope="col">Claim</th><th scope="col" class="n">Instances</th>'
    heads += '<th scope="col" class="n">Smallest slack</th><th scope="col">Verdict</th>'
    return f'<section><table class="results"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></section>'


def badge(result: Result) -> str:
    return f'<span class="verdict {VERDICTS[result.verdict]}">{result.verdict}</span>'


def section(result: Result, picture: str, written: Mapping[str, Any]) -> str:
    claim, finding = result.claim, result.finding
    amendment = f'<p class="amendment"><b>Amended.</b> {escape(claim.amendment)}</p>' if claim.amendment else ""
    figure = f'<figure role="img" aria-label="{escape(claim.title)}">{picture}</figure>' if picture else ""
    refuted = ""
    if not finding.holds:
        example = escape(json.dumps(written["counterexample"], indent=2, sort_keys=True))
        refuted = f'<div class="problems"><h2>Counterexample</h2><pre>{example}</pre></div>'
    numbers = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{number(value)}</dd></div>"
        for name, value in written["numbers"].items()
        if isinstance(value, int | float)
    )
    numbers = f'<dl class="measured">{numbers}</dl>' if numbers else ""
    return (
        f'<section class="claim" id="{escape(claim.name)}"><div class="words"><h2>{escape(claim.title)}</h2>'
        f'<p class="cites">{badge(result)} {escape(claim.cites)}</p><p>{escape(claim.statement)}</p>{amendment}'
        f'<p class="note">{finding.instances:,} instances. Smallest slack {number(written["slack"])}: '
        f"{escape(finding.measure)}.</p>{numbers}{refuted}</div>{figure}</section>"
    )


def number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
