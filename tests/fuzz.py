"""Damaged and hostile files, thousands of them: `make fuzz`, or `python tests/fuzz.py --seconds 60 --formats npz`.

For every format there is a small good sample and what the verbs do with it (`fuzz_formats`), and mutators that know its
structure (`fuzz_mutators`, `fuzz_binary`): other types and shapes, headers that claim too much, links, pipes, odd
names, JSON that is not what it should be; and bytes that are flipped, cut off or repeated. A case must be read or be
refused in one line. A traceback, more than ten seconds of processor time, more than 1 GB of memory, text of another
file in a message, or a file outside the output is a failure. Each is shrunk to as few mutations as show it and kept in
tests/regressions, which the tests read.

A case is made from the seed, the format and its number alone. Every format runs in a process of its own, which is
started again after a case that it does not survive. `--until N` goes on where the counts in `--record FILE` end, until
each format has had N cases; `--table FILE` prints those counts as a table.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_mutators as mutators
from fuzz_formats import FORMATS, SECRET, Format, InputError, check_message

__all__ = ["FORMATS", "Format", "InputError"]

REGRESSIONS = Path(__file__).parent / "regressions"
SECONDS, MEMORY = 10, 1 << 30
BATCH = 1000  # cases of a format until the counts are written down
MEMORY_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # outputs are flushed, which takes time on a disk
OUTCOMES = ("cases", "read", "refused", "failures")


class Case:
    """One mutated sample, in a folder that is removed when it has been read."""

    def __init__(self, name: str, sample: Path, number: int, seed: int, only: tuple[int, ...] | None = None) -> None:
        self.name, self.sample = name, sample
        rng = random.Random(f"{seed} {name} {number}")
        self.steps = [rng.randrange(1 << 48) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        if only is not None:
            self.steps = [self.steps[place] for place in only]

    def write(self, folder: Path) -> None:
        shutil.copytree(self.sample, folder)
        broken: set[Path] = set()
        for step in self.steps:
            mutators.mutate(folder, random.Random(step), folder.parent / "elsewhere" / "secret.txt", broken)


def attempt(name: str, write: Callable[[Path], None], home: Path, begin: Callable[[], None] = lambda: None) -> str:
    """Reads one case: "read", "refused", or what went wrong. `begin` is called when it has been made."""
    shutil.rmtree(home, ignore_errors=True)
    (home / "elsewhere").mkdir(parents=True)
    (home / "out").mkdir()
    (home / "elsewhere" / "secret.txt").write_text(SECRET)
    write(home / "case")
    before, held = tree(home), most_memory()
    begin()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            FORMATS[name].read(home / "case", home / "out")
        outcome = "read"
    except InputError as error:
        outcome = "refused"
        try:
            check_message(str(error))
        except AssertionError as wrong:
            return str(wrong)
    except (Exception, SystemExit):
        return traceback.format_exc()
    if tree(home) != before:
        return "wrote outside of its output"
    if any(SECRET.encode() in p.read_bytes() for p in (home / "out").rglob("*") if p.is_file()):
        return "copied what lies outside of the data"
    if most_memory() > MEMORY + held:
        return f"took {(most_memory() - held) >> 20} MiB of memory"
    return outcome


def tree(home: Path) -> list[str]:
    """What lies beside the data and the output."""
    return sorted([*os.listdir(home), *(str(path) for path in (home / "elsewhere").rglob("*"))])


def most_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_sample(name: str, home: Path) -> Path:
    sample = home / f"sample-{name}"
    sample.mkdir(parents=True)
    FORMATS[name].make(sample)
    return sample


def work(name: str, seed: int, first: int, last: int, home: Path) -> None:
    """The cases of one format in this process; a line of JSON before and after each."""
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sample = make_sample(name, home)
    for number in range(first, last):
        print(json.dumps({"start": number}), file=tell, flush=True)
        signal.alarm(12 * SECONDS)  # something that waits uses no time of the processor
        case = Case(name, sample, number, seed)
        outcome = attempt(name, case.write, home / "work", limit_time)
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if outcome not in ("read", "refused"):
            for place in range(len(case.steps) if len(case.steps) > 1 else 0):
                smaller = Case(name, sample, number, seed, only=(place,))
                if (again := attempt(name, smaller.write, home / "work")) not in ("read", "refused"):
                    case, outcome = smaller, again
                    break
        print(json.dumps({"number": number, "outcome": outcome, "steps": case.steps}), file=tell, flush=True)
        if "MiB of memory" in outcome:
            return  # the highest mark stays: go on in a new process


def limit_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SECONDS, resource.RLIM_INFINITY))


def keep(name: str, seed: int, number: int, steps: list[int] | None, home: Path, folder: Path) -> Path:
    """The case as a small archive, for the tests."""
    shutil.rmtree(home / "kept", ignore_errors=True)
    (home / "kept" / "elsewhere").mkdir(parents=True)
    sample = home / f"sample-{name}"
    if not sample.exists():
        make_sample(name, home)
    case = Case(name, sample, number, seed)
    case.steps = case.steps if steps is None else steps
    case.write(home / "kept" / "case")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{seed}-{number}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((home / "kept" / "case").rglob("*")):
            if file.is_file() and not file.is_symlink():
                archive.write(file, file.relative_to(home / "kept" / "case"))
    return path


def fuzz(name: str, seed: int, first: int, count: int, end: float, kept: Path | None) -> dict[str, int]:
    """Counts of outcomes. Failures are printed, and kept where `kept` says."""
    counts: dict[str, int] = {what: 0 for what in OUTCOMES}  # noqa: C420 - the keys are any text
    last, seen = first + count, set()
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as home:
        while first < last and time.monotonic() < end:
            command = [sys.executable, __file__, "--worker", name, "--seed", str(seed), "--first", str(first)]
            command += ["--count", str(last - first), "--home", f"{home}/{first}"]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            assert worker.stderr is not None
            started = False
            for line in worker.stdout:
                told = json.loads(line)
                if "start" in told:
                    first, started = told["start"] + 1, True
                    continue
                counts["cases"] += 1
                if told["outcome"] in counts:
                    counts[told["outcome"]] += 1
                else:
                    counts["failures"] += 1
                    report(name, seed, told["number"], told["steps"], told["outcome"], Path(home), kept, seen)
                if time.monotonic() > end:
                    worker.terminate()
                    break
            else:
                if worker.wait() != 0:
                    why = f"ended with {worker.returncode}: {worker.stderr.read()[-2000:]}"
                    if not started:
                        raise RuntimeError(why)
                    counts["cases"] += 1
                    counts["failures"] += 1
                    report(name, seed, first - 1, None, why, Path(home), kept, seen)
            worker.communicate()
            shutil.rmtree(f"{home}/{first}", ignore_errors=True)
    return counts


def report(
    name: str, seed: int, number: int, steps: list[int] | None, why: str, home: Path, kept: Path | None, seen: set[str]
) -> None:
    place = [line for line in why.splitlines() if "demosift" in line or "File" in line][-1:] or [why[:80]]
    if (key := f"{place[0]} {why.splitlines()[-1][:60]}") in seen:
        return
    seen.add(key)
    print(f"FAILED {name} --seed {seed} --first {number} --count 1\n{why}", flush=True)
    if kept is not None:
        print(f"kept as {keep(name, seed, number, steps, home, kept)}", flush=True)


def read_record(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(name: str, seed: int, first: int, count: int, end: float, kept: Path | None, record: Path | None) -> int:
    """Fuzzes one format and writes its counts down; how many cases failed."""
    began = time.monotonic()
    counts = fuzz(name, seed, first, count, end, kept)
    seconds = round(time.monotonic() - began, 1)
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{name}: {told}, {counts['cases'] / max(seconds, 0.1):.0f} a second", flush=True)
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps({"format": name, "seed": seed, "first": first, **counts, "seconds": seconds}) + "\n")
    return counts["failures"]


def continue_until(most: int, names: list[str], seed: int, end: float, kept: Path | None, record: Path) -> int:
    """A batch of each format in turn, from where the record ends, until each has had so many cases."""
    failures = 0
    while time.monotonic() < end:
        rows = [row for row in read_record(record) if row["seed"] == seed]
        done = {name: sum(row["cases"] for row in rows if row["format"] == name) for name in names}
        waiting = [name for name in names if done[name] < most]
        if not waiting:
            break
        name = min(waiting, key=lambda name: done[name])
        failures += run(name, seed, done[name], min(BATCH, most - done[name]), end, kept, record)
    return failures


def table(path: Path) -> str:
    """The counts in Markdown, a line for each format."""
    rows = read_record(path)
    lines = ["| format | cases | read | refused | failures | a second |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, each in FORMATS.items():
        own = [row for row in rows if row["format"] == name]
        if own:
            sums = {what: sum(row[what] for row in own) for what in (*OUTCOMES, "seconds")}
            told = " | ".join(f"{sums[what]:,}" for what in OUTCOMES)
            lines.append(f"| {each.name} | {told} | {sums['cases'] / max(sums['seconds'], 0.1):.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", 300)))
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9, help="cases of each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--keep", action="store_true", help="keep failures in tests/regressions")
    parser.add_argument("--record", type=Path, help="a file to append the counts to, a line of JSON for each format")
    parser.add_argument("--until", type=int, help="go on after --record until each format has had so many cases")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the counts in such a file, and end")
    parser.add_argument("--worker", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--home", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.seed, options.first, options.first + options.count, Path(options.home))
        return 0
    if options.table:
        print(table(options.table))
        return 0
    if options.until and (options.record is None or options.seed is None):
        parser.error("--until needs --record and --seed")
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    kept, end = REGRESSIONS if options.keep else None, time.monotonic() + options.seconds
    if options.until:
        return int(continue_until(options.until, options.formats, seed, end, kept, options.record) > 0)
    failures = 0
    for place, name in enumerate(options.formats):
        left = (end - time.monotonic()) / (len(options.formats) - place)
        failures += run(name, seed, options.first, options.count, time.monotonic() + left, kept, options.record)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
