"""Does the diagnosis tell the truth? `python results/recipe/diagnosis.py OUT.json --replay DIR`, best on a GPU.

Twenty piles in each environment, from nothing useful to all useful; on each of them BC, NBCU, two-stage WBCU and sift,
all with the robust recipe and as many networks, so that they differ in nothing but rows and weights. OUT.json has a row
for each pile: what `score` measured and advised, and the normalised score of every method (20 episodes).
`python results/recipe/diagnosis.py OUT.json --judge` prints what following the advice costs.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from together import record_pools, score_all, train

from demosift.data import read_dataset, write_dataset
from demosift.data.episodes import episodes_at, join
from demosift.sift.diagnosis import Evidence, advise
from demosift.simulation import environments
from demosift.tasks.recipes import Sources, redraw_actions
from demosift.types import Dataset, Demonstrations

METHODS = {"bc": "bc", "nbcu": "nbcu", "wbcu": "wbcu-two-stage", "sift": "sift"}
POOL = 40
WITHIN = 0.03

# Trajectories of each kind (random: thousands of rows; replays: thousands of rows of all times, or of the first third),
# and the number of expert trajectories.
PILES: list[tuple[dict[str, int], int]] = [
    ({"clean": 10}, 1),
    ({"clean": 10}, 5),
    ({"clean": 10, "noisy": 5}, 1),
    ({"clean": 10, "noisy": 5}, 5),
    ({"clean": 5, "noisy": 10}, 1),
    ({"clean": 1, "noisy": 10}, 1),
    ({"noisy": 10}, 1),
    ({"noisy": 10}, 5),
    ({"clean": 10, "medium": 10}, 1),
    ({"clean": 2, "medium": 18}, 1),
    ({"clean": 2, "medium": 18}, 5),
    ({"medium": 20}, 1),
    ({"medium": 20}, 5),
    ({"clean": 10, "random": 10}, 1),
    ({"clean": 1, "random": 50}, 1),
    ({"random": 20}, 5),
    ({"replay": 100}, 1),
    ({"replay": 100}, 5),
    ({"early": 100}, 1),
    ({"clean": 5, "noisy": 5, "medium": 5, "random": 5}, 1),
]


def record(env: str, folder: str) -> None:
    """Record what piles are drawn from once, so that every process has the same episodes."""
    found = Sources(env, POOL)
    for name in ("expert", "medium"):
        path = Path(folder, f"{env}-{name}-{POOL}.hdf5")
        if not path.exists():
            write_dataset(getattr(found, f"{name}_pool"), path)


@cache
def sources(env: str, folder: str) -> Sources:
    expert, medium = (read_dataset(Path(folder, f"{env}-{name}-{POOL}.hdf5")) for name in ("expert", "medium"))
    return Sources(env, POOL, recorded=expert, others={"medium": medium})


@cache
def replay_of(env: str, folder: str) -> Dataset:
    return read_dataset(Path(folder, env, "replay.hdf5"))


def some_episodes(replay: Dataset, rows: int, share: float, rng: np.random.Generator) -> Dataset:
    """Episodes of the first part of a replay, in random order, until there are enough rows."""
    early = np.flatnonzero(replay.episode_ends <= share * len(replay))
    order = rng.permutation(early)
    lengths = (replay.episode_ends - replay.episode_starts)[order]
    return episodes_at(replay, np.sort(order[: int(np.searchsorted(np.cumsum(lengths), rows)) + 1]))


def make_pile(env: str, index: int, replay: str, folder: str) -> Demonstrations:
    contents, experts = PILES[index]
    rng = np.random.default_rng([17, index])
    pools = sources(env, folder)
    order = rng.permutation(POOL)
    expert, rest = episodes_at(pools.expert_pool, order[:experts]), order[experts:]
    parts = []
    for kind, count in contents.items():
        match kind:
            case "clean" | "noisy":
                part, rest = episodes_at(pools.expert_pool, rest[:count]), rest[count:]
                parts.append(redraw_actions(part, rng) if kind == "noisy" else part)
            case "medium":
                parts.append(episodes_at(pools.medium_pool, rng.permutation(POOL)[:count]))
            case "random":
                parts.append(pools.random_rows(1_000 * count))
            case _:
                share = 1.0 if kind == "replay" else 1 / 3
                parts.append(some_episodes(replay_of(env, replay), 1_000 * count, share, rng))
    return Demonstrations(expert, replace(join(parts), source=f"{env} {contents}"))


def evidence_of(summary: dict[str, Any]) -> dict[str, Any]:
    """What the advice rested on, so that a changed rule can be applied again."""
    told = summary["diagnosis"]
    return {
        "expert_rows": summary["expert"]["rows"],
        "supplementary_rows": summary["supplementary"]["rows"],
        "near": told["states"]["near"],
        "wrong": told["actions"]["other"],
        "expert_like": told["expert_like"]["share"],
        "kept_wrong": told["actions"]["other_among_expert_like"],
        "useless": all(max(own["slopes"]) == 0 for own in summary["coefficients"]),
        "separated_by": next((found["text"] for found in told["warnings"] if found["separates"]), ""),
        "same_rows": False,
        "covered": told["states"]["covered"],
        "like_episodes": told["expert_like"]["episodes"],
        "effective": told["effective_sample_size"]["union"]["rows"],
        "auc": summary["held_out"]["auc"],
    }


def measure(options: argparse.Namespace) -> None:
    out, folder = options.out, options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.loads(out.read_text()) if out.exists() else []
    done = {(row["env"], row["index"]) for row in rows}
    todo = {env: [index for index in options.piles if (env, index) not in done] for env in options.envs}
    arguments = [(env, index, options.replay, str(folder)) for env, piles in todo.items() for index in piles]
    record_pools(record, [(env, str(folder)) for env in options.envs])
    jax.devices()  # before the environment says that those who score have none
    with ThreadPoolExecutor(1) as thread:  # what needs no scores trains meanwhile
        scoring = thread.submit(score_all, make_pile, arguments)
        for env, piles in todo.items():
            if not piles:
                continue
            spec = environments.resolve(env)
            data = [make_pile(env, index, options.replay, str(folder)) for index in piles]
            how = (spec, options.iterations, options.episodes, options.ensemble)
            found = {name: train(method, data, *how) for name, method in METHODS.items() if name != "sift"}
            scored = [one for one, each in zip(scoring.result(), arguments, strict=True) if each[0] == env]
            weighted = [replace(own, weight=weight) for own, (weight, _) in zip(data, scored, strict=True)]
            found["sift"] = train("sift", weighted, *how)
            for place, (index, (_, summary)) in enumerate(zip(piles, scored, strict=True)):
                scores = {
                    name: None
                    if returns[place] is None
                    else round(float(environments.normalised_score(env, returns[place])), 4)  # type: ignore[arg-type]
                    for name, returns in found.items()
                }
                row = {"env": env, "index": index, "pile": PILES[index][0], "expert_trajectories": PILES[index][1]}
                told = {"advised": summary["diagnosis"]["advised"], "evidence": evidence_of(summary)}
                rows.append({**row, **told, "scores": scores})
                print(json.dumps(rows[-1]), flush=True)
            out.write_text(json.dumps(rows, indent=1) + "\n")


def judge(rows: list[dict[str, Any]], again: bool = True) -> dict[str, Any]:
    """How often the advised method is the best or within three points of it, and what following the advice costs.

    "Cannot tell" counts as the method that its reason names as safe: BC. So does a method that was not trained here.
    """
    hits, costs, always = [], [], {name: [] for name in METHODS}
    unknown, elsewhere = 0, 0
    for row in rows:
        evidence = {key: value for key, value in row["evidence"].items() if key in Evidence._fields}
        method = advise(Evidence(**evidence)).method if again else row["advised"]
        unknown += method is None
        elsewhere += method is not None and method not in METHODS
        scores = {name: -1.0 if score is None else score for name, score in row["scores"].items()}
        best = max(scores.values())
        lost = best - scores.get(method, scores["bc"])
        hits.append(lost <= WITHIN)
        costs.append(lost)
        for name in METHODS:
            always[name].append(best - scores[name])
    return {
        "piles": len(rows),
        "best or within three points": round(float(np.mean(hits)), 3),
        "cost of the advice": round(float(np.mean(costs)), 3),
        "largest cost": round(float(np.max(costs)), 3),
        "cannot tell": unknown,
        "another method": elsewhere,
        "cost of always": {name: round(float(np.mean(lost)), 3) for name, lost in always.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--envs", nargs="+", default=list(environments.IN_THE_PAPER))
    parser.add_argument("--replay", help="folder in which collect wrote each environment")
    parser.add_argument("--iterations", type=int, default=25_000)
    parser.add_argument("--ensemble", type=int, default=5, help="networks of every policy")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--piles", type=int, nargs="+", default=list(range(len(PILES))))
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    if not options.judge:
        measure(options)
    rows = json.loads(options.out.read_text())
    halves = {"tuned on": ("hopper", "halfcheetah"), "reported": ("walker2d", "ant")}
    for name, envs in halves.items():
        own = [row for row in rows if row["env"] in envs]
        if own:
            print(name, ", ".join(envs), json.dumps(judge(own), indent=1))


if __name__ == "__main__":
    main()
