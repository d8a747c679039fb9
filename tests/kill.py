"""Kill commands at random moments and see what is left: python tests/kill.py VERB ... --times 100 [--signal TERM]

Each verb is started on a tiny size and ended at a random moment: one half at any time, imports included, the other
half once it has begun to write. No process may be left behind. The next command continues what is there and is killed
in its turn, up to five times; then it is let go to its end. `train`, `collect` and `reproduce` must end with the bytes
of an unbroken run. What the other verbs write must be whole or absent at any time, and the next command must sweep what
the kill left. A signal other than KILL must be answered by at most one line, and leave nothing half written. One that
comes while Python itself starts, before any code of demosift, is not counted but tried again.

With `--keep DIR` the unbroken runs, the compiled programs and the counts stay in DIR, and another call adds to them.
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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quick import compiling

MARK = "DEMOSIFT_KILL_TEST"
GRACE_SECONDS = 30.0  # for workers to see that their parent is gone
PATIENCE_SECONDS = 300.0  # for a command that has been sent a signal to do something at all
MOST_KILLS = 5  # of one run
CLOCKS = ("config.json", "report.html")  # files that hold how long something took, or when
CLOCK_KEYS = ("wall_seconds", "digest", "sha256")  # the same of a cell, and its seal


class Problem(Exception):
    """What a kill did that it must not."""


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
        return self.said()

    def said(self) -> str:
        """What was said on stderr, once the command and all that it started have ended.

        On a busy machine that takes as long as it takes, while they get on.
        """
        used = -1.0
        while (now := sum(map(processor_seconds, self.processes()))) > used or self.process.poll() is not None:
            try:
                return self.process.communicate(timeout=PATIENCE_SECONDS)[1]
            except subprocess.TimeoutExpired:
                if self.process.poll() is not None:
                    break
                used = now
        raise Problem(f"does not end, or processes are left behind: {self.processes()}")


def processor_seconds(number: int) -> float:
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Started:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "demosift", *arguments],
        env={**environment, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Started(process, mark)


@dataclass(frozen=True)
class Verb:
    """A verb on a tiny size. `again` are the flags that continue it; None where what it writes is whole or absent."""

    command: str
    out: str = "out"
    again: str | None = None
    inputs: tuple[str, ...] = ()


RECORD = "record random --env hopper --episodes 8 --seed"
TWO = "--expert {inputs}/expert.hdf5 --supplementary {inputs}/pile.hdf5"
TINY = f"train bc {TWO} --hidden 8 8 --batch-size 16"
SCORE = f"score {TWO} --members 1 --folds 2 --scorer neighbours"
VERBS = {
    "train": Verb(
        f"{TINY} --seeds 2 --iterations 120 --log-every 5 --checkpoint-every 5 --evaluate-every 40 --episodes 1",
        again="--resume",
        inputs=("data",),
    ),
    "collect": Verb(
        "collect hopper --steps 5056 --evaluate-every 1280 --episodes 1 --checkpoint-seconds 0.1", again="--resume"
    ),
    "reproduce": Verb(
        "reproduce noisy-expert --envs pusher --methods bc --pool 10 --seeds 2 --iterations 120 --evaluate-every 40 "
        "--episodes 1 --set hidden=8,8 batch_size=16 --checkpoint-seconds 0.01",
        again="",
    ),
    "score": Verb(SCORE, inputs=("data",)),
    "filter": Verb(
        "filter {inputs}/pile.hdf5 --scores {inputs}/scores --top 0.5", "lerobot:out", inputs=("data", "scores")
    ),
    "record": Verb(f"{RECORD} 2", "out.hdf5"),
    "task": Verb("task pusher/noisy-expert --pool 10"),
    "export": Verb("export {inputs}/run", "out.onnx", inputs=("data", "run")),
    "theory": Verb("theory --scale 0.002 --claims binomial-lemma"),
}
INPUTS = {
    "data": [f"{RECORD} {seed} --out {{inputs}}/{name}.hdf5" for seed, name in enumerate(("expert", "pile"))],
    "scores": [f"{SCORE} --out {{inputs}}/scores"],
    "run": [f"{TINY} --iterations 20 --evaluate-every 0 --out {{inputs}}/run"],
}


def run(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """A command that must succeed."""
    started = start(arguments, environment)
    said = started.said()
    if started.process.returncode:
        raise Problem(f"{' '.join(arguments)}: exit {started.process.returncode}: {said.strip()}")


def make_inputs(kinds: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """What verbs read."""
    for command in (command for kind in kinds for command in INPUTS[kind]):
        run(command.format(inputs=folder).split(), environment)


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


def traces(place: Path) -> dict[str, int]:
    """Whatever is below a folder, with the time it was last changed."""
    found = {}
    for parent, folders, files in os.walk(place):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            try:
                found[path] = os.stat(path).st_mtime_ns
            except FileNotFoundError:
                continue
    return found


@dataclass
class Count:
    """How often a verb was sent a signal, and what became of it."""

    tries: int = 0
    sent: int = 0  # to a command that had not ended by then
    at_work: int = 0  # of them, after it had begun to write
    runs: int = 0  # that ended, after one or more signals, as if there had been none
    problems: list[str] = field(default_factory=list)


class Victim:
    """One verb, killed as often as one likes. What it needs is made once and stays in its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.verb, self.folder, self.inputs = VERBS[name], folder, folder / "inputs"
        cache = Path(os.environ.get("DEMOSIFT_CACHE") or folder / "cache")
        self.environment = {**os.environ, **compiling(cache)}
        times = folder / "times.json"
        if not times.exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.inputs.mkdir(parents=True)
            make_inputs(self.verb.inputs, self.inputs, self.environment)
            (folder / "whole").mkdir()
            run(self.command(folder / "whole"), self.environment)
            again = Path(tempfile.mkdtemp(dir=folder))
            self.first, self.seconds = self.clock(again)
            if results(again) != results(folder / "whole"):
                raise Problem("two unbroken runs differ")
            shutil.rmtree(again)
            times.write_text(json.dumps([self.first, self.seconds]))
        self.first, self.seconds = json.loads(times.read_text())
        self.expected = results(folder / "whole")

    def command(self, place: Path) -> list[str]:
        kind, colon, name = self.verb.out.rpartition(":")
        return [*self.verb.command.format(inputs=self.inputs).split(), "--out", f"{kind}{colon}{place / name}"]

    def clock(self, place: Path) -> tuple[float, float]:
        """How many seconds pass until something is written, and until the end."""
        began = time.monotonic()
        started = start(self.command(place), self.environment)
        wait_for_work(started, place, traces(place))
        first = time.monotonic() - began
        said = started.said()
        if started.process.returncode:
            raise Problem(said)
        return first, time.monotonic() - began

    def interrupt(self, place: Path, number: int, share: float, at_work: bool) -> tuple[bool, bool]:
        """Send a signal at this share of the whole time, or of the time after something is written; returns whether it
        was sent, and whether something had been written.
        """
        going_on = self.verb.again is not None and any(place.iterdir())
        arguments = [*self.command(place), *(self.verb.again or "").split()] if going_on else self.command(place)
        before, began = traces(place), time.monotonic()
        started = start(arguments, self.environment)
        if at_work:
            wait_for_work(started, place, before)
        delay = share * (self.seconds - self.first) if at_work else share * self.seconds
        with suppress(subprocess.TimeoutExpired):
            started.process.wait(delay)
        working = traces(place) != before
        sent = started.process.poll() is None
        said = started.end(number)
        code = started.process.returncode
        if left := started.left_behind():
            raise Problem(f"processes left behind: {left}")
        if code == 2 and "holds no checkpoint to continue from" in said:
            shutil.rmtree(place / self.verb.out)  # killed before the first one: the user is told to begin again
            return False, False
        if "KeyboardInterrupt" in said and f"{os.sep}demosift{os.sep}" not in said and not working:
            return False, False  # Python itself was starting
        if code not in (0, -number, *([] if number == signal.SIGKILL else [128 + number])):
            raise Problem(f"exit {code}: {said}")
        lines = [line for line in said.splitlines() if line.startswith("demosift: ")]  # the others tell of progress
        if code != 0 and (len(lines) > 1 or "Traceback" in said):
            raise Problem(f"{len(lines)} lines: {said}")
        if not sent and not going_on:
            self.seconds = time.monotonic() - began  # the machine may be busier, or less so, than it was
        self.check(place, number)
        return sent, working

    def check(self, place: Path, number: int) -> None:
        """Whole or absent, and nothing half written after a signal that can be heard."""
        if self.verb.again is None:
            found = {name: content for name, content in results(place).items() if ".partial/" not in name}
            if found not in ({}, self.expected):
                raise Problem(f"neither whole nor absent: {[*found]}")
            if number != signal.SIGKILL and (hidden := list(place.glob(".*"))):
                raise Problem(f"left half written: {hidden}")

    def is_done(self, place: Path) -> bool:
        return self.verb.again is None and any(".partial/" not in name for name in results(place))

    def finish(self, place: Path) -> None:
        """What was killed is continued to its end, and must be what an unbroken run is."""
        if not self.is_done(place):
            going_on = self.verb.again is not None and any(place.iterdir())
            try:
                more = (self.verb.again or "").split() if going_on else []
                run([*self.command(place), *more], self.environment)
            except Problem as problem:
                if "holds no checkpoint to continue from" not in str(problem):
                    raise
                shutil.rmtree(place / self.verb.out)
                run(self.command(place), self.environment)
        found = results(place)
        if differing := [name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name)]:
            raise Problem(f"differs from an unbroken run: {differing}")
        # A kill just after the result became whole leaves the empty folder that it was made in, until the next command.
        hidden = [path for path in place.rglob(".*") if not (path.is_dir() and self.is_done(place) and is_empty(path))]
        if hidden:
            raise Problem(f"not swept: {hidden}")

    def once(self, number: int, share: float) -> None:
        """One signal at this share of the time."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        self.interrupt(place, number, share, at_work=False)
        self.finish(place)

    def several(self, name: str, most: int, chance: random.Random, count: Count) -> None:
        """Signals at random moments of one run, which then goes to its end; they are counted."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        number, moments, sent_here = signal.Signals[f"SIG{name}"], [], 0
        try:
            while sent_here < most and not self.is_done(place):
                share, at_work = chance.uniform(0.0, 1.05), chance.random() < 0.5
                count.tries += 1
                moments.append(f"{share:.3f} of {'work' if at_work else 'all'}")
                sent, working = self.interrupt(place, number, share, at_work)
                sent_here += sent
                count.sent += sent
                count.at_work += sent and working
                if not sent:
                    break
            self.finish(place)
        except Problem as problem:
            count.problems.append(f"{', '.join(moments)} ({self.seconds:.1f} s): {problem}; see {place}")
        else:
            count.runs += sent_here > 0
            shutil.rmtree(place)


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def wait_for_work(started: Started, place: Path, before: Mapping[str, int]) -> None:
    while started.process.poll() is None and traces(place) == before:
        time.sleep(0.02)


def read_counts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verbs", nargs="+", metavar="VERB", choices=[*VERBS, "all"], help=", ".join([*VERBS, "all"]))
    parser.add_argument("--times", type=int, default=100, help="signals for each verb (default: 100)")
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder to keep unbroken runs and counts in")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else a background job's children would ignore it
    verbs = [*VERBS] if "all" in options.verbs else options.verbs
    problems = 0
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory(prefix="demosift-kill-") as folder:
        folder = Path(folder).absolute()
        for verb in verbs:
            victim = Victim(verb, folder / verb)
            counts = folder / verb / f"{options.signal}.json"
            count = Count(**read_counts(counts))
            while count.sent < options.times and count.tries < 5 * options.times:
                # A call that adds to the count does not repeat its moments.
                chance = random.Random(f"{options.seed} {options.signal} {count.tries}")
                known = len(count.problems)
                victim.several(options.signal, min(MOST_KILLS, options.times - count.sent), chance, count)
                print(*count.problems[known:], sep="\n", end="\n" * (len(count.problems) - known), flush=True)
                counts.write_text(json.dumps(vars(count), indent=2))
            told = f"{count.sent} times, {count.at_work} of them while it wrote; {count.runs} runs to the end"
            print(f"{verb}, SIG{options.signal}: {told}; {len(count.problems)} problems", flush=True)
            problems += len(count.problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
