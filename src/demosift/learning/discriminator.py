"""The discriminator: its step, on (s, a) or other inputs, and the weight made of its logit."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch, Metrics
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import (
    PENALTY_RATES,
    RATIOS,
    between_expert_and_union,
    discriminator_accuracy,
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
from demosift.types import Transitions

Logits = Float[Array, "rows"]


def init_discriminator(
    batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray, last: Initialiser = glorot_uniform, last_bias: bool = True
) -> Learner:
    x = state_action(batch.union.obs, batch.union.action)
    return start(init_scalar_network(key, x.shape[-1], hidden, last, last_bias))


def discriminate(
    discriminator: Learner, batch: Batch, learning_rate: float, coefficient: float, penalty: str
) -> tuple[Learner, Logits, Metrics]:
    """One step of the discriminator. Returns it with the union's logits and the metrics from before the step."""
    x_expert = state_action(batch.expert.obs, batch.expert.action)
    x_union = state_action(batch.union.obs, batch.union.action)
    between = between_expert_and_union(batch.uniform[0], x_expert, x_union)
    return tell_apart(discriminator, x_expert, x_union, between, learning_rate, coefficient, penalty)


def tell_apart(
    discriminator: Learner,
    x_expert: Float[Array, "rows inputs"],
    x_union: Float[Array, "rows inputs"],
    between: Float[Array, "points inputs"],
    learning_rate: float,
    coefficient: float,
    penalty: str,
) -> tuple[Learner, Logits, Metrics]:
    """The same step on any inputs. `between` is where the gradient is penalised, `penalty` which output's gradient."""

    def loss(network: Perceptron):
        z_expert, z_union = jnp.split(scalar(network, jnp.concatenate([x_expert, x_union])), 2)
        z_between, slope = value_and_slope(network, between)
        penalised = gradient_penalty(PENALTY_RATES[penalty](z_between), slope)
        return discriminator_loss(z_expert, z_union) + coefficient * penalised, (z_expert, z_union)

    (value, (z_expert, z_union)), gradient = jax.value_and_grad(loss, has_aux=True)(discriminator.params)
    metrics = {"discriminator_loss": value, "discriminator_accuracy": discriminator_accuracy(z_expert, z_union)}
    return descend(discriminator, gradient, learning_rate), z_union, metrics


def ratio_weight(z: Logits, ratio: str, threshold: float) -> Float[Array, "rows"]:
    """c/(1-c) where it reaches the threshold (the paper's delta), else zero."""
    weight = RATIOS[ratio](z)
    return jnp.where(weight >= threshold, weight, 0.0)


def weigh_rows(discriminator: Learner, rows: Transitions, ratio: str, threshold: float) -> Float[Array, "rows"]:
    z = scalar(discriminator.params, state_action(rows.obs, rows.action))
    return ratio_weight(z, ratio, threshold)


def weight_metrics(weight: Float[Array, "rows"]) -> Metrics:
    return {"weight_mean": jnp.mean(weight), "effective_share": effective_share(weight)}
