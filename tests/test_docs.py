"""The documentation: what it shows runs, what it names exists, and the site is whole and needs no network."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import demosift as ds
from demosift.cli.main import main, make_parser, with_algorithm

REPOSITORY = Path(__file__).parent.parent
README, API = REPOSITORY / "README.md", REPOSITORY / "docs" / "api.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and page.stem != "README"]
QUICK = {"deploy-with-onnx"}


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY).with_suffix(""))


def blocks_of(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of each code block, in order; commands have no language."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands_in(text: str) -> Iterator[list[str]]:
    """The arguments of each `demosift` command."""
    for line in re.findall(r"^demosift (.*)$", text, re.MULTILINE):
        yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_pages_name_exists(page: Path):
    for language, text in blocks_of(page):
        if language == "python":
            compile(text, str(page), "exec")
            for line in re.findall(r"^(?:from demosift\S* import .*|import demosift.*)$", text, re.MULTILINE):
                exec(line, {})
    for name in re.findall(r"\bds\.(\w+)", page.read_text()):
        assert name in dir(ds), name
    for module in re.findall(r"`demosift\.([a-z_]+\.[a-z_.]+)`", page.read_text()):
        assert (REPOSITORY / "src/demosift" / module.replace(".", "/")).with_suffix(".py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_understood(page: Path):
    for language, text in blocks_of(page):
        for arguments in commands_in(text) if language == "" else ():
            given = with_algorithm(arguments)
            make_parser(given).parse_args(given)  # what it does not know ends the test


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ds.REGISTRY, "_known", dict(ds.REGISTRY._known))  # a tutorial registers a method
    return tmp_path


# What a reader has before the README's first example: arrays of a good policy, and of others.
ARRAYS = """
import numpy as np
import demosift as ds
kept = ("observations", "actions")
good_observations, good_actions = (ds.read_dataset("expert.hdf5").to_arrays()[key] for key in kept)
observations, actions = (ds.read_dataset("pile.hdf5").to_arrays()[key] for key in kept)
good_ends, ends = (ds.read_dataset(name).episode_ends for name in ("expert.hdf5", "pile.hdf5"))
"""


def test_readme_examples_run(here: Path):
    """Every Python block of the README, with fewer iterations and the file names it uses."""
    blocks = [text for language, text in blocks_of(README) if language == "python"]
    assert len([line for line in blocks[0].splitlines() if line]) == 10, "from arrays to acting in ten lines"
    for name, seed in (("expert", "0"), ("pile", "1")):
        assert main(["record", "random", "--env", "hopper", "--seed", seed, "--out", f"{name}.hdf5"]) == 0
    script = here / "example.py"  # without a __main__ guard, as a user writes it
    script.write_text(shortened("\n".join([ARRAYS, *blocks])))
    done = subprocess.run([sys.executable, script.name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SIZES = {
    r"ds\.Sift\(\)": 'ds.Sift(scorer="neighbours", hidden=(8, 8), batch_size=16)',
    r"iterations=[\d_]+": "iterations=20",
    r"--iterations \d+": "--iterations 20",
    r"--evaluate-every \d+": "--evaluate-every 20",
    r"(?<=hopper/noisy-expert )|(?<=halfcheetah/noisy-expert )": "--pool 10 ",
    r"(?<=demosift score )|(?<=demosift train )(?=--)": "--scorer neighbours ",
    r"(?<=demosift theory )": "--scale 0.1 ",
    r"(?<=demosift reproduce noisy-expert )": "--methods bc nbcu ",
}


def shortened(text: str) -> str:
    for pattern, small in SIZES.items():
        text = re.sub(pattern, small, text)
    return text


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] * (page.stem not in QUICK), id=page.stem) for page in TUTORIALS],
)
@pytest.mark.usefixtures("here")
def test_tutorials_run(page: Path):
    """Commands and Python blocks in the order of the page, in an empty folder, with smaller numbers."""
    names: dict[str, Any] = {}
    ran = 0
    for language, text in blocks_of(page):
        if language == "python":
            exec(compile(shortened(text), str(page), "exec"), names)
            ran += 1
        for arguments in commands_in(shortened(text)) if language == "" else ():
            assert main(arguments) == 0, arguments
            ran += 1
    assert ran


def rows_of_the_page() -> dict[str, str]:
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", API.read_text(), re.MULTILINE))


def test_the_api_page_lists_what_there_is():
    names = {name for name in rows_of_the_page() if "." not in name}
    assert names == set(dir(ds)), "docs/api.md has a row for each public name"


def test_types_are_told_and_the_version_costs_nothing_until_it_is_asked_for():
    assert resources.files("demosift").joinpath("py.typed").is_file()
    code = "import sys, demosift; before = 'importlib.metadata' in sys.modules; demosift.__version__; sys.exit(before)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", sorted(rows_of_the_page().keys() - {"REGISTRY", "__version__"}))
def test_the_api_page_says_what_docstrings_say(name: str):
    found: Any = ds
    for part in name.split("."):
        found = getattr(found, part)
    first, *_ = (inspect.getdoc(found) or "").split("\n\n")
    assert rows_of_the_page()[name] == first.replace("\n", " ")
    if isinstance(found, type) and name not in {each.__name__ for each in ds.REGISTRY.values()}:
        for own, value in vars(found).items():
            value = getattr(value, "fget", getattr(value, "__func__", value))
            assert own.startswith("_") or not inspect.isfunction(value) or value.__doc__, f"{name}.{own} says nothing"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as by `make docs`: a link, an anchor or a page that is not there is an error."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Requests(HTMLParser):
    """The addresses that a browser asks for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "poster")]


def test_the_site_asks_nothing_of_the_network(site: Path):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text())
        assert not [address for address in requests.found if re.match(r"(https?:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\(\s*['\"]?(?:https?:)?//|@import", sheet.read_text()), sheet


def test_the_api_page_has_the_docstrings(site: Path):
    text = (site / "docs" / "api.html").read_text()
    for name in rows_of_the_page():
        home = f"data.memory.{name.split('.')[1]}" if "." in name else name
        assert f'id="demosift.{home}"' in text, name


def test_formulas_are_drawn_without_a_script(site: Path):
    text = (site / "docs" / "algorithms" / "wbcu.html").read_text()
    assert "<math" in text
    assert not re.search(r"\\frac|arithmatex", text)
