"""Imports point one way: read -> normalise -> weigh -> train -> evaluate -> report. And only training needs JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import demosift

ROOT = Path(demosift.__file__).parent

# Six levels. A room may import itself and every room before it: on the levels above, and to its left on its own.
ORDER: list[list[str]] = [
    ["types", "files", "progress"],
    ["data", "policy"],
    ["simulation", "results"],
    ["learning", "algorithms", "tasks"],
    ["report", "sift", "sac", "theory", "experiments"],
    ["bench", "cli"],
]
PLACE = {room: place for place, room in enumerate(room for level in ORDER for room in level)}
NEW_ROOM = "a new room: give it its place in ORDER"
WITHOUT_JAX = {"types", "files", "progress", "data", "policy", "simulation", "results", "tasks", "report", "theory"}

SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path.read_text() for name, path in SOURCES.items() if name != "__init__"}


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


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str):
    assert room(module) in PLACE, NEW_ROOM
    assert backwards(module, MODULES[module]) == []


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) in WITHOUT_JAX])
def test_reading_simulating_and_reporting_never_name_jax(module: str):
    assert not {name for name in imports(MODULES[module]) if room(name) in ("jax", "optax", "flax")}


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
