"""Which versions of Python and of the dependencies the tests pass with: writes versions.md beside this file.

    make versions                                            python3.11, python3.12 and python3.13
    .venv/bin/python benchmarks/versions.py PYTHON ... [--tests FILE ...] [--work DIR]

Each interpreter gets an environment with the newest dependencies it can have, and the first one also an environment
with the oldest that pyproject.toml allows. Environments found in the working folder are used as they are.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
SHOWN = ["jax", "optax", "numpy", "scipy", "scikit-learn", "gymnasium", "mujoco", "minari", "h5py", "pyarrow"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python", nargs="+", help="interpreters, the oldest first")
    parser.add_argument(
        "--tests", nargs="+", default=[], help="test files to run (default: all, without the long ones)"
    )
    parser.add_argument("--work", type=Path, help="folder for the environments (default: a temporary one)")
    options = parser.parse_args()
    asked = [(options.python[0], "oldest"), *((python, "newest") for python in options.python)]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for python, which in asked:
            rows.append(measure(python, which, options.work or Path(temporary), options.tests))
            print(rows[-1], file=sys.stderr)
    ran = " ".join(options.tests) or "all tests that are not long"
    (HERE / "versions.md").write_text(page(rows, ran))
    sys.exit(any("failed" in row[-1] or "passed" not in row[-1] for row in rows))


def measure(python: str, which: str, work: Path, tests: list[str]) -> list[str]:
    """The dependencies' versions and the last line of the tests."""
    say = "import platform; print(platform.python_version())"
    version = subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout.strip()
    own = work / f"py{version.rpartition('.')[0]}-{which}" / "bin/python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", own.parent.parent], check=True)
        bounds = work / "oldest.txt"
        bounds.write_text("\n".join(lower_bounds()) + "\n")
        limits = ["--constraint", str(bounds)] if which == "oldest" else []
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *limits, "--editable", f"{REPOSITORY}[dev]"], check=True)
    listed = subprocess.run([own, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True).stdout
    installed = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    command = [own, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
    (work / f"{own.parent.parent.name}.log").write_text(done.stdout + done.stderr)
    outcome = re.sub(r",? ?\d+ (deselected|warnings?)| in [\d.]+s.*|=", "", said[0]).strip()
    return [version, which, *(installed.get(name, "-") for name in SHOWN), outcome]


def lower_bounds() -> list[str]:
    """The oldest version of each dependency that pyproject.toml allows."""
    asked = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.sub(r"\[.*?\]", "", each).replace(">=", "==") for each in asked]


def page(rows: list[list[str]], ran: str) -> str:
    head = ["Python", "dependencies", *SHOWN, "tests"]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    table = "\n".join(lines)
    return f"""# Versions

The tests with the oldest dependencies that pyproject.toml allows and with the newest that each Python gets
({platform.system()} {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}). Made by `make versions`, or with some of the
tests by `benchmarks/versions.py`; run here: {ran}.

{table}
"""


if __name__ == "__main__":
    main()
