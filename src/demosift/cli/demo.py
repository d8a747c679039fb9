"""`demosift demo`: the whole job on embedded data, in about three minutes on two free cores.

BC, NBCU, WBCU and sift on `halfcheetah/noisy-expert`: one expert trajectory, and a pile of ten clean and five noisy
ones, drawn anew for each seed from the shipped expert. To save time WBCU runs in two stages, which costs a third of the
joint loop, and a policy of sift is two networks, not five.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from demosift.algorithms import BC, NBCU, Algorithm, WBCUTwoStage, facts
from demosift.files import is_partial, own_folder
from demosift.learning.fit import fit, weigh
from demosift.report.page import write_report
from demosift.report.table import json_table, result_table, rich_tables
from demosift.report.weights import weight_histogram
from demosift.results.run import Run
from demosift.results.scores import read_weights
from demosift.results.weights import write_weights
from demosift.sift.method import Sift
from demosift.simulation.environments import resolve
from demosift.simulation.evaluation import Evaluator
from demosift.simulation.simulate import Rollouts
from demosift.tasks.recipes import make_task
from demosift.types import Demonstrations, InputError

TASK = "halfcheetah/noisy-expert"
SEEDS = 3
ITERATIONS = 15_000  # of sift
NETWORKS = 2  # of a policy of sift
POLICY_SHARE, DISCRIMINATOR_SHARE = 1 / 5, 1 / 10  # of these iterations, for the networks of the other methods
EVALUATIONS, EPISODES = 3, 5


def demo(out: str | Path, seeds: int = SEEDS, iterations: int | None = None) -> tuple[dict[str, Any], str]:
    """Train, evaluate and report; returns the table as JSON and as text."""
    with own_folder(out):
        if any(not is_partial(path) for path in Path(out).iterdir()):
            raise InputError(f"{out}: the folder is not empty; choose another with --out, or remove it")
        return run(Path(out), seeds, iterations or ITERATIONS)


def run(out: Path, seeds: int, iterations: int) -> tuple[dict[str, Any], str]:
    data = [make_task(TASK, seed) for seed in range(seeds)]
    short, first = (max(1, round(iterations * share)) for share in (POLICY_SHARE, DISCRIMINATOR_SHARE))
    two_stage = WBCUTwoStage(discriminator_iterations=first)
    lengths = [(BC(), short), (NBCU(), short), (two_stage, first + short), (Sift(), iterations)]
    with Rollouts() as pool:
        runs = {each.name: train(each, data, length, out / each.name, pool) for each, length in lengths}
    found = [weigh(runs[two_stage.name], source)[member] for member, source in enumerate(data)]
    scored = [read_weights(out / Sift.name / "scores" / str(draw)) for draw in range(seeds)]
    write_weights(out, {two_stage.name: histogram(found, data), Sift.name: histogram(scored, data)})
    page = write_report(out, facts())
    table = result_table(out, facts())
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        for part in rich_tables(table):
            console.print(part)
    return {"table": json_table(table), "page": str(page)}, f"{captured.get().rstrip()}\n\nLook at {page}"


def train(algorithm: Algorithm, data: list[Demonstrations], iterations: int, out: Path, pool: Rollouts) -> Run:
    steps = max(1, iterations // EVALUATIONS // 500)  # rows of metrics between evaluations
    log_every = -(-iterations // (EVALUATIONS * steps))  # 500 by default: chunks of one length are compiled once
    every = log_every * steps
    with Evaluator(resolve(TASK.split("/")[0]), every=every, episodes=EPISODES, pool=pool) as evaluator:
        return fit(
            algorithm,
            data,
            seeds=len(data),
            iterations=iterations,
            ensemble=NETWORKS if isinstance(algorithm, Sift) else 1,
            evaluator=evaluator,
            log_every=log_every,
            checkpoint_every=every,
            out=out,
        )


def histogram(weights: list[Float[np.ndarray, "rows"]], data: list[Demonstrations]) -> dict[str, Any]:
    """The weights of every draw's union, by the samples' true origin."""
    origins = [part.origin for source in data for part in (source.expert, source.supplementary) if part is not None]
    names, codes = (), []
    for origin in origins:
        assert origin is not None  # a task stores it
        names = origin.names
        codes.append(origin.code)
    return weight_histogram(np.concatenate(weights), np.concatenate(codes), names)
