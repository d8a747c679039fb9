"""Cloning: a policy, and one step down its weighted loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import weighted_loss
from demosift.learning.networks import Policy, glorot_uniform, init_policy
from demosift.types import Transitions


def init_cloner(batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray) -> Learner:
    """The policy of BC, NBCU and WBCU: Glorot-uniform in every layer, as in the paper's code and unlike DemoDICE's."""
    return start(init_policy(key, batch.union.obs, batch.union.action, hidden, glorot_uniform))


def clone(
    policy: Learner, rows: Transitions, weight: Float[Array, "rows"], learning_rate: float
) -> tuple[Learner, Float[Array, ""]]:
    """One step down the weighted loss on these rows."""

    def loss(params: Policy) -> Float[Array, ""]:
        return weighted_loss(weight, jnp.sum(params.log_prob(rows.obs, rows.action), axis=-1))

    value, gradient = jax.value_and_grad(loss)(policy.params)
    return descend(policy, gradient, learning_rate), value
