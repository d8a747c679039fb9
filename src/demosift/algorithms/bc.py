"""Behavioural cloning on the expert set alone: the baseline that ignores the supplementary data.

    min_pi  -mean_E log pi(a|s)                                                   (paper, eq. 1)

The paper's code holds no BC run, and an unused deterministic policy beside the tanh-Gaussian one; this is the natural
reading: the same policy class, learning rate and batch as NBCU and WBCU.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.learner import Learner
from demosift.learning.networks import Policy
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner


@algorithm
class BC:
    """Behavioural cloning of the expert set."""

    name: ClassVar[str] = "bc"
    needs_supplementary: ClassVar[bool] = False
    mean_limit: ClassVar[float] = 7.0

    learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        weight = jnp.ones(self.batch_size)
        policy, loss = clone(state.policy, batch.expert, weight, self.learning_rate)
        return State(policy), {"policy_loss": loss}

    def policy(self, state: State) -> Policy:
        return state.policy.params

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return jnp.ones(rows.reward.shape)
