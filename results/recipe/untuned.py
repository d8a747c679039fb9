"""Environments that no setting was tuned on: `python results/recipe/untuned.py OUT.json`, defaults untouched.

BC, NBCU, sift and the oracle (all with the robust recipe; sift and the oracle with five networks, the other two with
`--networks`) on noisy-expert and medium-expert tasks; OUT.json has the normalised score of every seed. `--methods`
measures some of them again and keeps what the file has of the others; `sift-alone` is sift whose expert has no
companions (demosift.sift.companions), and has the same score where it needs none. LunarLander,
whose actions are discrete, needs Box2D (`pip install box2d`); its expert clones Gymnasium's own heuristic from 200
episodes, and its medium policy from two.
"""

import argparse
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
from together import score_all, train

from demosift.experiments.prepare import with_clean_rows
from demosift.policy import Policy, RandomPolicy
from demosift.sift import union
from demosift.simulation import environments
from demosift.simulation.evaluation import evaluate
from demosift.tasks.recipes import Sources, draw_task
from demosift.tasks.record import record
from demosift.types import Dataset, Demonstrations, Transitions

ENVS = ("double-pendulum", "pusher", "humanoid", "LunarLander-v3")
RECIPES = ("noisy-expert", "medium-expert")
METHODS = ("bc", "nbcu", "sift", "oracle")
ALONE = "sift-alone"  # on request


@cache
def pools(env: str, size: int) -> tuple[Dataset, Dataset]:
    """Episodes of the expert and of the medium policy."""
    if env in environments.SHORT_NAMES:
        sources = Sources(env, pool=size)
        return sources.expert_pool, sources.medium_pool
    spec = environments.resolve(env)
    return tuple(record(policy, size, spec, seed=1) for policy in lunar_policies())  # type: ignore[return-value]


@cache
def lunar_policies() -> tuple[Policy, Policy]:
    """Policies that clone the heuristic: from many of its episodes, and from few."""
    from demosift.algorithms import BC
    from demosift.learning.fit import fit

    spec = environments.resolve("LunarLander-v3")
    return tuple(
        fit(BC(), Demonstrations(heuristic_episodes(count)), iterations=iterations, environment=spec).policy
        for count, iterations in ((200, 20_000), (2, 500))
    )  # type: ignore[return-value]


@cache
def heuristic_episodes(count: int) -> Dataset:
    from gymnasium.envs.box2d.lunar_lander import heuristic

    env = gymnasium.make("LunarLander-v3")
    rows: list[tuple] = []
    timeout: list[bool] = []
    for seed in range(count):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            action = heuristic(env.unwrapped, obs)
            new, reward, terminal, truncated, _ = env.step(action)
            rows.append((obs, np.eye(4, dtype=np.int8)[action], np.float32(reward), new, terminal))
            timeout.append(truncated and not terminal)
            obs, over = new, terminal or truncated
    names = Transitions._fields
    columns = dict(
        zip(("obs", "action", "reward", "next_obs", "terminal"), map(np.array, zip(*rows, strict=True)), strict=True)
    )
    return Dataset(
        Transitions(**{name: columns[name] for name in names}),
        np.array(timeout),
        environments.resolve("LunarLander-v3"),
    )


def make(env: str, recipe: str, seed: int, size: int) -> Demonstrations:
    expert, medium = pools(env, size)
    return draw_task(Sources(env, pool=size, recorded=expert, others={"medium": medium}), recipe, seed)


def itself(data: Demonstrations) -> Demonstrations:
    return data


def without_companions(data: Demonstrations) -> Demonstrations:
    """The data, in a process that scores with the expert's own episodes alone."""
    union.find_companions = lambda *given: None
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--envs", nargs="+", default=list(ENVS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=(*METHODS, ALONE))
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pool", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=25_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--networks", type=int, default=5, help="of BC and NBCU")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    seeds = range(options.seed, options.seed + options.seeds)
    for env in options.envs:
        spec = environments.resolve(env)
        arguments = [(env, recipe, seed, options.pool) for recipe in RECIPES for seed in seeds]
        data = [make(*each) for each in arguments]
        scored = score_all(itself, [(own,) for own in data])
        oracle = [Demonstrations(with_clean_rows(own.expert, own.supplementary), own.supplementary) for own in data]
        weighted = [replace(own, weight=weight) for own, (weight, _) in zip(data, scored, strict=True)]
        companions = [(summary["companions"] or {}).get("believed") for _, summary in scored]
        known = environments.reference_returns()["demosift"].get(env)
        if known is None:
            random = float(evaluate(RandomPolicy(spec), spec, episodes=100).returns.mean())
            expert = float(pools(env, options.pool)[0].returns().mean())
        else:
            random, expert = (known[who]["mean"] for who in ("random", "expert"))
        own: dict[str, dict[str, list[float | None]]] = {
            recipe: dict(results.get(env, {}).get(recipe, {})) for recipe in RECIPES
        }
        for method in options.methods:
            given = {"sift": weighted, "oracle": oracle}.get(method, data)
            if method == ALONE:
                again = score_all(without_companions, [(each,) for each in data])
                given = [replace(each, weight=weight) for each, (weight, _) in zip(data, again, strict=True)]
            name = {"oracle": "bc", ALONE: "sift"}.get(method, method)
            ensemble = options.networks if method in ("bc", "nbcu") else 5
            returns = train(name, given, spec, options.iterations, options.episodes, ensemble)
            scores = [None if one is None else round((one - random) / (expert - random), 4) for one in returns]
            for place, recipe in enumerate(RECIPES):
                own[recipe][method] = scores[place * options.seeds : (place + 1) * options.seeds]
        advised = [summary["diagnosis"]["advised"] for _, summary in scored]
        medium = float(pools(env, options.pool)[1].returns().mean())
        results[env] = {"random": random, "expert": expert, "medium": medium, "advised": advised, **own}
        results[env]["companions"] = companions  # None: none were needed; else whether they were believed
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        for recipe in RECIPES:
            means = {m: round(float(np.mean([-1.0 if s is None else s for s in v])), 3) for m, v in own[recipe].items()}
            print(env, recipe, means, flush=True)


if __name__ == "__main__":
    main()
