"""What each ingredient of the recipe is worth: `python results/recipe/measure.py OUT`, resumable, best on a GPU.

Every variant is a grid of `demosift reproduce noisy-expert` in a folder of its own below OUT; OUT/summary.json has the
mean normalised score of each environment over the reported evaluations (the last ones, 10 episodes each).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from demosift.experiments.cells import DataKey
from demosift.experiments.prepare import Preparation
from demosift.experiments.presets import Request, default_schedule
from demosift.experiments.reproduce import reproduce
from demosift.learning.cloning import RECIPES
from demosift.learning.prepared import InMemory
from demosift.learning.stages import together
from demosift.report.groups import num_averaged
from demosift.results.cell import cell_run, read_cell
from demosift.sift.method import Sift
from demosift.simulation.environments import IN_THE_PAPER
from demosift.types import Demonstrations

PAPER = {"learning_rate": 3e-4, "log_std_floor": None, "decay": 0.0, "rate_schedule": "constant"}
FLOOR = {**PAPER, "log_std_floor": -1.0}
DECAY = {**FLOOR, "decay": 0.1}
ROBUST = RECIPES["robust"]
SQUARED = {**ROBUST, "log_std_floor": None, "loss": "squared"}

# name -> methods, settings, networks averaged, iterations
VARIANTS = {
    "sift": (("sift", "oracle", "bc", "nbcu"), ROBUST, 5, 25_000),
    "paper-cloner": (("sift",), PAPER, 1, 25_000),
    "floor": (("sift",), FLOOR, 1, 25_000),
    "decay": (("sift",), DECAY, 1, 25_000),
    "robust-1": (("sift", "oracle", "bc"), ROBUST, 1, 25_000),
    "robust-10k": (("sift",), ROBUST, 5, 10_000),
    "robust-1-10k": (("sift",), ROBUST, 1, 10_000),
    "squared": (("sift", "bc"), SQUARED, 5, 25_000),
    "squared-10k": (("sift",), SQUARED, 5, 10_000),
    "average": (("sift",), {**ROBUST, "average": 0.999}, 5, 25_000),
    "no-decay": (("sift",), {**ROBUST, "decay": 0.0}, 5, 25_000),
    "robust-50k": (("sift",), ROBUST, 5, 50_000),
    "wide": (("sift",), {**ROBUST, "hidden": (512, 512)}, 5, 25_000),
    "bc-squared": (("bc",), {**PAPER, "loss": "squared"}, 1, 100_000),
    "bc-slow": (("bc",), {**SQUARED, "learning_rate": 3e-4}, 5, 25_000),
    "bc-slow-50k": (("bc",), {**SQUARED, "learning_rate": 3e-4}, 5, 50_000),
    "bc-decay-1": (("bc",), {**SQUARED, "decay": 1.0}, 5, 25_000),
    "bc-no-decay": (("bc",), {**SQUARED, "decay": 0.0}, 5, 25_000),
    "bc-floor-0": (("bc",), {**ROBUST, "log_std_floor": 0.0}, 5, 25_000),
    "bc-10": (("bc",), SQUARED, 10, 25_000),
    "bc-short": (("bc",), SQUARED, 5, 5_000),
    "bc-wide": (("bc",), {**SQUARED, "hidden": (1024, 1024)}, 5, 25_000),
    "bc-deep": (("bc",), {**SQUARED, "hidden": (256, 256, 256)}, 5, 25_000),
    "bc-layer-norm": (("bc",), {**SQUARED, "network": "layer-norm"}, 5, 25_000),
    "wbcu-robust": (
        ("wbcu", "wbcu-two-stage"),
        {**ROBUST, "wbcu-two-stage.discriminator_iterations": 5_000},
        5,
        25_000,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--methods", nargs="+", help="only these of a variant's")
    parser.add_argument("--envs", nargs="+", default=list(IN_THE_PAPER))
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the iterations, for a rehearsal")
    parser.add_argument("--pool", type=int, default=20)
    options = parser.parse_args()
    summary_file = options.out / "summary.json"
    summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
    shared = options.out / "data"
    shared.mkdir(parents=True, exist_ok=True)
    seeds = range(options.seed, options.seed + options.seeds)
    if any("sift" in VARIANTS[name][0] for name in options.variants) and "sift" in (options.methods or ["sift"]):
        prepare = Preparation(shared)
        keys = [DataKey(env, "noisy-expert", seed, "task", options.pool) for env in options.envs for seed in seeds]
        know_scores([prepare(key).demonstrations for key in keys])
    for name in options.variants:
        methods, settings, ensemble, iterations = VARIANTS[name]
        iterations = int(iterations * options.share)
        request = Request(
            envs=tuple(options.envs),
            seeds=tuple(seeds),
            iterations=iterations,
            schedule=default_schedule(iterations, iterations // 5, 10, 2),
            methods=tuple(method for method in methods if method in (options.methods or methods)),
            penalties=(1.0,),
            settings=settings,
            ensemble=ensemble,
            pool=options.pool,
        )
        began = time.monotonic()
        folder = options.out / name
        (folder / "data").mkdir(parents=True, exist_ok=True)
        for path in shared.glob("*.hdf5"):
            if not (folder / "data" / path.name).exists():
                (folder / "data" / path.name).hardlink_to(path)
        reproduce("noisy-expert", folder, request, console=Console(file=sys.stderr))
        summary[name] = {"seconds": round(time.monotonic() - began, 1), **scores(folder)}
        summary_file.write_text(json.dumps(summary, indent=1))
        for method, of_envs in summary[name].items():
            if method != "seconds":
                print(name, method, {key: value for key, value in of_envs.items() if key != "seeds"}, flush=True)


def know_scores(sets: Sequence[Demonstrations]) -> None:
    """Score these sets beside one another; every grid of this process then finds their weights."""
    memory = InMemory()
    together([Sift().prepare_in_stages(data, memory) for data in sets], memory)


def scores(folder: Path) -> dict[str, dict[str, Any]]:
    """The score of each method and environment in the reported evaluations: means over seeds, and every seed's."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for path in (folder / "cells").glob("*.json"):
        cell = read_cell(path, path.name)
        (member,) = cell_run(cell, path.name).members
        assert member.score is not None
        reported = member.score[-num_averaged(len(member.score)) :]
        of_env = found.setdefault(cell["config"]["method"], {}).setdefault(cell["config"]["environment"], {})
        of_env[cell["config"]["seed"]] = round(float(reported.mean()), 4)
    return {method: summarised(envs) for method, envs in sorted(found.items())}


def summarised(envs: dict[str, dict[int, float]]) -> dict[str, Any]:
    means = {env: round(float(np.mean(list(seeds.values()))), 3) for env, seeds in sorted(envs.items())}
    each = {env: dict(sorted(seeds.items())) for env, seeds in sorted(envs.items())}
    return {"mean": round(float(np.mean(list(means.values()))), 3), **means, "seeds": each}


if __name__ == "__main__":
    main()
