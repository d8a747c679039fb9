"""`demosift demo`: the whole job on embedded data, in about five minutes on two cores.

BC, NBCU and WBCU on `halfcheetah/noisy-expert`: one expert trajectory, and a pile of ten clean and five noisy ones,
drawn anew for each seed from the shipped expert. WBCU runs in two stages, which costs a third of the joint loop.
"""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from demosift.algorithms import BC, NBCU, Algorithm, WBCUTwoStage, facts
from demosift.learning.fit import fit, weigh
from demosift.report.page import write_report
from demosift.report.table import json_table, result_table, rich_tables
from demosift.report.weights import weight_histogram
from demosift.results.run import Run
from demosift.results.weights import write_weights
from demosift.simulation.environments import resolve
from demosift.simulation.evaluation import Evaluator
from demosift.tasks.recipes import make_task
from demosift.types import Demonstrations, InputError

TASK = "halfcheetah/noisy-expert"
ITERATIONS = 10_000  # of the policy, for each method
DISCRIMINATOR_ITERATIONS = 4_000
EVALUATIONS = 4


def demo(out: str | Path, seeds: int = 5, iterations: int | None = None) -> tuple[dict[str, Any], str]:
    """Train, evaluate and report; returns the table as JSON and as text."""
    out = Path(out)
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: the folder is not empty; choose another with --out, or remove it")
    iterations = iterations or ITERATIONS
    data = [make_task(TASK, seed) for seed in range(seeds)]
    sifted = WBCUTwoStage(discriminator_iterations=max(1, iterations * DISCRIMINATOR_ITERATIONS // ITERATIONS))
    runs = [(BC(), iterations), (NBCU(), iterations), (sifted, iterations + sifted.discriminator_iterations)]
    trained = {algorithm.name: train(algorithm, data, length, out / algorithm.name) for algorithm, length in runs}
    write_weights(out, {sifted.name: histogram(trained[sifted.name], data)})
    page = write_report(out, facts())
    table = result_table(out, facts())
    console = Console(width=100)
    with console.capture() as captured:
        for part in rich_tables(table):
            console.print(part)
    return {"table": json_table(table), "page": str(page)}, f"{captured.get().rstrip()}\n\nLook at {page}"


def train(algorithm: Algorithm, data: list[Demonstrations], iterations: int, out: Path) -> Run:
    log_every = max(1, min(500, iterations // (2 * EVALUATIONS)))
    every = max(1, iterations // EVALUATIONS // log_every) * log_every
    with Evaluator(resolve(TASK.split("/")[0]), every=every, episodes=5) as evaluator:
        seeds = range(len(data))
        return fit(
            algorithm, data, seeds=seeds, iterations=iterations, evaluator=evaluator, log_every=log_every, out=out
        )


def histogram(run: Run, data: list[Demonstrations]) -> dict[str, Any]:
    """The weights of every member on its own draw, by the samples' true origin."""
    weights, codes, names = [], [], ()
    for member, source in enumerate(data):
        weights.append(weigh(run, source)[member])
        for part in (source.expert, source.supplementary):
            assert part is not None and part.origin is not None  # noqa: PT018  a task stores both
            codes.append(part.origin.code)
            names = part.origin.names
    return weight_histogram(np.concatenate(weights), np.concatenate(codes), names)
