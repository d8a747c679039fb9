"""Recording: a policy's deterministic episodes as a dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demosift.policy import Actor
from demosift.ranges import EPISODES, SEED
from demosift.simulation.simulate import Episode, Job, Progress, episode_seeds, rollout
from demosift.types import Dataset, EnvironmentSpec, InputError, Transitions


def record(
    policy: Actor,
    episodes: int,
    env: EnvironmentSpec | None = None,
    seed: int = 0,
    member: int = 0,
    num_workers: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """That many episodes of one member, in the environment stored with the policy unless another is given."""
    EPISODES.check("record: episodes", episodes)
    SEED.check("record: seed", seed)
    spec = env or policy.environment
    if spec is None:
        raise InputError("the policy does not say which environment it is for: name one")
    jobs = [Job(member, episode_seed) for episode_seed in episode_seeds(episodes, "record", seed)]
    recorded = rollout(policy, spec, jobs, num_workers, record=True, progress=progress)
    return as_dataset(recorded, spec, {"seed": seed})


def as_dataset(episodes: Sequence[Episode], spec: EnvironmentSpec, attributes: Mapping[str, Any]) -> Dataset:
    """Recorded episodes, joined in order."""
    parts = [episode.transitions for episode in episodes if episode.transitions is not None]
    transitions = Transitions(*map(np.concatenate, zip(*parts, strict=True)))
    timeout = np.zeros(len(transitions.reward), bool)
    timeout[np.cumsum([episode.length for episode in episodes]) - 1] = [not episode.terminal for episode in episodes]
    return Dataset(transitions, timeout, spec, attributes=attributes)
