"""Datasets as in Assumption 1, thousands at once: each trajectory is the expert's with probability eta.

The tabular learners see counts only: how many trajectories are in s and take a at step h. The counts of all steps
together are drawn directly, in their exact joint distribution: of the n trajectories in a state, a multinomial number
takes each action, and of those a multinomial number reaches each next state. So the time it takes does not depend on
the number of trajectories.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from demosift.theory.instances import Instance
from demosift.theory.mdp import MDP, Initial, Policy

Counts = Int[np.ndarray, "R H S A"]
Sizes = Int[np.ndarray, "R"]


@dataclass(frozen=True)
class Data:
    """R independent pairs of datasets: n_h(s, a) in the expert's and in the supplementary set."""

    expert: Counts
    supplementary: Counts

    @property
    def union(self) -> Counts:
        return self.expert + self.supplementary

    @property
    def num_expert(self) -> Sizes:
        """|D^E| of each pair, in trajectories."""
        return self.expert[:, 0].sum((-2, -1))


def roll_out(
    rng: np.random.Generator, mdp: MDP, policy: Policy, trajectories: Sizes, initial: Initial | None = None
) -> Counts:
    """The counts of R datasets from one policy [H, S, A], the r-th of `trajectories[r]` trajectories."""
    counts = np.empty((len(trajectories), mdp.horizon, mdp.num_states, mdp.num_actions), np.int64)
    state = rng.multinomial(trajectories, mdp.initial if initial is None else initial)
    for step in range(mdp.horizon):
        counts[:, step] = rng.multinomial(state, policy[step])
        if step + 1 < mdp.horizon:
            # Only what was visited is split further: with few trajectories most counts are zero.
            visited = np.nonzero(counts[:, step])
            split = rng.multinomial(counts[:, step][visited], mdp.transitions[step][visited[1:]])
            state = np.zeros_like(state)
            np.add.at(state, visited[0], split)
    return counts


def collect(rng: np.random.Generator, instance: Instance, eta: float, total: int, replicates: int) -> Data:
    """Assumption 1: `total` trajectories, each the expert's with probability `eta` and otherwise the behaviour's."""
    num_expert = rng.binomial(total, eta, replicates)
    mdp = instance.mdp
    return Data(
        expert=roll_out(rng, mdp, instance.expert, num_expert),
        supplementary=roll_out(rng, mdp, instance.behaviour, total - num_expert, instance.behaviour_initial),
    )
