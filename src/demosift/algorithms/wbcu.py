"""Weighted behavioural cloning on the union: a discriminator's density ratio says how much each sample counts.

    max_c   mean_E log c(s,a) + mean_U log(1 - c(s,a))  -  gradient_penalty * GP     (paper, eq. 5)
    w       = c/(1-c), zero below the threshold delta                                 (paper, eq. 7)
    min_pi  -mean_U  w log pi(a|s)                                                    (paper, Algorithm 2)

Where the paper and its code differ, the default is the code, since it made the tables:
the discriminator and the policy step together, once per iteration, and the weights come from the discriminator as it
was before its step (the paper trains one after the other: `wbcu-two-stage`); the ratio is smoothed (`ratio="exact"` is
the paper's); the penalty is on the gradient of the smoothed logit (`penalty="probability"` is the paper's).
"""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.bc import clone, init_cloner
from demosift.algorithms.interface import Batch, Metrics, algorithm
from demosift.learner import Learner, descend, start
from demosift.losses import (
    PENALTY_RATES,
    RATIOS,
    between_expert_and_union,
    discriminator_accuracy,
    discriminator_loss,
    effective_share,
    gradient_penalty,
)
from demosift.networks import (
    Initialiser,
    Perceptron,
    Policy,
    glorot_uniform,
    init_scalar_network,
    scalar,
    state_action,
    value_and_slope,
)
from demosift.types import Transitions

Logits = Float[Array, "rows"]


class State(NamedTuple):
    policy: Learner
    discriminator: Learner


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


@algorithm
class WBCU:
    """Weighted behavioural cloning of the union, discriminator and policy together."""

    name: ClassVar[str] = "wbcu"
    needs_supplementary: ClassVar[bool] = True
    mean_limit: ClassVar[float] = 7.0

    gradient_penalty: float = 1.0
    threshold: float = 0.0
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    ratio: Literal["smoothed", "exact"] = "smoothed"
    penalty: Literal["logit", "probability"] = "logit"
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, discriminator_key = jax.random.split(key)
        return State(
            init_cloner(batch, self.hidden, policy_key), init_discriminator(batch, self.hidden, discriminator_key)
        )

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        discriminator, discriminator_loss, z_expert, z_union = discriminate(
            state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, self.penalty
        )
        weight = ratio_weight(z_union, self.ratio, self.threshold)
        policy, policy_loss = clone(state.policy, batch.union, weight, self.learning_rate)
        metrics = {
            "policy_loss": policy_loss,
            "discriminator_loss": discriminator_loss,
            "discriminator_accuracy": discriminator_accuracy(z_expert, z_union),
            **weight_metrics(weight),
        }
        return State(policy, discriminator), metrics

    def policy(self, state: State) -> Policy:
        return state.policy.params

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        z = scalar(state.discriminator.params, state_action(rows.obs, rows.action))
        return ratio_weight(z, self.ratio, self.threshold)
