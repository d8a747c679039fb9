"""Does a replay mix ways of moving? NBCU on parts of it: `python results/paper/gaits.py sac/hopper` (8 minutes)."""

import argparse
from pathlib import Path

import numpy as np

import demosift as ds
from demosift.data import read_dataset
from demosift.policy import Policy
from demosift.tasks.record import record
from demosift.types import Demonstrations

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="what `demosift collect` wrote for one environment")
parser.add_argument("--every", type=int, default=5, help="take every so many-th episode (default: 5)")
parser.add_argument("--iterations", type=int, default=20_000)
options = parser.parse_args()

policy = Policy.load(options.folder / "expert.safetensors")
assert policy.environment is not None
pool = record(policy, 20, policy.environment)
expert = pool.take(slice(0, int(pool.episode_ends[0])))
level = pool.returns().mean()
replay = read_dataset(options.folder / "replay.hdf5")
episodes = np.arange(replay.num_episodes)[:: options.every]
returns = replay.returns()[episodes]
good, late = returns > 0.9 * level, np.arange(len(episodes)) >= 0.8 * len(episodes)
parts = {
    "all": np.ones(len(episodes), bool),
    "above 90% of the expert's return": good,
    "the last fifth": late,
    "the last fifth, above 90%": good & late,
}
lengths = (replay.episode_ends - replay.episode_starts)[episodes]
print(f"{lengths[good].sum() / lengths.sum():.0%} of the rows are of episodes above 90% of the expert's return")
for name, chosen in parts.items():
    spans = zip(replay.episode_starts[episodes[chosen]], replay.episode_ends[episodes[chosen]], strict=True)
    pile = replay.take(np.concatenate([np.arange(*span) for span in spans]))
    run = ds.fit(ds.NBCU(), Demonstrations(expert, pile), seeds=2, iterations=options.iterations)
    evaluation = ds.evaluate(run, policy.environment, episodes=10, seed=5)
    print(f"{name}: {pile.num_episodes} episodes, returns {evaluation.returns.mean(axis=1).round()}", flush=True)
