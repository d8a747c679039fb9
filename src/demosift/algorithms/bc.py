"""Behavioural cloning on the expert set alone: the baseline that ignores the supplementary data.

    min_pi  -mean_E log pi(a|s)                                                   (paper, eq. 1)

The paper's code holds no BC run, and an unused deterministic policy beside the tanh-Gaussian one; this is the natural
reading: the same policy class, learning rate and batch as NBCU and WBCU.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.interface import Batch, Metrics, algorithm
from demosift.learner import Learner, descend, start
from demosift.losses import weighted_loss
from demosift.networks import Policy, glorot_uniform, init_policy
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner


def init_cloner(batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray) -> Learner:
    """The policy of BC, NBCU and WBCU: Glorot-uniform in every layer, unlike DemoDICE's (as in the paper's code)."""
    return start(init_policy(key, batch.union.obs, batch.union.action, hidden, glorot_uniform))


def clone(
    policy: Learner, rows: Transitions, weight: Float[Array, "rows"], learning_rate: float
) -> tuple[Learner, Float[Array, ""]]:
    """One step down the weighted loss on these rows."""

    def loss(params: Policy) -> Float[Array, ""]:
        return weighted_loss(weight, jnp.sum(params.log_prob(rows.obs, rows.action), axis=-1))

    value, gradient = jax.value_and_grad(loss)(policy.params)
    return descend(policy, gradient, learning_rate), value


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
