"""Full replays with the recipe: `python results/recipe/full_replay.py OUT --replay DIR`, best on a GPU.

Every method with the robust recipe and five networks, on the replays that `demosift collect` wrote to DIR/ENV, as a
grid of `demosift reproduce full-replay` below OUT. `--weights` says where in the replay sift's weight is. `--gaits`
asks whether an agent changed its gait: it trains NBCU on parts of the replay, compares actions in near states between
good episodes of the same and of other times, and says where in time sift's weight is.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import ROBUST, scores
from rich.console import Console
from scipy.stats import spearmanr
from together import train

from demosift.data.episodes import episodes_at
from demosift.experiments.presets import Request, default_schedule
from demosift.experiments.reproduce import reproduce
from demosift.files import write_json
from demosift.learning.neighbours import find_nearest
from demosift.sift.method import Sift, best_episodes
from demosift.simulation import environments
from demosift.tasks.recipes import Sources, draw_task
from demosift.types import Dataset, Demonstrations

METHODS = ("sift", "bc", "nbcu", "wbcu-two-stage", "demodice")
FIFTHS = 5


def gaits(env: str, replay: str, seeds: int, iterations: int) -> dict[str, object]:
    """NBCU on parts of a replay, and how alike the good episodes of different times are."""
    own_sources = Sources(env, replay_folder=Path(replay, env))
    pool, whole = own_sources.replay
    spec = environments.resolve(env)
    expert, random = float(pool.returns().mean()), environments.reference_returns()["demosift"][env]["random"]["mean"]
    returns, ends = whole.returns(), whole.episode_ends
    good, late = returns >= 0.9 * expert, ends > 0.8 * len(whole)
    parts = {"all": returns > -np.inf, "good": good, "late": late, "late and good": late & good}
    parts["good, not late"] = good & ~late
    found: dict[str, object] = {"expert": expert, "episodes": {name: int(own.sum()) for name, own in parts.items()}}
    for name, own in parts.items():
        if own.sum() < 10:
            continue
        part = episodes_at(whole, np.flatnonzero(own)[:: max(1, int(own.sum()) // 400)])
        data = [draw_task(own_sources, "full-replay", seed) for seed in range(seeds)]
        data = [Demonstrations(each.expert, replace(part, origin=None)) for each in data]
        values = train("nbcu", data, spec, iterations, 20)
        found[name] = [None if v is None else round((v - random) / (expert - random), 3) for v in values]
        print(env, name, found["episodes"][name], found[name], flush=True)  # type: ignore[index]
    found["action_difference"] = likeness(whole, pool, np.flatnonzero(good))
    found["sift"] = [weighed(draw_task(own_sources, "full-replay", seed), returns, good) for seed in range(seeds)]
    print(env, "action difference", found["action_difference"], "sift", found["sift"], flush=True)
    return found


def weights(env: str, replay: str, seeds: int) -> list[dict[str, object]]:
    """`weighed` for every drawing of the expert's trajectory."""
    own_sources = Sources(env, replay_folder=Path(replay, env))
    pool, whole = own_sources.replay
    returns = whole.returns()
    good = returns >= 0.9 * pool.returns().mean()
    return [weighed(draw_task(own_sources, "full-replay", seed), returns, good) for seed in range(seeds)]


def weighed(data: Demonstrations, returns: np.ndarray, good: np.ndarray) -> dict[str, object]:
    """Where sift's weight is before the best episodes are chosen, and what these are.

    The shares of the weight that each fifth of the replay and its good episodes have; the share of rows that weigh a
    half or more; the rank correlation of the episodes' mean log-weights and returns; the best episodes' mean return.
    """
    assert data.supplementary is not None
    whole = Sift(most_rows=len(data.supplementary)).prepare(data, None)
    best = best_episodes(whole, Sift().most_rows)
    assert whole.weight is not None
    assert best.weight is not None
    own, first, ends = (
        whole.weight[len(data.expert) :],
        data.supplementary.episode_starts,
        data.supplementary.episode_ends,
    )
    share = np.add.reduceat(own, first) / own.sum()
    fifth = np.minimum((ends / ends[-1] * FIFTHS).astype(int), FIFTHS - 1)
    kept = np.add.reduceat(best.weight[len(data.expert) :] > 0, first)
    return {
        "fifths": np.bincount(fifth, share, FIFTHS).round(3).tolist(),
        "good": round(float(share[good].sum()), 3),
        "half": round(float(np.mean(own >= 0.5)), 3),
        "order": round(float(spearmanr(np.add.reduceat(np.log(own), first) / (ends - first), returns)[0]), 3),
        "best": round(float(np.average(returns, weights=kept))),
        "expert": round(float(data.expert.returns().mean())),
    }


def likeness(replay: Dataset, pool: Dataset, good: np.ndarray, rows: int = 4_000) -> dict[str, float]:
    """Root mean squared difference between actions of good episodes and of the expert in near states.

    By the time in which the episodes were collected; `expert` compares the expert's episodes with one another.
    """
    rng = np.random.default_rng(0)
    scale = pool.transitions.obs.std(axis=0) + 1e-3
    half = int(pool.episode_ends[pool.num_episodes // 2])
    reference = pool.take(slice(half))

    def difference(part: Dataset) -> float:
        chosen = rng.choice(len(part), min(rows, len(part)), replace=False)
        states, actions = part.transitions.obs[chosen] / scale, part.transitions.action[chosen]
        index, distance = find_nearest(states.astype(float), reference.transitions.obs / scale, 1)
        near = distance[:, 0] <= np.median(distance[:, 0])
        error = (reference.transitions.action[index[near, 0]] - actions[near]) ** 2
        return round(float(np.sqrt(error.mean())), 3)

    found = {"expert": difference(pool.take(slice(half, len(pool))))}
    times = replay.episode_ends[good] / len(replay)
    for fifth in range(FIFTHS):
        own = good[(times > fifth / FIFTHS) & (times <= (fifth + 1) / FIFTHS)]
        if len(own) >= 3:
            found[f"fifth {fifth + 1}"] = difference(episodes_at(replay, own))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--replay", required=True)
    parser.add_argument("--envs", nargs="+", default=list(environments.IN_THE_PAPER))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=25_000)
    parser.add_argument("--most-rows", type=int, default=100_000, help="of the replay, for sift to learn from")
    parser.add_argument("--gaits", action="store_true")
    parser.add_argument("--weights", action="store_true", help="only where sift's weight is")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.weights:
        for env in options.envs:
            write_json(options.out / f"weights-{env}.json", weights(env, options.replay, options.seeds))
        return
    if options.gaits:
        for env in options.envs:
            path = options.out / f"gaits-{env}.json"
            if not path.exists():
                write_json(path, gaits(env, options.replay, options.seeds, options.iterations))
        return
    request = Request(
        envs=tuple(options.envs),
        seeds=tuple(range(options.seeds)),
        iterations=options.iterations,
        schedule=default_schedule(options.iterations, options.iterations // 5, 10, 2),
        methods=tuple(options.methods),
        penalties=(1.0,),
        settings={
            **ROBUST,
            "sift.most_rows": options.most_rows,
            "demodice.batch_size": 256,
            "wbcu-two-stage.discriminator_iterations": 5_000,
        },
        ensemble=5,
        replay=options.replay,
    )
    reproduce("full-replay", options.out, request, console=Console(file=sys.stderr))
    summary = scores(options.out)
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
