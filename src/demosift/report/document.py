"""The shell of every page: one HTML document that needs nothing else and in which no foreign script runs."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from demosift.errors import printable
from demosift.files import atomic_write


def asset(name: str, package: str = "demosift.report") -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


# Control and direction characters. Names from files may hold them, and they hide or reorder what a page says.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def document(title: str, body: Sequence[str], style: str, script: str = "", pictures: bool = False) -> str:
    """The whole page. Even if text from a file reached it unescaped, the browser would run this script alone.

    `pictures`: whether the page holds some, as data; none are ever loaded from elsewhere.
    """
    sources = {"default": "'none'", "style": "'unsafe-inline'"}
    if pictures:
        sources["img"] = "data:"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        sources["script"] = f"'sha256-{digest}'"
        script = f"\n<script>{script}</script>"
    policy = "; ".join(f"{kind}-src {source}" for kind, source in sources.items())
    policy += "; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{seen(escape(title))}</title>\n<style>{style}</style></head>\n<body><main>\n"
        + seen("\n".join(part for part in body if part))
        + f"\n</main>{script}</body></html>\n"
    )


def seen(text: str) -> str:
    """The text with what cannot be seen spelled out, as JSON does, since data of charts are among it."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_page(path: Path, page: str) -> Path:
    with atomic_write(path) as temporary:
        # JSON may hold half of a surrogate pair, which UTF-8 cannot encode.
        temporary.write_bytes(page.encode("utf-8", "backslashreplace"))
    return path


def header(kicker: str, sentence: str, lede: str, facts: Sequence[tuple[str, str]]) -> str:
    """The top of the page: a sentence, what it rests on, and a few (value, name) facts."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for value, name in facts)
    listed = f'<dl class="facts">{items}</dl>' if items else ""
    return (
        f'<header><p class="kicker">{escape(kicker)}</p><h1>{escape(sentence)}</h1>'
        f'<p class="lede">{escape(lede)}</p>{listed}</header>'
    )


def problem_box(title: str, problems: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(printable(problem))}</li>" for problem in problems)
    return f'<section class="problems"><h2>{escape(title)}</h2><ul>{items}</ul></section>' if items else ""


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(printable(summary))}</summary>{content}</details>"


def cell(heading: str, text: str, kind: str = "n") -> str:
    """A cell of a table, labelled with its column for narrow pages."""
    return f'<td class="{kind}" data-label="{escape(heading)}">{escape(text)}</td>'


def scrolled_table(kind: str, head: str, body: Iterable[str]) -> str:
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
