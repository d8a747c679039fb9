"""Damaged and hostile files, thousands of them: `make fuzz`, or `python tests/fuzz.py --seconds 60 --formats npz`.

For every format there is a small good sample, what a reader does with it, and mutators that know its structure: other
types and shapes, headers that claim too much, links, pipes, odd names, JSON that is not what it should be; and bytes
that are flipped, cut off or repeated. A case must be read or be refused in one line. A traceback, more than ten seconds
of processor time, more than 1 GB of memory, text of another file in a message, or a file outside the output is a
failure. Each is shrunk to as few mutations as show it and kept in tests/regressions, which the tests read.

A case is made from the seed, the format and its number alone. Every format runs in a process of its own, which is
started again after a case that it does not survive.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_mutators as mutators
import h5py
import numpy as np
from layouts import episode, lerobot_v2, lerobot_v3, robomimic_file

from demosift.data import digest_source, open_rows, read_dataset, write_dataset
from demosift.data.formats import format_of
from demosift.data.selection import Selection
from demosift.files import write_json
from demosift.policy import Layer, Policy
from demosift.report.page import render_page
from demosift.report.sift_page import write_sift_page
from demosift.results import cell
from demosift.results.folder import read_folder
from demosift.results.run import Run, load_run
from demosift.results.scores import write_episodes, write_rows, write_summary
from demosift.sift.filtering import filter_dataset
from demosift.simulation import environments
from demosift.types import Dataset, EnvironmentSpec, InputError, Origin, Transitions

REGRESSIONS = Path(__file__).parent / "regressions"
OLD_SCORES = Path(__file__).parent / "old" / "0.1.0" / "scores"
SECONDS, MEMORY = 10, 1 << 30
MEMORY_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # outputs are flushed, which takes time on a disk
SECRET = "a-secret-of-another-file"


@dataclass(frozen=True)
class Format:
    make: Callable[[Path], None]  # writes the sample into an empty folder
    read: Callable[[Path, Path], None]  # reads what is in the folder; may write to the second path


def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    ends = np.array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1], bool)
    terminal = ends & (np.arange(12) < 8)
    obs, following = rng.normal(size=(2, 12, 3)).astype(np.float32)
    action = rng.uniform(-0.9, 0.9, (12, 2)).astype(np.float32)
    transitions = Transitions(obs, action, rng.normal(size=12).astype(np.float32), following, terminal)
    environment = EnvironmentSpec("Pendulum-v1", {"g": 9.0}, (-2.0, -1.0), (2.0, 1.0))
    origin = Origin(np.arange(12).astype(np.int8) % 2, ("clean", "noisy"))
    return Dataset(transitions, ends & ~terminal, environment, origin, {"note": "x", "obs_keys": {"a": 1, "b": 2}})


def read_data(place: str, out: Path) -> None:
    """What `train`, `score` and `filter` do with data."""
    found = read_dataset(place, actions="clip")
    if found.environment is not None:
        tolerate(lambda: environments.stored(found.environment or EnvironmentSpec("")))
    rows = open_rows(place, actions="clip")
    assert sum(len(obs) for obs, _ in rows.blocks(5)) == len(found)
    rows.take(np.array([0, len(found) - 1]))
    digest_source(place)
    selections = [found.timeout | found.transitions.terminal, np.arange(len(found)) % 3 > 0]
    selections[0] = np.repeat(np.arange(found.num_episodes) % 2 == 0, np.diff(found.episode_ends, prepend=0))
    prefix = place.partition(":")[0] + ":" if ":" in place else ""
    for number, keep in enumerate(selections):
        if keep.any():
            target = out / (
                f"kept{number}.hdf5" if Path(place.rpartition(":")[2]).suffix == ".hdf5" else f"kept{number}-v0"
            )
            keep_part = format_of(place).keep
            assert keep_part is not None
            keep_part(place.partition("::")[0], f"{prefix}{target}", Selection(keep, found.episode_ends))
    write_dataset(found, out / "again.hdf5")
    write_dataset(found, f"robomimic:{out / 'robomimic.hdf5'}")


def tolerate(function: Callable[[], Any]) -> None:
    """What is done with a part of the input: a refusal does not end the case."""
    try:
        function()
    except InputError as error:
        check_message(str(error))


def check_message(message: str) -> None:
    assert "\n" not in message, f"more than one line: {message!r}"
    assert SECRET not in message, f"tells what another file holds: {message!r}"
    message.encode("utf-8", "surrogateescape")


def make_policy(folder: Path) -> None:
    policy().save(folder / "policy.safetensors")


def policy(members: int = 2) -> Policy:
    rng = np.random.default_rng(1)
    layers = [(rng.normal(size=(members, a, b)), rng.normal(size=(members, b))) for a, b in ((3, 4), (4, 2))]
    layers = tuple(Layer(kernel.astype(np.float32), bias.astype(np.float32)) for kernel, bias in layers)
    environment = EnvironmentSpec("Pendulum-v1", {}, (-2.0,), (2.0,))
    ones = np.ones((members, 3), np.float32)
    return Policy("tanh-gaussian", layers, ones, ones, 5.0, environment, {"algorithm": "bc"}, 1, (-5.0, 2.0))


def read_policy(folder: Path, out: Path) -> None:
    loaded = Policy.load(folder / "policy.safetensors")
    assert np.isfinite(loaded.act(np.zeros(loaded.obs_dim))).all()
    loaded.save(out / "again.safetensors")
    if loaded.environment is not None:
        environments.stored(loaded.environment)


def make_run(folder: Path) -> None:
    config = {
        "algorithm": "bc",
        "members": [{"algorithm": "bc", "seed": seed, "learning_rate": 1e-3, "loss": "likelihood"} for seed in (0, 1)],
        "iterations": 20,
        "environment": {"id": "Pendulum-v1", "kwargs": {}, "action_low": [-2.0], "action_high": [2.0]},
        "task": None,
        "data": [{"sha256": "0", "expert": "a.hdf5"}],
        "sources": [["a.hdf5", "b.hdf5"]],
        "precision": "float32",
        "normalise": "supplementary",
        "versions": {"demosift": "0.1.0"},
        "failures": {},
    }
    metrics = [
        {"iteration": i, "member": m, **row}
        for i in (10, 20)
        for row in ({"policy_loss": 0.5}, {"returns": [1.0, 2.0], "score": 0.5})
        for m in (0, 1)
    ]
    Run(config, policy(), metrics, {"step": np.arange(3)}).save(folder / "run")
    histogram = {"name": "clean", "counts": [1, 2], "rows": 4, "zero": 1, "weight_share": 0.5}
    write_json(
        folder / "weights.json", {"wbcu": {"origins": [histogram], "edges": [0.0, 1.0, 2.0], "separation": None}}
    )


def read_runs(folder: Path, out: Path) -> None:
    tolerate(lambda: load_run(folder / "run"))
    render_page(read_folder(folder), {})


def make_cells(folder: Path) -> None:
    for seed in (0, 1):
        config = {
            "method": "bc",
            "task": "hopper/noisy-expert",
            "seed": seed,
            "iterations": 20,
            "settings": {"learning_rate": 1e-3},
        }
        data = {"sha256": "0"}
        content = {
            "id": cell.cell_id(config, cell.data_digest(data)),
            "config": config,
            "data": data,
            "environment": {"id": "Hopper-v5", "kwargs": {}},
            "evaluations": [{"iteration": i, "returns": [1.0, 2.0], "metrics": {"policy_loss": 0.5}} for i in (10, 20)],
            "reference": {"random": 0.0, "expert": 10.0},
            "versions": {"demosift": "0.1.0"},
        }
        cell.write_cell(folder / "cells" / f"{content['id']}.json", content)
    ids = [path.stem for path in (folder / "cells").iterdir()]
    cell.write_grid(folder / "grids" / "noisy-expert.json", ids)
    cell.write_failure(
        folder / "failures" / "0.json",
        {"config": {"method": "bc", "task": "x", "seed": 1}, "failure": "Traceback\nValueError: x"},
    )


def read_cells(folder: Path, out: Path) -> None:
    render_page(read_folder(folder), {})


def make_scores(folder: Path) -> None:
    for name in ("expert.hdf5", "pile.hdf5"):
        write_dataset(dataset(), folder / name)
    with h5py.File(folder / "expert.hdf5", "a") as file:
        file.attrs["other"] = 1
    scores = folder / "scores"
    scores.mkdir()
    ends = np.array([4, 8, 12, 16, 20, 24])
    write_rows(scores, np.linspace(0, 2, 24), np.zeros(24), np.zeros(24, np.int8), ends, 3)
    columns = {"source": np.repeat(["expert", "supplementary"], 3), "episode": np.tile(np.arange(3), 2)}
    write_episodes(scores, {**columns, "log_weight": np.linspace(-1, 1, 6), "rank": np.tile(np.arange(3), 2)})
    sources = {
        role: {"path": name, "rows": 12, "digest": digest_source(folder / name)}
        for role, name in (("expert", "expert.hdf5"), ("supplementary", "pile.hdf5"))
    }
    summary, page = (json.loads((OLD_SCORES / name).read_text()) for name in ("summary.json", "page.json"))
    write_summary(scores, {**summary, **sources, "threshold": 0.5}, page)


def read_score_folder(folder: Path, out: Path) -> None:
    tolerate(lambda: write_sift_page(folder / "scores", {}))
    rules: list[dict[str, Any]] = [{"episodes": 2}, {"top": 0.5}, {}]
    for number, rule in enumerate(rules):
        filter_dataset(folder / "pile.hdf5", folder / "scores", out / f"{number}.hdf5", **rule)


def _sample(target: str) -> Callable[[Path], None]:
    return lambda folder: write_dataset(dataset(), target.format(folder))


def _reader(source: str) -> Callable[[Path, Path], None]:
    return lambda folder, out: read_data(source.format(folder), out)


EPISODES = {number: episode(number, 4) for number in range(3)}

FORMATS: dict[str, Format] = {
    "hdf5": Format(_sample("{}/data.hdf5"), _reader("{}/data.hdf5")),
    "robomimic": Format(
        lambda folder: robomimic_file(folder / "data.hdf5", EPISODES) and None, _reader("{}/data.hdf5")
    ),
    "npz": Format(_sample("npz:{}/data"), _reader("{}/data")),
    "lerobot-v2": Format(lambda folder: lerobot_v2(folder / "data", EPISODES) and None, _reader("{}/data")),
    "lerobot-v3": Format(lambda folder: lerobot_v3(folder / "data", [EPISODES]) and None, _reader("{}/data")),
    "minari": Format(_sample("minari:{}/data-v0"), _reader("{}/data-v0")),
    "policy": Format(make_policy, read_policy),
    "run": Format(make_run, read_runs),
    "cells": Format(make_cells, read_cells),
    "scores": Format(make_scores, read_score_folder),
}


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
        for step in self.steps:
            mutators.mutate(folder, random.Random(step), folder.parent / "elsewhere" / "secret.txt")


def attempt(name: str, write: Callable[[Path], None], home: Path) -> str:
    """Reads one case: "read", "refused", or what went wrong."""
    shutil.rmtree(home, ignore_errors=True)
    (home / "elsewhere").mkdir(parents=True)
    (home / "out").mkdir()
    (home / "elsewhere" / "secret.txt").write_text(SECRET)
    write(home / "case")
    before, held = set(os.listdir(home)) | {"out"}, most_memory()
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
    except Exception:
        return traceback.format_exc()
    if set(os.listdir(home)) - before or os.listdir(home / "elsewhere") != ["secret.txt"]:
        return "wrote outside of its output"
    if any(SECRET.encode() in p.read_bytes() for p in (home / "out").rglob("*") if p.is_file()):
        return "copied what lies outside of the data"
    if most_memory() > MEMORY + held:
        return f"took {(most_memory() - held) >> 20} MiB of memory"
    return outcome


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
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SECONDS, resource.RLIM_INFINITY))
        signal.alarm(12 * SECONDS)  # something that waits uses no time of the processor
        case = Case(name, sample, number, seed)
        outcome = attempt(name, case.write, home / "work")
        if outcome not in ("read", "refused"):
            for place in range(len(case.steps) if len(case.steps) > 1 else 0):
                smaller = Case(name, sample, number, seed, only=(place,))
                if (again := attempt(name, smaller.write, home / "work")) not in ("read", "refused"):
                    case, outcome = smaller, again
                    break
        print(json.dumps({"number": number, "outcome": outcome, "steps": case.steps}), file=tell, flush=True)
        if "MiB of memory" in outcome:
            return  # the highest mark stays: go on in a new process


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


def fuzz(name: str, seed: int, first: int, count: int, seconds: float, kept: Path | None) -> dict[str, int]:
    """Counts of outcomes. Failures are printed, and kept where `kept` says."""
    counts = {"cases": 0, "read": 0, "refused": 0, "failures": 0}
    end, last, seen = time.monotonic() + seconds, first + count, set()
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as home:
        while first < last and time.monotonic() < end:
            command = [sys.executable, __file__, "--worker", name, "--seed", str(seed), "--first", str(first)]
            command += ["--count", str(last - first), "--home", f"{home}/{first}"]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            assert worker.stderr is not None
            for line in worker.stdout:
                told = json.loads(line)
                if "start" in told:
                    first = told["start"] + 1
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
                    counts["cases"] += 1
                    counts["failures"] += 1
                    why = f"ended with {worker.returncode}: {worker.stderr.read()[-2000:]}"
                    report(name, seed, first - 1, None, why, Path(home), kept, seen)
            worker.communicate()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", 300)))
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9, help="cases of each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--keep", action="store_true", help="keep failures in tests/regressions")
    parser.add_argument("--worker", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--home", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.seed, options.first, options.first + options.count, Path(options.home))
        return 0
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    failures = 0
    for name in options.formats:
        share = options.seconds / len(options.formats)
        counts = fuzz(name, seed, options.first, options.count, share, REGRESSIONS if options.keep else None)
        failures += counts["failures"]
        print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
