"""Naive behavioural cloning on the union: every sample counts the same.

min_pi  -mean_U log pi(a|s)                                                   (paper, Algorithm 1)
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.bc import State
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.networks import Policy
from demosift.types import Transitions


@algorithm
class NBCU:
    """Naive behavioural cloning of the union."""

    name: ClassVar[str] = "nbcu"
    needs_supplementary: ClassVar[bool] = True
    mean_limit: ClassVar[float] = 7.0

    learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        weight = jnp.ones(self.batch_size)
        policy, loss = clone(state.policy, batch.union, weight, self.learning_rate)
        return State(policy), {"policy_loss": loss}

    def policy(self, state: State) -> Policy:
        return state.policy.params

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return jnp.ones(rows.reward.shape)
