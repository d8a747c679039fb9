"""Nearby: clone the union, each row by how near its state is to one of the expert's batch.

    w(s, a) = exp( -min_E |s - s_E|^2 / width^2 )

The distance is to the nearest state of the expert rows in the same batch, so there is nothing to train but the policy.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms import About, Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.learner import Learner
from demosift.learning.networks import Policy
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner
    expert: Float[Array, "batch obs"]  # the states of the last batch


@algorithm
class Nearby:
    """Clone the rows whose states are near the expert's."""

    name: ClassVar[str] = "nearby"
    about: ClassVar[About] = About("Nearby", "clones what is near the expert's states")

    learning_rate: float = 3e-4
    width: float = 1.0
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        expert = jnp.zeros((self.batch_size, batch.expert.obs.shape[-1]))
        return State(init_cloner(batch, self.hidden, key, self.cloner), expert)

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        weight = self.weight(batch.expert.obs, batch.union.obs)
        policy, loss = clone(state.policy, batch.union, weight, self.learning_rate, iteration, self.cloner)
        return State(policy, batch.expert.obs), {"policy_loss": loss, "weight_mean": jnp.mean(weight)}

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return self.weight(state.expert, rows.obs)

    def weight(self, expert: Float[Array, "batch obs"], obs: Float[Array, "rows obs"]) -> Float[Array, "rows"]:
        distance = jnp.sum((obs[:, None] - expert[None]) ** 2, axis=-1)
        return jnp.exp(-jnp.min(distance, axis=1) / self.width**2)
