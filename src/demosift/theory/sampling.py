"""Datasets as in Assumption 1, thousands at once: each trajectory is the expert's with probability eta.

The tabular learners see counts only: how many trajectories are in s and take a at step h. The counts of all steps
together are drawn directly, in their exact joint distribution: of the n trajectories in a state, a multinomial number
takes each action, and of those a multinomial number reaches each next state. So the time does not depend on how many
trajectories a dataset holds.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from demosift.theory.instances import Instance
from demosift.theory.mdp import MDP, Initial, Policy

Counts = Int[np.ndarray, "R H S A"]


@dataclass(frozen=True)
class Data:
    """R independent pairs of datasets: n_h(s, a) in the expert's and in the supplementary set."""

    expert: Counts
    supplementary: Counts

    @property
    def union(self) -> Counts:
        return self.expert + self.supplementary

    @property
    def num_expert(self) -> Int[np.ndarray, "R"]:
        """|D^E| of each, in trajectories."""
        return self.expert[:, 0].sum((-2, -1))

    @property
    def num_supplementary(self) -> Int[np.ndarray, "R"]:
        return self.supplementary[:, 0].sum((-2, -1))


def roll_out(
    rng: np.random.Generator,
    mdp: MDP,
    policy: Policy,
    trajectories: Int[np.ndarray, "R"],
    initial: Initial | None = None,
) -> Counts:
    """The counts of datasets of `trajectories[r]` trajectories each, of one policy [H, S, A]."""
    trajectories = np.asarray(trajectories)
    counts = np.empty((len(trajectories), mdp.horizon, mdp.num_states, mdp.num_actions), np.int64)
    state = rng.multinomial(trajectories, mdp.initial if initial is None else initial)
    for step in range(mdp.horizon):
        counts[:, step] = rng.multinomial(state, policy[step])
        if step + 1 < mdp.horizon:
            state = _next_states(rng, counts[:, step], mdp.transitions[step])
    return counts


def _next_states(rng: np.random.Generator, counts: np.ndarray, transitions: np.ndarray) -> np.ndarray:
    """Only what was visited is split further: with few trajectories most counts are zero."""
    reached = np.zeros((len(counts), transitions.shape[-1]), np.int64)
    replicate, state, action = np.nonzero(counts)
    split = rng.multinomial(counts[replicate, state, action], transitions[state, action])
    np.add.at(reached, replicate, split)
    return reached


def collect(rng: np.random.Generator, instance: Instance, eta: float, total: int, replicates: int) -> Data:
    """Assumption 1: `total` trajectories, each the expert's with probability `eta` and else the behaviour's."""
    num_expert = rng.binomial(total, eta, replicates)
    mdp = instance.mdp
    return Data(
        expert=roll_out(rng, mdp, instance.expert, num_expert),
        supplementary=roll_out(rng, mdp, instance.behaviour, total - num_expert, instance.behaviour_initial),
    )
