"""Does the held-out loss rank policies? `python results/recipe/ranking.py OUT`, resumable, best on a GPU.

Good and bad settings are trained on noisy-expert tasks with a fifth of the expert's rows held out. OUT/summary.json has
the loss of every policy on those rows and its normalised score, how well the one ranks the other, and what choosing by
the loss costs. `--prepare` only draws the tasks and scores them, which needs no GPU; they are kept in OUT.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from demosift.data.normaliser import fit_normaliser
from demosift.experiments.cells import DataKey
from demosift.experiments.prepare import Preparation
from demosift.learning.algorithm import make_algorithm
from demosift.learning.cloning import RECIPES, with_own_decays
from demosift.learning.fit import with_bounds_of, with_horizon
from demosift.learning.held_out import choose_held_out, without
from demosift.learning.members import Member
from demosift.learning.program import Program
from demosift.learning.runner import Schedule, finite_members, run
from demosift.policy import Policy
from demosift.sift.method import Sift
from demosift.sift.scoring import score
from demosift.simulation.environments import IN_THE_PAPER, resolve
from demosift.simulation.evaluation import Evaluator, PendingRows
from demosift.simulation.simulate import Rollouts
from demosift.types import Dataset, Demonstrations

HELD_OUT = 0.2
CHUNK = 500
PAPER = {"learning_rate": 3e-4, "log_std_floor": None, "decay": 0.0, "rate_schedule": "constant"}


class Variant(NamedTuple):
    """Changes to the settings of sift, and the rows that are cloned: by their scores, all alike, or the expert's."""

    settings: Mapping[str, Any] = {}
    ensemble: int = 5
    iterations: int = 25_000
    rows: str = "scores"


VARIANTS = {
    "default": Variant(),
    "one-network": Variant(ensemble=1),
    "free-deviation": Variant({"log_std_floor": None}),
    "squared": Variant({"log_std_floor": None, "loss": "squared"}),
    "decay-0": Variant({"decay": 0.0}),
    "decay-1": Variant({"decay": 1.0}),
    "constant": Variant({"learning_rate": 3e-4, "rate_schedule": "constant"}),
    "fast": Variant({"learning_rate": 1e-2}),
    "iterations-2500": Variant(iterations=2_500),
    "iterations-10000": Variant(iterations=10_000),
    "paper-cloner": Variant(PAPER, ensemble=1),
    "all-rows": Variant(rows="all"),
    "expert-rows": Variant(rows="expert"),
    "expert-rows-paper-cloner": Variant(PAPER, ensemble=1, rows="expert"),
}
SCORED = [name for name, variant in VARIANTS.items() if variant.rows == "scores"]


class Task(NamedTuple):
    """A task with its scores as weights, and the same with a fifth of the expert's rows held out."""

    env: str
    seed: int
    whole: Demonstrations
    training: Demonstrations
    held_out: Dataset

    def weighted(self, rows: str) -> Demonstrations:
        weight = self.training.weight
        assert weight is not None
        if rows != "scores":
            weight = np.ones(len(weight)) if rows == "all" else np.arange(len(weight)) < len(self.training.expert)
        return replace(self.training, weight=weight.astype(np.float64))


class Pending(NamedTuple):
    """Policies whose episodes are under way, with their losses."""

    names: list[str]
    losses: list[float]
    rows: PendingRows
    diverged: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--envs", nargs="+", default=list(IN_THE_PAPER))
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--share", type=float, default=1.0, help="of the iterations, for a rehearsal")
    parser.add_argument("--prepare", action="store_true", help="draw and score the tasks, and stop")
    options = parser.parse_args()
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.seeds)
    tasks = [make_task(options.out, env, seed) for env in options.envs for seed in seeds]
    print(f"{len(tasks)} tasks after {time.monotonic() - began:.0f} s", flush=True)
    if options.prepare:
        return
    summary_file = options.out / ("summary.json" if options.share == 1.0 else "rehearsal.json")
    cells = json.loads(summary_file.read_text())["cells"] if summary_file.exists() else {}
    pending: list[Pending] = []
    with Rollouts() as pool:
        for names in programs(options.variants):
            missing = [name for name in names if any(f"{task.env}/{task.seed}/{name}" not in cells for task in tasks)]
            if missing:
                started = train(missing, tasks, options.share, Evaluator(None, episodes=options.episodes, pool=pool))
                print(f"{', '.join(missing)}: trained after {time.monotonic() - began:.0f} s", flush=True)
                keep(summary_file, cells, pending)  # of the program before: it was simulated while this one trained
                pending = started
        keep(summary_file, cells, pending)
    print(f"all done after {time.monotonic() - began:.0f} s")
    print(json.dumps(rankings(cells), indent=1))


def make_task(out: Path, env: str, seed: int) -> Task:
    (out / "data").mkdir(parents=True, exist_ok=True)
    data = Preparation(out / "data")(DataKey(env, "noisy-expert", seed)).demonstrations
    assert data.supplementary is not None
    path = out / "data" / f"{env}-{seed}-weights.npy"
    if not path.exists():
        np.save(path, score(data.expert, data.supplementary, progress=False).weight)
    data = replace(data, weight=np.load(path))
    left_out = choose_held_out(data, HELD_OUT)
    return Task(env, seed, data, without(data, left_out), data.expert.take(left_out[: len(data.expert)]))


def programs(names: Sequence[str]) -> list[list[str]]:
    """Variants that can train in one program: they differ in the learning rate, the decay and the rows alone."""
    found: dict[str, list[str]] = {}
    for name in names:
        settings, ensemble, iterations, _ = VARIANTS[name]
        shape = {key: value for key, value in settings.items() if key not in ("learning_rate", "decay")}
        found.setdefault(f"{sorted(shape.items())} {ensemble} {iterations}", []).append(name)
    return list(found.values())


def train(names: Sequence[str], tasks: Sequence[Task], share: float, evaluator: Evaluator) -> list[Pending]:
    """Train these variants on every task, and start the episodes of their policies."""
    ensemble, iterations = VARIANTS[names[0]].ensemble, max(1, int(VARIANTS[names[0]].iterations * share))
    normalisers = [fit_normaliser(task.whole) for task in tasks]
    given = [make_algorithm(Sift.name, {**RECIPES["robust"], **VARIANTS[name].settings}) for name in names]
    settings = with_own_decays([with_horizon(setting, iterations) for setting in given])
    members, cells = [], []
    for name, setting in zip(names, settings, strict=True):
        for task, normaliser in zip(tasks, normalisers, strict=True):
            environment = with_bounds_of(task.whole, resolve(task.env))
            members.append(Member(setting, task.seed, task.weighted(VARIANTS[name].rows), normaliser, environment))
            cells.append((task, f"{task.env}/{task.seed}/{name}"))
    program = Program(members, ensemble=ensemble)
    run(program, Schedule(iterations, CHUNK if iterations % CHUNK == 0 else iterations))
    pending = []
    for group, policy in program.policies():
        alive = np.flatnonzero(finite_members(policy)).tolist()
        own = [cells[group[place]] for place in alive]
        losses = [loss(policy.member(place), task) for place, (task, _) in zip(alive, own, strict=True)]
        rows = evaluator.submit(policy.members(alive), iterations, policy.environment)
        diverged = [cells[member][1] for place, member in enumerate(group) if place not in alive]
        pending.append(Pending([name for _, name in own], losses, rows, diverged))
    return pending


def loss(policy: Policy, task: Task) -> float:
    """As `fit` measures it (`learning.held_out`)."""
    rows = task.held_out.transitions
    return float(np.mean((policy.act_members(rows.obs[None])[0] - rows.action) ** 2))


def keep(path: Path, cells: dict[str, Any], pending: Sequence[Pending]) -> None:
    if not pending:
        return
    for names, losses, rows, diverged in pending:
        cells.update({name: {"held_out_loss": None, "score": 0.0} for name in diverged})
        for name, value, row in zip(names, losses, rows.result(), strict=True):
            cells[name] = {"held_out_loss": round(value, 6), "score": round(row["score"], 4)}
    path.write_text(json.dumps({"rankings": rankings(cells), "cells": cells}, indent=1))


def rankings(cells: Mapping[str, Any]) -> dict[str, Any]:
    """What choosing by the loss gives in every environment: for one seed, and for the means over all seeds.

    `correlation` is Spearman's, positive where a smaller loss goes with a larger score. `chosen`, `best` and `default`
    are scores: of the variant of least loss, of the best variant, and of the default.
    """
    keys = [key.split("/") for key in cells]
    envs, seeds, names = (list(dict.fromkeys(part)) for part in zip(*keys, strict=True))
    found: dict[str, Any] = {}
    for title, variants in (("all variants", names), ("scored rows only", [n for n in names if n in SCORED])):
        of_env = {}
        for env in envs:
            table = np.full((len(seeds), len(variants), 2), np.nan)
            for i, j in np.ndindex(table.shape[:2]):
                cell = cells.get(f"{env}/{seeds[i]}/{variants[j]}")
                if cell is not None:
                    table[i, j] = np.inf if cell["held_out_loss"] is None else cell["held_out_loss"], cell["score"]
            table = table[~np.isnan(table).any(axis=(1, 2))]  # tasks on which every variant was trained
            if len(table) and len(variants) > 1 and "default" in variants:
                one = [choice(variants, *rows.T) for rows in table]
                of_env[env] = {
                    "one seed": mean_of(one),
                    "all seeds": mean_of([choice(variants, *table.mean(axis=0).T)]),
                }
        if of_env:
            found[title] = of_env | {
                "mean": {key: mean_of([own[key] for own in of_env.values()]) for key in ("one seed", "all seeds")}
            }
    return found


def choice(names: Sequence[str], losses: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    chosen, best, default = scores[np.argmin(losses)], scores.max(), scores[names.index("default")]
    return {
        "correlation": spearmanr(-losses, scores)[0],
        "chosen": chosen,
        "best": best,
        "default": default,
        "regret": best - chosen,
        "against the default": chosen - default,
    }


def mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([row[key] for row in rows])), 3) for key in rows[0]}


if __name__ == "__main__":
    main()
