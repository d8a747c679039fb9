"""What each ingredient of the recipe is worth: `python results/recipe/measure.py OUT`, resumable, best on a GPU.

Every variant is a grid of `demosift reproduce noisy-expert` in a folder of its own below OUT; OUT/summary.json has the
mean normalised score of each environment over the reported evaluations (the last ones, 10 episodes each).
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from demosift.experiments.presets import Request, default_schedule
from demosift.experiments.reproduce import reproduce
from demosift.simulation.environments import IN_THE_PAPER

PAPER = {"learning_rate": 3e-4, "log_std_floor": None, "decay": 0.0, "rate_schedule": "constant"}
FLOOR = {**PAPER, "log_std_floor": -1.0}
DECAY = {**FLOOR, "decay": 0.1}
ROBUST = {**DECAY, "learning_rate": 1e-3, "rate_schedule": "cosine"}
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
    "wbcu-robust": (("wbcu", "wbcu-two-stage"), ROBUST, 5, 25_000),
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
    for name in options.variants:
        methods, settings, ensemble, iterations = VARIANTS[name]
        iterations = int(iterations * options.share)
        request = Request(
            envs=tuple(options.envs),
            seeds=tuple(range(options.seed, options.seed + options.seeds)),
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
        shared = options.out / "data"
        shared.mkdir(exist_ok=True)
        for path in shared.glob("*.hdf5"):
            if not (folder / "data" / path.name).exists():
                (folder / "data" / path.name).hardlink_to(path)
        reproduce("noisy-expert", folder, request, console=Console(file=sys.stderr))
        for path in (folder / "data").glob("*.hdf5"):
            if not (shared / path.name).exists():
                (shared / path.name).hardlink_to(path)
        summary[name] = {"seconds": round(time.monotonic() - began, 1), **scores(folder)}
        summary_file.write_text(json.dumps(summary, indent=1))
        for method, of_envs in summary[name].items():
            if method != "seconds":
                print(name, method, of_envs, flush=True)


def scores(folder: Path) -> dict[str, dict[str, float]]:
    """Mean over seeds of each method and environment, of the reported evaluations."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted((folder / "cells").glob("*.json")):
        cell = json.loads(path.read_text())
        reference = cell["reference"]
        reported = [
            row for row in cell["evaluations"] if len(row["returns"]) == cell["config"]["evaluation"]["episodes"]
        ]
        returns = np.mean([np.mean(row["returns"]) for row in reported])
        score = (returns - reference["random"]) / (reference["expert"] - reference["random"])
        found.setdefault(cell["config"]["method"], {}).setdefault(cell["config"]["environment"], []).append(score)
    means = {m: {env: round(float(np.mean(v)), 3) for env, v in envs.items()} for m, envs in found.items()}
    return {m: {"mean": round(float(np.mean(list(envs.values()))), 3), **envs} for m, envs in means.items()}


if __name__ == "__main__":
    main()
