"""Which episodes of a pile to keep, and what a policy trained on them is worth.

`python results/robot/curation.py --piles DIR` makes every pile (`demosift task ENV/mixed`) in DIR, ranks its episodes
in several ways, and writes which of the worst 30% are truly bad. With `--success` it also clones the best 10 to 100%
of the episodes by every ranking, all in one program, and evaluates the policies. Results go to curation.json beside
this file after every step; what is there is not measured again, and each ranking is kept beside its pile, too (delete
those of a pile to rank it anew). `--table` prints the results, `--figure` draws success.
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
from demosift.data.episodes import episodes_at
from demosift.data.rows import DatasetRows
from demosift.files import write_json
from demosift.learning.cloning import ROBUST
from demosift.learning.fit import fit
from demosift.report.drawing import PALETTE, figure, save
from demosift.results.scores import merit
from demosift.sift.agreement import measure_agreement
from demosift.sift.scoring import score
from demosift.simulation.evaluation import evaluate
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.tasks.operators import BAD, BAD_KINDS
from demosift.tasks.recipes import make_task, write_task
from demosift.types import Dataset, Demonstrations

WHOLE = "all"
SHARES = tuple(round(share / 10, 1) for share in range(1, 11))
DECISIONS = 7, 6, 7  # of a person: about the best, the middle and the worst

Score = Float[np.ndarray, "episodes"]


def by_contrast(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """The mean log-weight of `demosift score`, with the five expert episodes."""
    assert data.supplementary is not None
    found = score(data.expert, data.supplementary)
    return found.episodes()["log_weight"][found.num_expert_episodes :]


def by_score(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """The rank that `demosift score` gives: two looks, agreement, and early stops last."""
    assert data.supplementary is not None
    found = score(data.expert, data.supplementary)
    return -found.episodes()["rank"][found.num_expert_episodes :].astype(np.float64)


def by_agreement(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """Without an expert: how well an episode agrees with the others."""
    assert data.supplementary is not None
    return -measure_agreement(DatasetRows(data.supplementary)).rank.astype(np.float64)


def by_nobody(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """As `demosift score --expert none` orders all episodes: by agreement, and by weights against those that agree."""
    assert data.supplementary is not None
    columns = score(None, data.supplementary).episodes()
    best = merit(columns["log_weight"], columns.get("finish"), support=columns["support"])
    return best[np.argsort(columns["number"])]


def by_triage(data: Demonstrations, bad: Bool[np.ndarray, "episodes"], rng: np.random.Generator) -> Score:
    """Without an expert: a person decides about twenty episodes, which become the next round's expert and bad sets.

    They are those that a person sees first on the page: the best and the worst by agreement, and the middle. The person
    is never wrong. What was kept ranks first, what was dropped last, and everything else as `score` ranks it.
    """
    pile = data.supplementary
    assert pile is not None
    order = np.argsort(measure_agreement(DatasetRows(pile)).rank)
    middle = (len(order) - DECISIONS[1]) // 2
    seen = np.concatenate([order[: DECISIONS[0]], order[middle : middle + DECISIONS[1]], order[-DECISIONS[2] :]])
    kept, dropped = seen[~bad[seen]], seen[bad[seen]]
    rest = np.setdiff1d(order, seen)
    if not len(kept):
        raise SystemExit("triage: none of the episodes that a person would see first is good")
    found = score(choose(pile, kept), choose(pile, rest), bad=choose(pile, dropped) if len(dropped) else None)
    scores = np.empty(len(order))
    scores[kept], scores[dropped] = 1.0, -len(order) - 1.0
    scores[rest] = -found.episodes()["rank"][found.num_expert_episodes :]
    return scores


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
    "triage": by_triage,
    "nobody": by_nobody,
}


def kinds_of(pile: Dataset) -> np.ndarray:
    """The kind of each episode: the origin of its rows, except that one with any idle row is `idle`."""
    assert pile.origin is not None
    names = np.array(pile.origin.names)[pile.origin.code]
    bounds = zip(pile.episode_starts, pile.episode_ends, strict=True)
    return np.array([min(set(names[start:end]) - {"interrupted"}) for start, end in bounds])


def place(name: str, piles: Path, seed: int, episodes: int) -> Path:
    return piles / f"{name.replace('/', '-')}-{episodes}-{seed}"


def open_task(name: str, piles: Path, seed: int, episodes: int) -> Demonstrations:
    folder = place(name, piles, seed, episodes)
    if not folder.exists():
        write_task(make_task(name, seed, episodes=episodes), folder)
    return Demonstrations(*(read_dataset(folder / f"{part}.hdf5") for part in ("expert", "supplementary")))


def best(pile: Dataset, scores: Score, share: float) -> Dataset:
    """That share of the episodes, the best by their scores, in the pile's order."""
    return choose(pile, np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))])


def choose(pile: Dataset, episodes: np.ndarray) -> Dataset:
    """Some episodes, in the pile's order."""
    return episodes_at(pile, np.sort(episodes))


def precision(scores: Score, kinds: np.ndarray) -> dict[str, Any]:
    """What the worst 30% are: which share of them is bad, and how many of each kind are among them."""
    dropped = np.argsort(scores, kind="stable")[: round(BAD * len(scores))]
    of_kind = {kind: [int((kinds[dropped] == kind).sum()), int((kinds == kind).sum())] for kind in np.unique(kinds)}
    return {"precision": round(float(np.isin(kinds[dropped], BAD_KINDS).mean()), 4), "dropped": of_kind}


def success(pile: Dataset, rankings: dict[str, Score], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The success of policies cloned from what each ranking keeps. That of the whole pile stands under `all`."""
    cases = {(name, share): scores for name, scores in rankings.items() for share in options.shares if share < 1}
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
    scores, folder = {}, place(name, options.piles, options.seed, options.pile)
    for ranking in needed:
        kept = folder.with_name(f"{folder.name}-{ranking}.json")
        if not kept.exists():
            write_json(kept, RANKINGS[ranking](data, bad, generators[ranking]).tolist())
        scores[ranking] = np.array(json.loads(kept.read_text()))
    for ranking, own in scores.items():
        found.setdefault("rankings", {})[ranking] = precision(own, kinds)
    if options.success:
        trained = success(data.supplementary, {ranking: scores[ranking] for ranking in untrained}, options)
        found["success"] = {**trained, **found.get("success", {})}
        found["trained"] = {key: getattr(options, key) for key in ("iterations", "ensemble", "episodes", "shares")}


def table(results: dict[str, Any]) -> str:
    """Precision by pile and ranking; and how many of each kind `score` drops, or agreement where there is no score."""
    names = [ranking for ranking in RANKINGS if any(ranking in found["rankings"] for found in results.values())]
    kinds = (*BAD_KINDS, "second", "clean")
    rows = [["pile", *names, *kinds], ["---"] * (1 + len(names) + len(kinds))]
    for task, found in results.items():
        known = found["rankings"]
        dropped = next(known[ranking] for ranking in ("score", "agreement", *names) if ranking in known)["dropped"]
        of_kind = ["{} of {}".format(*dropped.get(kind, [0, 0])) for kind in kinds]
        rows.append([task, *(f"{known[name]['precision']:.2f}" if name in known else "" for name in names), *of_kind])
    by = {name: [found["rankings"][name] for found in results.values() if name in found["rankings"]] for name in names}
    means = [f"**{np.mean([own['precision'] for own in of]):.3f}** of {len(of)}" for of in by.values()]
    rows.append(["mean", *means, *[""] * len(kinds)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def mean_success(results: dict[str, Any]) -> dict[str, dict[float, tuple[float, float, int]]]:
    """By ranking and share: the mean success, that of the truth on the same piles, and how many they are."""
    trained = [found["success"] for found in results.values() if "success" in found]
    means: dict[str, dict[float, tuple[float, float, int]]] = {}
    for name in RANKINGS:
        own = [
            ({**rates[name], **rates[WHOLE]}, {**rates["truth"], **rates[WHOLE]}) for rates in trained if name in rates
        ]
        for share in sorted({float(share) for rates, _ in own for share in rates}):
            pairs = [(rates[str(share)], truth[str(share)]) for rates, truth in own if str(share) in rates]
            mean, of_truth = np.mean(pairs, axis=0).tolist()
            means.setdefault(name, {})[share] = mean, of_truth, len(pairs)
    return means


def success_table(results: dict[str, Any]) -> str:
    """Mean success by ranking and kept share; and what the kept 70% are worth, the truth on the same piles being 1."""
    means, target = mean_success(results), 1 - BAD
    shares = sorted({share for of in means.values() for share in of})
    head = ["kept", "piles", *(f"{share:.0%}" for share in shares), f"of truth at {target:.0%}"]
    rows = [head, ["---"] * len(head)]
    for name, of in means.items():
        mean, truth, piles = of[target]
        own = (f"{of[share][0]:.3f}" if share in of else "" for share in shares)
        rows.append([name, str(piles), *own, f"{mean / max(truth, 1e-9):.1%}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(results: dict[str, Any], path: Path) -> None:
    """Mean success against the share of the episodes that each ranking keeps; and pile by pile where it keeps 70%."""
    trained = {name: found["success"] for name, found in results.items() if "success" in found}
    colours = dict(zip([*RANKINGS, WHOLE], PALETTE, strict=False))
    with figure(9, 3.6) as drawn:
        means, piles = drawn.subplots(1, 2, width_ratios=[2, 3])
        for name, of in mean_success(results).items():
            means.plot([100 * share for share in of], [of[share][0] for share in of], marker="o", color=colours[name])
        means.set(xlabel="episodes kept, %", ylabel="success, mean over piles", ylim=(0, 1.02))
        for place_of, (name, colour) in enumerate(colours.items()):
            share = str(1.0 if name == WHOLE else 1 - BAD)
            own = [(rates[name][share], at) for at, rates in enumerate(trained.values()) if name in rates]
            if own:
                height = [at + 0.12 * (place_of - 3) for _, at in own]  # so that equal ones can be seen
                piles.plot([rate for rate, _ in own], height, "o", color=colour, label=name)
        piles.set(xlabel=f"success, {1 - BAD:.0%} kept", xlim=(0, 1.02))
        piles.set_yticks(range(len(trained)), [name.removesuffix("/mixed") for name in trained])
        piles.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        save(drawn, path)


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
    add("--shares", nargs="+", type=float, default=list(SHARES), help="of the episodes that are kept and cloned")
    add("--iterations", type=int, default=25_000)
    add("--ensemble", type=int, default=5)
    add("--episodes", type=int, default=50, help="episodes per evaluation")
    add("--table", action="store_true", help="print what was measured")
    add("--figure", type=Path, help="draw success against the kept share, as .svg and .png")
    options = parser.parse_args(arguments)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.table:
        print(table(results))
        if any("success" in found for found in results.values()):
            print("\n" + success_table(results))
        return
    if options.figure:
        draw(results, options.figure)
        return
    for name in options.tasks:
        measure(name, options, results.setdefault(name, {}))
        write_json(options.out, results)
        print(name, {ranking: of["precision"] for ranking, of in results[name]["rankings"].items()}, flush=True)


if __name__ == "__main__":
    main()
