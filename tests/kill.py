"""Kill a command at random moments and see what is left: python tests/kill.py VERB --times 100 [--signal TERM]

Each time the verb is started on a tiny size and ended at a random moment. No process may be left behind. `train`,
`collect` and `reproduce` are then continued and must end with the bytes of an unbroken run. What the other verbs write
must be whole or absent, and writing it again must sweep what the kill left. A signal other than KILL must be answered
by at most one line, and leave nothing half written.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "DEMOSIFT_KILL_TEST"
GRACE_SECONDS = 5.0  # for workers to see that their parent is gone
CLOCKS = ("config.json", "report.html")  # files that hold how long something took, or when
CLOCK_KEYS = ("wall_seconds", "digest", "sha256")  # the same of a cell, and its seal


@dataclass
class Started:
    """A command under way. Everything it starts inherits a mark in its environment."""

    process: subprocess.Popen[str]
    mark: str

    def processes(self) -> list[int]:
        """Everything that carries the mark and has not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marked:
                found.append(int(folder.name))
        return found

    def left_behind(self) -> list[int]:
        """What still runs though the command has ended, after a moment's grace."""
        deadline = time.monotonic() + GRACE_SECONDS
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def end(self, number: int) -> str:
        """Send the signal, wait for the end, and return what was said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=120)[1]


def start(arguments: Sequence[str]) -> Started:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "demosift", *arguments],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Started(process, mark)


def run(arguments: Sequence[str]) -> None:
    """A command that must succeed."""
    command = [sys.executable, "-m", "demosift", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")


class Problem(Exception):
    """What a kill did that it must not."""


@dataclass(frozen=True)
class Verb:
    """A verb on a tiny size. `again` are the flags that continue it; None where what it writes is whole or absent."""

    command: str
    out: str = "out"
    again: str | None = None
    inputs: tuple[str, ...] = ()


RECORD = "record random --env hopper --episodes 20 --seed"
TWO = "--expert {inputs}/expert.hdf5 --supplementary {inputs}/pile.hdf5"
TINY = f"train bc {TWO} --hidden 8 8 --batch-size 16"
SCORE = f"score {TWO} --members 1 --folds 2"
VERBS = {
    "train": Verb(
        f"{TINY} --seeds 2 --iterations 600 --log-every 20 --checkpoint-every 20 --evaluate-every 200 --episodes 1",
        again="--resume",
        inputs=("data",),
    ),
    "collect": Verb(
        "collect hopper --steps 5600 --evaluate-every 160 --episodes 1 --checkpoint-seconds 0.01", again="--resume"
    ),
    "reproduce": Verb(
        "reproduce noisy-expert --envs hopper --methods bc --seeds 2 --iterations 600 --evaluate-every 200 "
        "--episodes 1 --set hidden=8,8 batch_size=16 --checkpoint-seconds 0.01",
        again="",
    ),
    "score": Verb(SCORE, inputs=("data",)),
    "filter": Verb(
        "filter {inputs}/pile.hdf5 --scores {inputs}/scores --top 0.5", "lerobot:out", inputs=("data", "scores")
    ),
    "record": Verb(f"{RECORD} 2", "out.hdf5"),
    "task": Verb("task hopper/noisy-expert"),
    "export": Verb("export {inputs}/run", "out.onnx", inputs=("data", "run")),
    "theory": Verb("theory --scale 0.002"),
}


def make_inputs(kinds: Sequence[str], folder: Path) -> None:
    """What the verb reads."""
    commands = {
        "data": [f"{RECORD} {seed} --out {{inputs}}/{name}.hdf5" for seed, name in enumerate(("expert", "pile"))],
        "scores": [f"{SCORE} --out {{inputs}}/scores"],
        "run": [f"{TINY} --iterations 20 --evaluate-every 0 --out {{inputs}}/run"],
    }
    for kind in kinds:
        for command in commands[kind]:
            run(command.format(inputs=folder).split())


def results(folder: Path) -> dict[str, object]:
    """Every file below a folder that does not hold a clock, or what of it does not."""
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name in CLOCKS or "/checkpoint/" in f"/{name}":
            continue
        found[name] = path.read_bytes()
        if "/cells/" in f"/{name}":
            content = json.loads(path.read_bytes())
            found[name] = {key: value for key, value in content.items() if key not in CLOCK_KEYS}
    return found


class Victim:
    """One verb, killed as often as one likes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.verb, self.folder = VERBS[name], folder
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        make_inputs(self.verb.inputs, self.inputs)
        began = time.monotonic()
        run(self.command(folder / "whole"))
        self.seconds = time.monotonic() - began
        self.expected = results(folder / "whole")

    def command(self, place: Path) -> list[str]:
        kind, colon, name = self.verb.out.rpartition(":")
        return [*self.verb.command.format(inputs=self.inputs).split(), "--out", f"{kind}{colon}{place / name}"]

    def once(self, number: int, moment: float) -> str:
        """Kill it at this share of its time; returns what became of it."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        started = start(self.command(place))
        with suppress(subprocess.TimeoutExpired):
            started.process.wait(moment * self.seconds)
        said = started.end(number)
        code = started.process.returncode
        if left := started.left_behind():
            raise Problem(f"processes left behind: {left}")
        if number != signal.SIGKILL and code not in (0, -number, 128 + number):
            raise Problem(f"exit {code}: {said}")
        lines = [line for line in said.splitlines() if line.startswith("demosift: ")]  # the others tell of progress
        if code != 0 and (len(lines) > 1 or "Traceback" in said):
            raise Problem(f"{len(lines)} lines: {said}")
        if self.verb.again is not None:
            ended = "finished before" if code == 0 else "continued to the same bytes"
            try:
                run([*self.command(place), *self.verb.again.split()])
            except Problem as problem:
                if "holds no checkpoint to continue from" not in str(problem):
                    raise
                # Killed before the first one: the user is told to begin again.
                shutil.rmtree(place / self.verb.out)
                run(self.command(place))
                ended = "begun again"
        else:
            found = {name: content for name, content in results(place).items() if ".partial/" not in name}
            if found not in ({}, self.expected):
                raise Problem(f"neither whole nor absent: {[*found]}")
            if number != signal.SIGKILL and (hidden := list(place.glob(".*"))):
                raise Problem(f"left half written: {hidden}")
            ended = "whole" if found else "absent"
            if not found:
                run(self.command(place))
        found = results(place)
        if differing := [name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name)]:
            raise Problem(f"differs from an unbroken run: {differing}")
        if hidden := [path.name for path in place.rglob(".*")]:
            raise Problem(f"not swept: {hidden}")
        return ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else a background job's children would ignore it
    moments = random.Random(options.seed)
    counts: dict[str, int] = {}
    problems = 0
    with tempfile.TemporaryDirectory(prefix="demosift-kill-") as folder:
        victim = Victim(options.verb, Path(folder))
        for time_number in range(options.times):
            moment = moments.uniform(0.0, 1.05)
            try:
                ended = victim.once(signal.Signals[f"SIG{options.signal}"], moment)
            except Problem as problem:
                problems += 1
                print(f"{time_number}: at {moment:.3f} of {victim.seconds:.1f} s: {problem}", flush=True)
            else:
                counts[ended] = counts.get(ended, 0) + 1
    told = ", ".join(f"{count} {ended}" for ended, count in sorted(counts.items()))
    print(f"{options.verb}, SIG{options.signal}, {options.times} times: {told or 'none well'}; {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
