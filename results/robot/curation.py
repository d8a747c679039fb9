"""Which episodes of a pile to keep, and what a policy trained on them is worth.

`python results/robot/curation.py --piles DIR` makes every pile (`demosift task ENV/mixed`) in DIR, ranks its episodes
in several ways, and writes which of the worst 30% are truly bad. With `--success` it also clones the best 10 to 100%
of the episodes by every ranking, all in one program, and evaluates the policies. Results go to curation.json beside
this file after every step; what is there is not measured again. `--table` prints them.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from demosift.algorithms.bc import BC
from demosift.data import read_dataset
from demosift.data.rows import DatasetRows
from demosift.files import write_json
from demosift.learning.cloning import ROBUST
from demosift.learning.fit import fit
from demosift.sift.agreement import measure_agreement
from demosift.sift.scoring import score
from demosift.simulation.evaluation import evaluate
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.tasks.operators import BAD, BAD_KINDS
from demosift.tasks.recipes import make_task, write_task
from demosift.types import Dataset, Demonstrations

WHOLE = "all"
SHARES = tuple(round(share / 10, 1) for share in range(1, 11))

Score = Float[np.ndarray, "episodes"]


def by_contrast(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """The mean log-weight of `demosift score`, with the five expert episodes."""
    assert data.supplementary is not None
    scored = score(data.expert, data.supplementary)
    return scored.episodes()["log_weight"][scored.num_expert_episodes :]


def by_score(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """The rank that `demosift score` gives: by log-weight, and lower where an episode stops early."""
    assert data.supplementary is not None
    scored = score(data.expert, data.supplementary)
    return -scored.episodes()["rank"][scored.num_expert_episodes :].astype(np.float64)


def by_agreement(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """Without an expert: how well an episode agrees with the others."""
    assert data.supplementary is not None
    return measure_agreement(DatasetRows(data.supplementary)).combined


def by_chance(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    return rng.uniform(size=len(bad))


def by_truth(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """Good before bad, in random order among themselves."""
    return rng.uniform(size=len(bad)) - bad


# A ranking gives each episode of the pile a score; those with the highest are kept. Add others here.
RANKINGS: dict[str, Callable[[Demonstrations, Bool[np.ndarray, "episodes"], np.random.Generator], Score]] = {
    "contrast": by_contrast,
    "random": by_chance,
    "truth": by_truth,
    "score": by_score,
    "agreement": by_agreement,
}


def kinds_of(pile: Dataset) -> np.ndarray:
    """The kind of each episode: the origin of its rows, except that one with any idle row is `idle`."""
    assert pile.origin is not None
    names = np.array(pile.origin.names)[pile.origin.code]
    bounds = zip(pile.episode_starts, pile.episode_ends, strict=True)
    return np.array([min(set(names[start:end]) - {"interrupted"}) for start, end in bounds])


def open_task(name: str, piles: Path, seed: int, episodes: int) -> Demonstrations:
    folder = piles / f"{name.replace('/', '-')}-{episodes}-{seed}"
    if not folder.exists():
        write_task(make_task(name, seed, episodes=episodes), folder)
    return Demonstrations(*(read_dataset(folder / f"{part}.hdf5") for part in ("expert", "supplementary")))


def best(pile: Dataset, scores: Score, share: float) -> Dataset:
    """That share of the episodes, the best by their scores, in the pile's order."""
    kept = np.sort(np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))])
    rows = [np.arange(pile.episode_starts[episode], pile.episode_ends[episode]) for episode in kept]
    return pile.take(np.concatenate(rows))


def precision(scores: Score, kinds: np.ndarray) -> dict[str, Any]:
    """What the worst 30% are: which share of them is bad, and how many of each kind are among them."""
    dropped = np.argsort(scores, kind="stable")[: round(BAD * len(scores))]
    of_kind = {kind: [int((kinds[dropped] == kind).sum()), int((kinds == kind).sum())] for kind in np.unique(kinds)}
    return {"precision": round(float(np.isin(kinds[dropped], BAD_KINDS).mean()), 4), "dropped": of_kind}


def success(pile: Dataset, rankings: dict[str, Score], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The success of policies cloned from what each ranking keeps. That of the whole pile stands under `all`."""
    cases = {(name, share): scores for name, scores in rankings.items() for share in SHARES if share < 1}
    cases[WHOLE, 1.0] = next(iter(rankings.values()))
    data = [Demonstrations(best(pile, scores, share)) for (_, share), scores in cases.items()]
    run = fit(
        BC(learning_rate=1e-3, cloner=ROBUST),
        data,
        seeds=range(len(data)),
        iterations=options.iterations,
        ensemble=options.ensemble,
    )
    measured = evaluate(run, episodes=options.episodes)
    assert measured.successes is not None
    rates: dict[str, dict[str, float]] = {}
    for (name, share), rate in zip(cases, measured.successes.mean(axis=1).tolist(), strict=True):
        rates.setdefault(name, {})[str(share)] = round(rate, 4)
    return rates


def measure(name: str, options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Whatever is missing in `found`, which is about one pile."""
    unranked = [ranking for ranking in options.rankings if ranking not in found.get("rankings", {})]
    untrained = [ranking for ranking in options.rankings if ranking not in found.get("success", {})]
    needed = sorted({*unranked, *untrained}, key=options.rankings.index) if options.success else unranked
    if not needed:
        return
    data = open_task(name, options.piles, options.seed, options.pile)
    assert data.supplementary is not None
    kinds = kinds_of(data.supplementary)
    bad = np.isin(kinds, BAD_KINDS)
    # Each ranking has a generator of its own, so that it does not depend on which others are measured.
    generators = {ranking: np.random.default_rng((options.seed, index)) for index, ranking in enumerate(RANKINGS)}
    scores = {ranking: RANKINGS[ranking](data, bad, generators[ranking]) for ranking in needed}
    for ranking, own in scores.items():
        found.setdefault("rankings", {})[ranking] = precision(own, kinds)
    if options.success:
        trained = success(data.supplementary, {ranking: scores[ranking] for ranking in untrained}, options)
        found["success"] = {**trained, **found.get("success", {})}
        found["trained"] = {key: getattr(options, key) for key in ("iterations", "ensemble", "episodes")}


def table(results: dict[str, Any]) -> str:
    """Precision by pile and ranking, and how many episodes of each kind `score` drops, or else the first ranking."""
    names = [ranking for ranking in RANKINGS if all(ranking in found["rankings"] for found in results.values())]
    kinds = (*BAD_KINDS, "second", "clean")
    rows = [["pile", *names, *kinds], ["---"] * (1 + len(names) + len(kinds))]
    for task, found in results.items():
        dropped = found["rankings"]["score" if "score" in names else names[0]]["dropped"]
        of_kind = ["{} of {}".format(*dropped.get(kind, [0, 0])) for kind in kinds]
        rows.append([task, *(f"{found['rankings'][ranking]['precision']:.2f}" for ranking in names), *of_kind])
    means = [np.mean([found["rankings"][ranking]["precision"] for found in results.values()]) for ranking in names]
    rows.append([f"mean of {len(results)}", *(f"**{mean:.3f}**" for mean in means), *[""] * len(kinds)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def success_table(results: dict[str, Any]) -> str:
    """Mean success over the piles, by ranking and kept share."""
    trained = [found["success"] for found in results.values() if "success" in found]
    names = [ranking for ranking in RANKINGS if any(ranking in rates for rates in trained)]
    rows = [["kept", *(f"{share:.0%}" for share in SHARES)], ["---"] * (1 + len(SHARES))]
    for name in names:
        own = [{**rates[name], **rates[WHOLE]} for rates in trained if name in rates]
        rows.append([name, *(f"{np.mean([rates[str(share)] for rates in own]):.2f}" for share in SHARES)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", default=[f"{name}/mixed" for name in SCRIPTED], help="piles to measure")
    add("--rankings", nargs="+", default=list(RANKINGS), choices=list(RANKINGS))
    add("--piles", type=Path, default=Path("piles"), help="folder of the piles, made where they are missing")
    add("--out", type=Path, default=Path(__file__).with_name("curation.json"))
    add("--seed", type=int, default=0)
    add("--pile", type=int, default=200, help="episodes of a pile")
    add("--success", action="store_true", help="also train and evaluate")
    add("--iterations", type=int, default=25_000)
    add("--ensemble", type=int, default=5)
    add("--episodes", type=int, default=50, help="episodes per evaluation")
    add("--table", action="store_true", help="print what was measured")
    options = parser.parse_args(arguments)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.table:
        print(table(results), success_table(results), sep="\n\n")
        return
    for name in options.tasks:
        measure(name, options, results.setdefault(name, {}))
        write_json(options.out, results)
        print(name, {ranking: of["precision"] for ranking, of in results[name]["rankings"].items()}, flush=True)


if __name__ == "__main__":
    main()
