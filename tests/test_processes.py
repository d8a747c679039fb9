"""Signals: a command that is ended says so in one line, and leaves no process and no file half written."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill import Started, start

from demosift.cli.main import main

pytestmark = pytest.mark.usefixtures("interruptible")
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
# Each runs for long, with workers.
LONG: dict[str, list[str]] = {
    "record": ["record", "expert", "--env", "hopper", "--episodes", "100000"],
    "task": ["task", "hopper/noisy-expert", "--pool", "10000"],
    "theory": ["theory", "--scale", "1000"],
}


def running(verb: str, out: Path) -> Started:
    """The command, once it has started its workers."""
    command = start([*LONG[verb], "--out", str(out)])
    while len(command.processes()) < 3:
        assert command.process.poll() is None
        time.sleep(0.05)
    return command


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("verb", ["record", "theory", pytest.param("task", marks=pytest.mark.long)])
def test_no_process_is_left_behind(verb: str, number: signal.Signals, tmp_path: Path):
    command = running(verb, tmp_path / "out.hdf5")
    said = command.end(number)
    assert command.left_behind() == []
    if number == signal.SIGKILL:
        return
    words = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}
    assert (said, command.process.returncode) == (f"demosift: {words[number]}\n", 128 + number)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_importing(number: signal.Signals, tmp_path: Path):
    for delay in (0.15, 0.4, 0.7):
        command = start(["theory", "--out", str(tmp_path / "out")])
        time.sleep(delay)
        said = command.end(number)
        assert said.count("\n") <= 1
        assert command.process.returncode in (-number, 128 + number)
        assert command.left_behind() == []


def test_the_command_answers_before_it_imports():
    """What `demosift` runs first imports hardly anything: until then Ctrl-C would print a traceback."""
    code = "import sys; before = {*sys.modules}; import demosift.__main__; print(*({*sys.modules} - before))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "argparse", "typing", "json"} & set(told.split())


@pytest.fixture
def theory(tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """A command that has only begun to write its folder."""
    out = tmp_path / "theory"
    command = running("theory", out)
    while not list(tmp_path.glob(".theory.partial/theory")):
        time.sleep(0.05)
    yield [*LONG["theory"], "--out", str(out)], out
    command.end(signal.SIGKILL)


def test_the_second_command_into_one_folder_is_refused(
    theory: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
):
    arguments, out = theory
    assert main(arguments) == 2
    assert (
        capsys.readouterr().err
        == f"demosift: {out}: another process is writing there; wait for it, or choose another\n"
    )
    assert list(out.parent.glob(".theory.partial/theory")), "the first goes on"


def test_a_worker_ends_while_it_still_starts(tmp_path: Path):
    """The parent's death is noticed from the worker's first moment."""
    code = (
        "import os, sys\nfrom demosift.processes import Worker\nfrom demosift.simulation.workers import roll_out\n"
        "print(Worker(roll_out).process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    worker, deadline = int(told.stdout), time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and os.path.exists(f"/proc/{worker}/fd/0"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
