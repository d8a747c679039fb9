"""The discriminator of (s, a): its step, and the weight that its logit becomes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch, Metrics
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import (
    PENALTY_RATES,
    RATIOS,
    between_expert_and_union,
    discriminator_loss,
    effective_share,
    gradient_penalty,
)
from demosift.learning.networks import (
    Initialiser,
    Perceptron,
    glorot_uniform,
    init_scalar_network,
    scalar,
    state_action,
    value_and_slope,
)

Logits = Float[Array, "rows"]


def init_discriminator(
    batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray, last: Initialiser = glorot_uniform, last_bias: bool = True
) -> Learner:
    x = state_action(batch.union.obs, batch.union.action)
    return start(init_scalar_network(key, x.shape[-1], hidden, last, last_bias))


def discriminate(
    discriminator: Learner, batch: Batch, learning_rate: float, coefficient: float, penalty: str
) -> tuple[Learner, Float[Array, ""], Logits, Logits]:
    """One step of the discriminator. Returns it with its loss and the logits of both batches from before the step."""
    x_expert = state_action(batch.expert.obs, batch.expert.action)
    x_union = state_action(batch.union.obs, batch.union.action)
    between = between_expert_and_union(batch.uniform[0], x_expert, x_union)

    def loss(network: Perceptron):
        z_expert, z_union = jnp.split(scalar(network, jnp.concatenate([x_expert, x_union])), 2)
        z_between, slope = value_and_slope(network, between)
        penalised = gradient_penalty(PENALTY_RATES[penalty](z_between), slope)
        return discriminator_loss(z_expert, z_union) + coefficient * penalised, (z_expert, z_union)

    (value, (z_expert, z_union)), gradient = jax.value_and_grad(loss, has_aux=True)(discriminator.params)
    return descend(discriminator, gradient, learning_rate), value, z_expert, z_union


def ratio_weight(z: Logits, ratio: str, threshold: float) -> Float[Array, "rows"]:
    """c/(1-c) where it reaches the threshold (the paper's delta), else zero."""
    weight = RATIOS[ratio](z)
    return jnp.where(weight >= threshold, weight, 0.0)


def weight_metrics(weight: Float[Array, "rows"]) -> Metrics:
    return {"weight_mean": jnp.mean(weight), "effective_share": effective_share(weight)}
