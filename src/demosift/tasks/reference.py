"""Measure the reference returns that normalised scores use, and write them into `reference_returns.json`.

`python -m demosift.tasks.reference random` (or `expert`), in a source tree; the numbers are committed.
"""

import argparse
import math
from pathlib import Path

import numpy as np

from demosift.files import write_json
from demosift.policy import Actor, RandomPolicy
from demosift.simulation import environments
from demosift.simulation.shipped import shipped_policy
from demosift.simulation.simulate import Job, episode_seeds, rollout
from demosift.types import EnvironmentSpec


def measure_reference(
    policy: Actor, spec: EnvironmentSpec, episodes: int = 100, seed: int = 0
) -> dict[str, float | int]:
    """Mean return of fresh episodes, its standard error, and what they were."""
    jobs = [Job(0, episode_seed) for episode_seed in episode_seeds(episodes, "reference", seed)]
    results = rollout(policy, spec, jobs)
    returns = np.array([episode.return_ for episode in results])
    return {
        "mean": float(returns.mean()),
        "standard_error": float(returns.std(ddof=1) / math.sqrt(episodes)),
        "mean_length": float(np.mean([episode.length for episode in results])),
        "episodes": episodes,
        "seed": seed,
    }


def main() -> None:
    """Measure the random or the shipped expert policy and update the committed file."""
    parser = argparse.ArgumentParser(prog="python -m demosift.tasks.reference", description=main.__doc__)
    parser.add_argument("who", choices=["random", "expert"])
    parser.add_argument(
        "--envs", nargs="+", choices=list(environments.SHORT_NAMES), default=[*environments.SHORT_NAMES]
    )
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    references = environments.reference_returns()
    command = f"{parser.prog} {options.who} --episodes {options.episodes} --seed {options.seed}"
    for env in options.envs:
        spec = environments.resolve(env)
        policy = RandomPolicy(spec) if options.who == "random" else shipped_policy(env, "expert")
        result = {**measure_reference(policy, spec, options.episodes, options.seed), "command": command}
        references["demosift"].setdefault(env, {"random": None, "expert": None})[options.who] = result
        print(f"{env}: {result['mean']:.1f} +- {result['standard_error']:.1f}")
    write_json(Path(environments.__file__).with_name("reference_returns.json"), references)


if __name__ == "__main__":
    main()
