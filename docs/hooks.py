"""How `mkdocs.yml` makes the site from the repository's own Markdown.

Pages link to each other, to the code and to the results by relative paths that work on a code host. The site keeps the
addresses: it is built from a copy of those parts of the tree that pages show or link to.
"""

import re
import shutil
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

SHOWN = [
    *("*.md", "LICENSE", "CITATION.cff", "docs/**/*.md", "docs/*.css", "docs/figures/*"),
    *("benchmarks/**/*.md", "benchmarks/**/*.py", "examples/**/*.md", "examples/**/*.py", "examples/**/*.toml"),
    *("results/**/*.md", "results/**/*.py", "results/**/*.png", "results/**/*.svg", "results/paper/report.html"),
    *("src/demosift/**/*.py", "tests/*.py"),
]
COPY = tempfile.TemporaryDirectory(prefix="demosift-pages-")
MATHS = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# The fields of a dataclass are in its signature; those of other classes are listed. Of a method only the settings are
# shown: the rest is the contract's, which is shown once.
TUPLES = {"Transitions", "Bounds", "Origin", "Batch"}
LISTED = "show_if_no_docstring: true"
CONTRACT = "name|about|needs_supplementary|takes_weights|takes_bad|needs_expert_actions|"
CONTRACT += "init|step|policy|weigh|work|check|check_data|prepare|prepare_in_stages"
SETTINGS = f"{LISTED}, filters: ['!^_', '!^({CONTRACT})$']"
ROW = re.compile(r"^\| `([\w.]+)` \| .*\|\n", re.MULTILINE)


def on_config(config: Any) -> Any:
    root = Path(config.config_file_path).parent
    for path in (path for pattern in SHOWN for path in root.glob(pattern)):
        target = COPY.name / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    config.docs_dir = COPY.name
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Behind each table of names on the API page, their docstrings."""
    if page.file.src_uri != "docs/api.md":
        return markdown
    parts = re.split(r"^## (.*)\n", markdown, flags=re.MULTILINE)
    made = parts[0]
    for section, text in zip(parts[1::2], parts[2::2], strict=True):
        made += f"## {section}\n{text}" + "".join(directive(name, section) for name in ROW.findall(text)) + "\n"
    return made


def directive(name: str, section: str) -> str:
    """What mkdocstrings replaces by the docstring, the signature and the members."""
    options = SETTINGS if section == "Methods" else LISTED if name in TUPLES or name == "Algorithm" else ""
    options = options or f"heading: {name}"
    return f"\n::: {home_of(name)}\n    options: {{ {options} }}\n"


def home_of(name: str) -> str:
    """`Dataset` looks the functions for data in memory up when they are used, so they are documented where they are."""
    return f"demosift.{name.replace('Dataset.', 'data.memory.')}"


def on_page_content(html: str, **_: Any) -> str:
    """TeX becomes MathML, which browsers draw by themselves: no script, no fonts, no network."""
    return MATHS.sub(lambda found: as_mathml(unescape(found[2]), found[1] == "div"), html)


def as_mathml(tex: str, display: bool) -> str:
    made = convert(tex, display="block" if display else "inline")
    made = f'<div class="formula">{made}</div>' if display else made
    # A line over a whole term is drawn by the style sheet, and `log` keeps its distance.
    made = re.sub(r"<mover><mrow>(.*?)</mrow><mo[^>]*>&#x02015;</mo></mover>", r'<mrow class="mean">\1</mrow>', made)
    made = made.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')
    # What is minimised stands below `min` in a displayed formula; the converter puts it beside.
    return re.sub(r"<msub>(<mo>m(?:in|ax)</mo>.*?)</msub>", r"<munder>\1</munder>", made) if display else made
