"""What is released: the wheel and the source archive, and the wheel where the source tree is not."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "src/demosift"
MOST_BYTES = 10e6


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the archive, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return folder


def test_the_wheel_is_the_package(dist: Path):
    (wheel,) = dist.glob("demosift-*-py3-none-any.whl")
    assert wheel.stat().st_size < MOST_BYTES
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file()}
    assert names == {name for name in sources if "__pycache__" not in name}
    assert "demosift/simulation/policies/hopper-expert.safetensors" in names


def test_the_archive_has_what_its_tests_need(dist: Path):
    (archive,) = dist.glob("demosift-*.tar.gz")
    assert archive.stat().st_size < MOST_BYTES
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "results/README.md")
    assert {*wanted, "tests/conftest.py", "tests/golden/algorithms.json", "src/demosift/__init__.py"} <= names
    assert not [name for name in names if name.startswith("results/paper/")]


@pytest.mark.long
def test_the_wheel_works_where_the_source_is_not(dist: Path, tmp_path: Path):
    """In an environment of its own, which finds the dependencies, but not the source tree, with those of the tests."""
    venv.create(tmp_path / "bare")
    bare, python = tmp_path / "bare/bin", str(tmp_path / "bare/bin/python")
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "bare")}))
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, *map(str, dist.glob("*.whl"))], check=True)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, env=alone, check=True, stdout=subprocess.PIPE, text=True).stdout

    where = run(python, "-c", "import demosift; print(demosift.__file__, demosift.__version__)")
    assert Path(where.split()[0]).is_relative_to(own)
    assert run(str(bare / "demosift"), "--version") == f"demosift {where.split()[1]}\n"
    answer = json.loads(run(str(bare / "demosift"), "demo", "--seeds", "1", "--iterations", "24", "--json"))
    assert [row["method"] for row in answer["table"]] == ["BC", "NBCU", "Two-stage WBCU", "Sift"]
    assert (tmp_path / "demo/report.html").is_file()
