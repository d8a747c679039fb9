"""`demosift bench recipe`: how long it takes from two files to a policy, and how good that policy is.

The two files of ENV/noisy-expert are scored, sift is trained on the scores with its default settings, and the policy is
evaluated. Everything that happens once is counted: reading, compiling, writing the page and the run's folder.

    scoring      reading both files; a weight for every row, the diagnosis, the page
    training     sift, once with five networks and once with one
    evaluating   ten episodes

Data of one environment are scored once, and these seconds count for five networks as well as for one. Cores differ, so
the total is also given as a ratio to 25,000 iterations of plain BC (one network, the paper's cloner), which are timed
in the same process.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from demosift.algorithms import BC
from demosift.bench import check_out, known, write_with_tables
from demosift.data import load
from demosift.files import provenance
from demosift.learning.fit import fit
from demosift.progress import Stopwatch
from demosift.sift.method import Sift
from demosift.simulation.cores import available_cores
from demosift.simulation.environments import IN_THE_PAPER, SHORT_NAMES
from demosift.simulation.evaluation import evaluate
from demosift.tasks.recipes import make_task, write_task

METHOD = Sift()
TARGETS = {5: 3.0, 1: 1.0}  # minutes, by the number of networks
PLAIN = 25_000  # iterations of plain BC
EPISODES = 10
STAGES = ("scoring", "training", "evaluating")

Row = dict[str, Any]


def bench_recipe(
    envs: Sequence[str] | None = None,
    seed: int = 10,
    iterations: int | None = None,
    ensembles: Sequence[int] = tuple(TARGETS),
    out: str | None = None,
) -> tuple[Row, str]:
    """A row for every environment and size of the ensemble. `iterations`: of sift and of plain BC alike."""
    check_out(out)
    rows = []
    for env in known("environment", envs or IN_THE_PAPER, SHORT_NAMES):
        with tempfile.TemporaryDirectory(prefix="demosift-recipe-") as folder:
            write_task(make_task(f"{env}/noisy-expert", seed), folder)
            rows += measure_env(env, Path(folder), iterations, ensembles)
    settings = {
        "seed": seed,
        "iterations": iterations or METHOD.about.iterations,
        "plain_iterations": iterations or PLAIN,
    }
    machine = {"device": jax.devices()[0].device_kind, "cores": available_cores()}
    answer, text = {"results": rows, **settings, **machine, **provenance()}, table(rows, settings)
    if out is not None:
        write_with_tables(Path(out), answer, text)
    return answer, text


def measure_env(env: str, folder: Path, iterations: int | None, ensembles: Sequence[int]) -> list[Row]:
    watch = Stopwatch()
    data = METHOD.prepare(load(folder / "expert.hdf5", folder / "supplementary.hdf5"), folder / "scores")
    watch.lap("scoring")
    plain = seconds_of_plain_cloning(folder, iterations or PLAIN)
    rows = []
    for size in ensembles:
        own = Stopwatch()
        run = fit(METHOD, data, iterations=iterations, ensemble=size, out=folder / f"run-{size}", progress=False)
        own.lap("training")
        evaluation = evaluate(run, episodes=EPISODES)
        own.lap("evaluating")
        seconds = {**watch.seconds, **own.seconds}
        total = sum(seconds.values())
        assert evaluation.scores is not None
        rows.append(
            {
                "env": env,
                "ensemble": size,
                "seconds": {stage: round(seconds[stage], 1) for stage in STAGES},
                "minutes": round(total / 60, 2),
                "target_minutes": TARGETS.get(size),
                "score": round(float(evaluation.scores.mean()), 3),
                "plain_seconds": round(plain, 1),
                "ratio": round(total / plain, 2),
            }
        )
        if sys.stderr.isatty():
            print(f"{env}, networks: {size}, seconds: {total:.0f}", file=sys.stderr)
    return rows


def seconds_of_plain_cloning(folder: Path, iterations: int) -> float:
    data = load(folder / "expert.hdf5")
    watch = Stopwatch()
    fit(BC(), data, iterations=iterations, progress=False)
    watch.lap("plain")
    return watch.seconds["plain"]


def table(rows: Sequence[Row], settings: Row) -> str:
    """In Markdown, with the target beside the minutes; an asterisk marks a missed one."""
    plain = f"plain BC, {settings['plain_iterations']:,} iterations, s"
    heads = ["environment", "networks", *(f"{stage}, s" for stage in STAGES), "minutes", "target", "score, %", plain]
    lines = [
        f"noisy-expert, seed {settings['seed']}, sift with {settings['iterations']:,} iterations",
        "",
        f"| {' | '.join([*heads, 'ratio'])} |",
        "| --- |" + " --- |" * len(heads),
    ]
    for row in rows:
        target = row["target_minutes"]
        missed = target is not None and row["minutes"] > target
        cells = [row["env"], row["ensemble"], *(f"{row['seconds'][stage]:.0f}" for stage in STAGES)]
        cells += [f"{row['minutes']:.1f}" + ("\\*" if missed else ""), "" if target is None else f"{target:g}"]
        cells += [f"{100 * row['score']:.1f}", f"{row['plain_seconds']:.0f}", f"{row['ratio']:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
