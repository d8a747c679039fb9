"""Signals: a command that is ended says so in one line, and leaves no process and no file half written."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import random_dataset
from kill import Started, start

from demosift.cli.main import ending_signals, main
from demosift.data import write_dataset

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


def test_a_signal_waits_for_an_import_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Libraries crash, or print, when their initialisation is left in the middle."""
    (tmp_path / "interrupted_import.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.3)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt), ending_signals():
        wait_for_import()
    assert sys.modules["interrupted_import"].whole


def wait_for_import() -> None:
    importlib.import_module("interrupted_import")
    time.sleep(30)


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


HOLD = """import sys
from contextlib import ExitStack
from demosift.files import own_folder, reserved
with ExitStack() as stack:
    for place in sys.argv[1:]:
        stack.enter_context((own_folder if place.endswith("folder") else reserved)(place))
    print("held", flush=True)
    sys.stdin.read()
"""
TWICE = {
    "record": "record random --env hopper --out {}.hdf5",
    "record to a folder": "record random --env hopper --out lerobot:{}",
    "task": "task pusher/noisy-expert --out {}",
    "filter": "filter x.hdf5 --scores x --out {}.hdf5",
    "export": "export expert --env hopper --out {}.onnx",
    "bench": "bench scale --out {}.json",
    "train": "train bc --expert data.hdf5 --out {}-folder",
    "collect": "collect hopper --out {}-folder",
    "reproduce": "reproduce noisy-expert --out {}-folder",
    "demo": "demo --out {}-folder",
    "report": "report {}-folder",
}


def test_the_second_command_to_one_place_is_refused_before_it_works(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """Whatever it would write, and whether or not the first has begun to write."""
    monkeypatch.chdir(tmp_path_factory.mktemp("data"))
    write_dataset(random_dataset(0, 12), "data.hdf5")
    commands = {verb: text.format(tmp_path / str(index)) for index, (verb, text) in enumerate(TWICE.items())}
    places = {verb: command.split()[-1].removeprefix("lerobot:") for verb, command in commands.items()}
    Path(places["report"]).mkdir()
    held = [f"{place}/report.html" if verb == "report" else place for verb, place in places.items()]
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, *held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        for verb, command in commands.items():
            assert main(command.split()) == 2, verb
            said = capsys.readouterr().err
            assert said.count("\n") == 1, said
            assert "another process is writing there" in said
    assert [*tmp_path.rglob("*")] == [Path(places["report"])], "nothing is left of either"


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
