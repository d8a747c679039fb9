"""`demosift bench user`: how long a user waits, and for what.

    start      `import demosift`, `--help`: a few processes in turn, beside `import numpy`
    train      from the command to the end of the first iteration (WBCU, one member), beside `import jax`
    score      piles of random numbers in Hopper's sizes, beside the product of two matrices of 4096 x 4096
    report     a grid of a thousand cells, beside parsing their JSON
    evaluate   a hundred episodes of HalfCheetah, beside as many bare steps of the simulator

Every command is a process of its own. `train` and `score` come twice: with nothing kept, and with the programs that the
first one compiled. Clocks differ and cores may be busy, so what carries is the ratio: CPU seconds, of all processes
together, over those of what stands beside it in the same run. The shares say what the time on the clock went to
(`watching.py`); what a command waits for in its simulating processes is `simulating`.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from demosift.bench import check_out, watching, write_with_tables
from demosift.bench.scale import EXPERT_ROWS, write_rows
from demosift.bench.watching import KINDS, REST
from demosift.files import provenance
from demosift.learning.compiled import SWITCH
from demosift.results.cell import CELLS, FORMAT, GRIDS, cell_id, write_cell, write_grid
from demosift.simulation.cores import available_cores
from demosift.simulation.environments import IN_THE_PAPER, SHORT_NAMES, make

ROWS = (16_000, 1_000_000)
NUM_CELLS, EVALUATIONS = 1_000, 100
EPISODES, STEPS = 100, 1_000
TIMES = 9  # processes of each start
SIDE = 4096
BARE_STEPS = 5_000
STARTS = {
    "import numpy": ["-c", "import numpy"],
    "python -c pass": ["-c", "pass"],
    "import demosift": ["-c", "import demosift"],
    "demosift --help": ["-m", "demosift", "--help"],
    "demosift train --help": ["-m", "demosift", "train", "--help"],
    "import jax": ["-c", "import jax"],
}
FLAGS = ["--iterations", "1", "--log-every", "1", "--checkpoint-every", "1", "--evaluate-every", "0"]
PAPER_ROWS = [("bc", None), ("nbcu", None), ("dwbc", None), ("oracle", None)]
PAPER_ROWS += [(method, penalty) for method in ("wbcu", "demodice") for penalty in (0.0, 1.0, 10.0)]

Row = dict[str, Any]


def bench_user(rows: Sequence[int] | None = None, out: str | None = None) -> tuple[Row, str]:
    """With `out`, a .json file, results are written there and the table beside it. `rows`: of the piles to score."""
    check_out(out)
    starts = measure_starts()
    jax = next(row for row in starts if row["command"] == "import jax")
    with tempfile.TemporaryDirectory(prefix="demosift-user-") as name:
        folder = Path(name)
        results = [*measure_train(folder, jax["cpu_seconds"]), *measure_score(folder, rows or ROWS)]
        results += [measure_report(folder), measure_evaluate(folder)]
    answer = {"starts": starts, "commands": results, "cores": available_cores(), **provenance()}
    text = table(answer)
    if out is not None:
        write_with_tables(Path(out), answer, text)
    return answer, text


def measure_starts() -> list[Row]:
    wall: dict[str, list[float]] = {name: [] for name in STARTS}
    cpu: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(TIMES):  # in turn, so that all meet the same machine
        for name, arguments in STARTS.items():
            with clocks() as used:
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            wall[name].append(used["seconds"])
            cpu[name].append(used["cpu_seconds"])
    middle = {name: statistics.median(each) for name, each in cpu.items()}
    return [
        {
            "command": name,
            "seconds": round(min(wall[name]), 2),
            "cpu_seconds": round(middle[name], 3),
            "ratio": round(middle[name] / middle["import numpy"], 2),
        }
        for name in STARTS
    ]


def measure_train(folder: Path, importing: float) -> Iterator[Row]:
    expert, pile = folder / "expert.hdf5", folder / "pile.hdf5"
    write_rows(expert, EXPERT_ROWS, 0)
    write_rows(pile, ROWS[0] - EXPERT_ROWS, 1)
    for kept in ("nothing kept", "programs kept"):
        data = ["--expert", str(expert), "--supplementary", str(pile), "--out", str(folder / f"run {kept}")]
        found = measure(folder, ["train", "wbcu", *data, *FLAGS])
        yield beside(f"`train`, first iteration, {kept}", found, "import jax", importing)


def measure_score(folder: Path, rows: Sequence[int]) -> Iterator[Row]:
    for num_rows in rows:
        pile = folder / "pile.hdf5"
        write_rows(pile, num_rows, 1)
        product = product_seconds()
        # A large pile comes once, with the programs of the small one: compiling hardly matters.
        for kept in ("nothing kept", "programs kept") if num_rows == rows[0] else ("programs kept",):
            data = ["--expert", str(folder / "expert.hdf5"), "--supplementary", str(pile)]
            found = measure(folder, ["score", *data, "--out", str(folder / f"scores {num_rows} {kept}")])
            yield beside(f"`score`, {num_rows:,} rows, {kept}", found, "a product of matrices", product)


def measure_report(folder: Path) -> Row:
    write_cells(folder / "grid")
    paths = list((folder / "grid" / CELLS).iterdir())
    parsing = cpu_seconds_of(lambda: [json.loads(path.read_text(encoding="utf-8")) for path in paths])
    found = measure(folder, ["report", str(folder / "grid")])
    return beside(f"`report`, {len(paths):,} cells", found, "parsing them", parsing)


def measure_evaluate(folder: Path) -> Row:
    bare = bare_step_seconds() * EPISODES * STEPS
    found = measure(folder, ["evaluate", "expert", "--env", "halfcheetah", "--episodes", str(EPISODES)])
    return beside(f"`evaluate`, {EPISODES} episodes", found, "bare steps", bare)


def measure(folder: Path, command: Sequence[str]) -> Row:
    """The seconds of a command on the clock and of the CPU, and what shares of the former went to what."""
    told = folder / "told.json"
    environment = {**os.environ, "DEMOSIFT_CACHE": str(folder / "cache"), SWITCH: ""}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    with clocks() as used:
        process = subprocess.run(
            [sys.executable, "-P", watching.__file__, str(told), *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {process.stderr.strip()}")
    seconds = json.loads(told.read_text(encoding="utf-8"))
    seconds["importing"] = seconds.get("importing", 0.0) + used["seconds"] - sum(seconds.values())  # Python's own start
    shares = {kind: round(seconds[kind] / used["seconds"], 3) for kind in (*KINDS, REST) if kind in seconds}
    return {**{name: round(value, 2) for name, value in used.items()}, "shares": shares}


def beside(name: str, found: Row, what: str, cpu_seconds: float) -> Row:
    ratio = round(found["cpu_seconds"] / max(cpu_seconds, 1e-9), 2)
    return {"command": name, **found, "beside": what, "beside_cpu_seconds": round(cpu_seconds, 3), "ratio": ratio}


@contextmanager
def clocks() -> Iterator[Row]:
    """Seconds of the processes that the block starts and that end in it, and of their own; known when it ends."""
    found: Row = {}
    began, used = time.perf_counter(), seconds_used()
    yield found
    found |= {"seconds": time.perf_counter() - began, "cpu_seconds": seconds_used() - used}


def seconds_used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds_of(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def product_seconds() -> float:
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    return cpu_seconds_of(lambda: matrix @ matrix)


def bare_step_seconds() -> float:
    env = make(SHORT_NAMES["halfcheetah"])
    env.reset(seed=0)
    action = env.action_space.sample()

    def steps() -> None:
        for _ in range(BARE_STEPS):
            if env.step(action)[3]:
                env.reset()

    return cpu_seconds_of(steps) / BARE_STEPS


def write_cells(folder: Path) -> None:
    """A grid in the sizes of the paper's: evaluations of ten episodes, made of random numbers."""
    rng, ids = np.random.default_rng(0), []
    seeds = range(-(-NUM_CELLS // (len(PAPER_ROWS) * len(IN_THE_PAPER))))
    for seed, env, (method, penalty) in itertools.islice(itertools.product(seeds, IN_THE_PAPER, PAPER_ROWS), NUM_CELLS):
        every = 1_000_000 // EVALUATIONS
        config = {
            "method": method,
            "algorithm": "bc" if method == "oracle" else method,
            "settings": {} if penalty is None else {"gradient_penalty": penalty},
            "environment": env,
            "task": f"{env}/noisy-expert",
            "trained_on": "task",
            "normalise": "supplementary",
            "seed": seed,
            "iterations": every * EVALUATIONS,
            "evaluation": {"every": every},
        }
        data = {"sha256": "0" * 64}
        rising = np.sort(rng.uniform(0, 1_000, (EVALUATIONS, 10)), axis=0)
        ids.append(cell_id(config, data["sha256"]))
        content = {
            "id": ids[-1],
            "config": config,
            "data": data,
            "environment": {"id": SHORT_NAMES[env].id, "kwargs": {}},
            "reference": {"name": "demosift", "random": 0.0, "expert": 1_000.0},
            "evaluations": [
                {"iteration": every * (place + 1), "returns": returns.round(1).tolist(), "lengths": [1_000] * 10}
                for place, returns in enumerate(rising)
            ],
            "versions": {},
        }
        write_cell(folder / CELLS / f"{ids[-1]}.json", {**content, "format": FORMAT})
    write_grid(folder / GRIDS / "noisy-expert.json", ids)


def table(answer: Row) -> str:
    lines = [
        "Seconds on the clock, and of the CPU with their ratio to those of what stands beside it in the same run.",
        "",
        "| command | clock | CPU | beside | ratio | shares of the time on the clock |",
        "| --- |" + " --- |" * 5,
    ]
    for row in answer["commands"]:
        shares = sorted(row["shares"].items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{kind} {100 * share:.0f}%" for kind, share in shares if share >= 0.02)
        numbers = f"{row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['beside']} | {row['ratio']:.1f}"
        lines.append(f"| {row['command']} | {numbers} | {told} |")
    lines += [
        "",
        f"Of {TIMES} processes in turn, the least time on the clock, the median of the CPU's, and its ratio to that of",
        "`import numpy`. `train` has the algorithms' fields as flags, so it imports JAX.",
        "",
        "| start | clock | CPU | ratio |",
        "| --- |" + " --- |" * 3,
    ]
    for row in answer["starts"]:
        lines.append(f"| `{row['command']}` | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {row['ratio']:.2f} |")
    return "\n".join(lines)
