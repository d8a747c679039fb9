"""A full disk: every verb that writes ends with one line, leaves the old files whole, and none half written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import tree
from kill import VERBS, make_inputs

pytestmark = pytest.mark.long
Disk = tuple[Path, list[str]]  # where to write, and how a command begins that writes there
LIMITED = """import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
os.execv(sys.argv[1], sys.argv[1:])"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(("data", "scores", "run"), folder)
    return folder


@pytest.fixture(params=[0, 65_536], ids=["full", "nearly full"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A small file system with so many bytes left; where none may be mounted, a limit on the size of a file."""
    place, size = tmp_path / "disk", 1 << 20
    place.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        limit = max(request.param // 64, 64)
        yield place, [sys.executable, "-c", LIMITED.format(limit)]
        return
    try:
        (place / "old").write_bytes(b"x" * (size - request.param - 4096))
        yield place, []
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", VERBS)
def test_a_full_disk_is_one_line(name: str, disk: Disk, inputs: Path):
    (place, limited), verb = disk, VERBS[name]
    kind, colon, out = verb.out.rpartition(":")
    command = [*verb.command.format(inputs=inputs).split(), "--out", f"{kind}{colon}{place / out}"]
    before = tree(place)
    done = subprocess.run(
        [*limited, sys.executable, "-m", "demosift", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    after = tree(place)
    assert {name: content for name, content in after.items() if name in before} == before
    assert not [path for path in place.rglob(".*") if path.name.startswith(".")], "something is left half written"
    if done.returncode == 0:  # little is written, and it fits
        assert after != before
        return
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("demosift: ")]
    assert len(lines) == 1, done.stderr
    assert "No space left" in lines[0] or "File too large" in lines[0]
    assert "Traceback" not in done.stderr
