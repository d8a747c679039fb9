"""Imports point one way: read -> normalise -> weigh -> train -> evaluate -> report. And only training needs JAX."""

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import demosift
from demosift.registry import REGISTRIES

ROOT = Path(demosift.__file__).parent

# Six levels. A room may import itself and every room before it: on the levels above, and to its left on its own.
ORDER: list[list[str]] = [
    ["errors", "ranges", "types", "files", "processes", "cluster", "progress", "registry"],
    ["data", "policy"],
    ["simulation", "results", "vision"],
    ["learning", "algorithms", "tasks"],
    ["report", "sift", "sac", "theory", "experiments"],
    ["bench", "cli"],
]
PLACE = {room: place for place, room in enumerate(room for level in ORDER for room in level)}
NEW_ROOM = "a new room: give it its place in ORDER"
WITHOUT_JAX = {
    "errors",
    "ranges",
    "types",
    "files",
    "processes",
    "cluster",
    "progress",
    "registry",
    "data",
    "policy",
    "simulation",
    "results",
    "vision",
    "tasks",
    "report",
    "theory",
}

SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path.read_text() for name, path in SOURCES.items() if name[:2] != "__"}


def room(module: str) -> str:
    return module.split(".")[0]


def imports(source: str) -> set[str]:
    """Every module named by an import: inside a function it counts too, for type checkers only it does not."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "demosift")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found - {"demosift"}


def backwards(module: str, source: str) -> list[str]:
    """The rooms this module imports though they come after its own."""
    rooms = {room(name.removeprefix("demosift.")) for name in imports(source) if name.startswith("demosift.")}
    assert rooms <= PLACE.keys(), NEW_ROOM
    return sorted(other for other in rooms if PLACE[other] > PLACE[room(module)])


def test_imports_point_one_way():
    assert {room(module) for module in MODULES} <= PLACE.keys(), NEW_ROOM
    assert {module: wrong for module, source in MODULES.items() if (wrong := backwards(module, source))} == {}


def test_reading_simulating_and_reporting_never_name_jax():
    light = {module: imports(source) for module, source in MODULES.items() if room(module) in WITHOUT_JAX}
    assert [module for module, names in light.items() if {"jax", "optax", "flax"} & set(map(room, names))] == []


def test_reading_simulating_and_reporting_never_load_jax():
    """Nor does anything they import."""
    modules = [f"demosift.{module}" for module in MODULES if room(module) in WITHOUT_JAX]
    code = f"import sys, {', '.join(modules)}; sys.exit('jax was loaded' if 'jax' in sys.modules else 0)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    "line",
    [
        "import demosift.learning",
        "from demosift import learning",
        "from demosift.learning.fit import fit",
        "def f():\n    from demosift.learning.fit import fit",
    ],
)
def test_an_import_backwards_shows(line: str):
    assert backwards("data.formats.hdf5", line) == ["learning"]
    assert backwards("cli.verbs", line) == []


# Documents name modules that exist.

REPOSITORY = Path(__file__).parent.parent
# Not the changelog, which also says where things were.
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md", "docs/**/*.md"]


def missing(text: str) -> list[str]:
    """The files and names of the package that a document mentions and that are not there."""
    paths = re.findall(r"`([\w/]+\.py)`", text)
    homes = (REPOSITORY, REPOSITORY / "src", REPOSITORY / "src/demosift")
    lost = [path for path in paths if not any((home / path).is_file() for home in homes)]
    groups = {registry.group for registry in REGISTRIES}  # names of entry points, not of modules
    for name in set(re.findall(r"\bdemosift(?!\.(?:json|fish)\b)(?:\.\w+)+", text)) - groups:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            lost.append(name)
    return lost


@pytest.mark.parametrize("pattern", DOCUMENTS)
def test_documents_name_what_exists(pattern: str):
    documents = list(REPOSITORY.glob(pattern))
    assert documents
    assert {document.name: lost for document in documents if (lost := missing(document.read_text()))} == {}


def test_a_name_that_moved_shows():
    moved = "`fused.py`, `tests/test_layers.py`, `learning/runner.py`, demosift.runs, demosift.fit, demosift.fitted"
    assert sorted(missing(moved)) == ["demosift.fitted", "demosift.runs", "fused.py"]


def test_the_readme_shows_every_room_on_its_level():
    layout = (REPOSITORY / "README.md").read_text().partition("## Layout")[2].split("```")[1]
    levels: list[list[str]] = []
    for number, name in re.findall(r"^  (\d| )  (\w+)(?:/|\.py) ", layout, re.MULTILINE):
        if number != " ":
            levels.append([])
        levels[-1].append(name)
    assert levels == ORDER
