"""SEABO (Lyu et al., ICLR 2024): a row's reward is how near it is to the nearest row of the expert; then IQL.

    r = alpha exp(-beta d / |A|),   d = min_E ||(s,a,s') - (s_E,a_E,s'_E)||

The search is exact: with an approximate one the authors lose half of their score. It is in the units of the data, not
normalised, as in the authors' code; actions are in [-1, 1], and discrete ones are one-hot. Where nobody knows what the
expert did, d is the distance of (s,s'), and the supplementary rows alone are learned from. The expert's own rows are at
distance zero, so they have the largest reward, alpha; the authors' expert is part of the data set, so theirs do too.

Rewards are positive, so an episode that goes on is worth more than one that ends, and a policy may circle in front of a
goal that ends it. With `bias=alpha`, as the authors have it for AntMaze, every step away from the expert costs instead.

The step is that of `iql`, where its order and deviations are. Another one: the authors clone by the weighted squared
error, which is `loss="squared"` here; the default is the likelihood, which discrete actions can have too.
"""

from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.iql import CLONER, State, init_state, iteration_work, learn, weigh_rows
from demosift.learning.about import About, Work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import Cloner
from demosift.learning.neighbours import find_nearest
from demosift.learning.networks import Policy
from demosift.learning.rewards import made_once, with_known_actions, with_rewards
from demosift.types import Demonstrations, Transitions


def searched(rows: Transitions, actions: bool) -> Float[np.ndarray, "rows columns"]:
    """What distances are measured in: (s,a,s'), or (s,s')."""
    parts = (rows.obs, rows.action, rows.next_obs) if actions else (rows.obs, rows.next_obs)
    return np.concatenate([part.astype(np.float64) for part in parts], axis=1)


def distances(data: Demonstrations) -> Float[np.ndarray, "rows"]:
    """d / |A| of every row of the union. An expert's row is its own nearest."""
    reference = searched(data.expert.transitions, data.expert_actions)
    found = np.zeros(len(reference))
    if data.supplementary is not None:
        rows = searched(data.supplementary.transitions, data.expert_actions)
        found = np.concatenate([found, find_nearest(rows, reference, 1)[1][:, 0]])
    return found / data.expert.action_dim


def nearness(distance: Float[Array, "rows"], alpha: float, beta: float) -> Float[Array, "rows"]:
    return alpha * jnp.exp(-beta * distance)


@algorithm
class SEABO:
    """IQL on rewards by the distance from the nearest row of the expert."""

    name: ClassVar[str] = "seabo"
    about: ClassVar[About] = About("SEABO", "IQL, rewarded for being near a row of the expert")
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False
    needs_expert_actions: ClassVar[bool] = False

    alpha: float = 1.0
    beta: float = 0.5
    bias: float = 0.0  # subtracted from every reward; the authors' is 1 for AntMaze
    expectile: float = 0.7
    temperature: float = 3.0
    discount: float = 0.99
    target_rate: float = 0.005
    learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = CLONER

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        """The data with distances in the place of rewards: members may differ in alpha and beta."""
        return with_known_actions(with_rewards(data, made_once(self.name, data, folder, distances)))

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return init_state(batch, self.hidden, key, self.cloner)

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        return learn(self, state, batch.union, self.reward(batch.union.reward), iteration)

    def reward(self, distance: Float[Array, "rows"]) -> Float[Array, "rows"]:
        return nearness(distance, self.alpha, self.beta) - self.bias

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return weigh_rows(state, rows, self.temperature)

    def work(self) -> list[Work]:
        return iteration_work(self.batch_size, self.hidden)
