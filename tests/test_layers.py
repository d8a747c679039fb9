"""Imports point one way: read -> normalise -> weigh -> train -> evaluate -> report. And only training needs JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import demosift

ROOT = Path(demosift.__file__).parent

# A module may import from its own line and the lines above it. A new room is a new name here.
ORDER: list[set[str]] = [
    {"types"},
    {"data"},
    {"policy"},
    {"runs"},
    {"fused"},
    {"networks", "losses", "learner"},
    {"algorithms"},
    {"members"},
    {"train"},
    {"environments"},
    {"workers"},
    {"simulate"},
    {"shipped"},
    {"evaluation"},
    {"export"},
    {"collect"},
    {"report"},
    {"sift"},
    {"tabular"},
    {"trackers"},
    {"experiments"},
    {"bench", "bench_scores", "bench_scale", "demo", "verbs", "cli"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
NEW_ROOM = "a new room: give it its place in ORDER"
WITHOUT_JAX = {
    "types",
    "data",
    "policy",
    "runs",
    "environments",
    "workers",
    "simulate",
    "shipped",
    "evaluation",
    "export",
    "report",
    "tabular",
}

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
    assert rooms <= LEVEL.keys(), NEW_ROOM
    return sorted(other for other in rooms if LEVEL[other] > LEVEL[room(module)])


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str):
    assert room(module) in LEVEL, NEW_ROOM
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
        "import demosift.train",
        "from demosift import train",
        "from demosift.train import fit",
        "def f():\n    from demosift.train import fit",
    ],
)
def test_an_import_backwards_shows(line: str):
    assert backwards("data.hdf5", line) == ["train"]
    assert backwards("cli", line) == []


def test_evaluation_does_without_collect():
    """It finds the shipped policies by itself, so that judging a policy loads nothing of what makes experts."""
    for name in ("environments", "simulate", "shipped", "evaluation"):
        assert backwards(name, "from demosift.collect.record import record") == ["collect"]
    code = "import sys, demosift.evaluation; sys.exit('demosift.collect' in sys.modules and 'collect was loaded')"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
