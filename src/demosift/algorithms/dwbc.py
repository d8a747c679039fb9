"""DWBC (Xu et al., ICML 2022): the discriminator also sees how likely the policy finds the action.

With d(s, a, log pi) clipped to [0.1, 0.9], E the expert batch and O the supplementary batch, which does not contain the
expert set:

    L_d  = mean[-log d_E + log(1 - d_E)] - mean log(1 - d_O) / eta                    (positive-unlabelled)
    w_E  = alpha - 1 - eta / (d_E (1 - d_E)),     w_O = d_O/(1 - d_O), zero where d_O < 0.5
    L_pi = -mean_E w_E log pi  -  mean_O w_O log pi

The weights are those of the authors' code; the source paper prints eta/(d(1-d)) and 1/(1-d) without the -1 that makes
the second one a ratio, and calls eta lambda. The discriminator steps on every hundredth iteration only, from the same
networks as the policy's step; log pi enters it per action dimension, clipped, rescaled to [0, 1] and detached.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from demosift.learning.about import About, Work, cloning_work, forward_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, update_policy
from demosift.learning.discriminator import weight_metrics
from demosift.learning.learner import TORCH_ADAM_EPSILON, Learner, descend, start
from demosift.learning.losses import weighted_loss
from demosift.learning.networks import (
    Layer,
    Perceptron,
    Policy,
    TanhGaussian,
    affine,
    apply,
    fan_in_uniform,
    init_perceptron,
    init_policy,
    log_tanh_slope,
    state_action,
)
from demosift.types import Transitions

DISCRIMINATOR_RANGE = (0.1, 0.9)
LOG_PROB_RANGE = (-20.0, 10.0)
MEAN_LIMIT = 9.0

Rows = Float[Array, "rows"]


class Discriminator(NamedTuple):
    """Two first layers side by side, one for (s, a) and one for log pi, then a perceptron over both."""

    sample: Layer
    likelihood: Layer
    joint: Perceptron


class State(NamedTuple):
    policy: Learner
    discriminator: Learner


def squash(log_prob: Float[Array, "rows action"]) -> Float[Array, "rows action"]:
    """log pi per dimension, clipped to [-20, 10] and rescaled to [0, 1]."""
    low, high = LOG_PROB_RANGE
    return (jnp.clip(log_prob, low, high) - low) / (high - low)


def likeness(network: Discriminator, x: Float[Array, "rows inputs"], log_prob: Float[Array, "rows action"]) -> Rows:
    """d(s, a, log pi), clipped to [0.1, 0.9]: no gradient outside."""
    hidden = [affine(network.sample, x), affine(network.likelihood, squash(jax.lax.stop_gradient(log_prob)))]
    z = apply(network.joint, jax.nn.relu(jnp.concatenate(hidden, axis=-1)))[:, 0]
    return jnp.clip(jax.nn.sigmoid(z), *DISCRIMINATOR_RANGE)


def positive_unlabelled_loss(d_expert: Rows, d_other: Rows, eta: float) -> Float[Array, ""]:
    return jnp.mean(jnp.log1p(-d_expert) - jnp.log(d_expert)) - jnp.mean(jnp.log1p(-d_other)) / eta


def expert_weight(d: Rows, alpha: float, eta: float) -> Rows:
    return alpha - 1.0 - eta / (d * (1.0 - d))


def other_weight(d: Rows) -> Rows:
    return jnp.where(d < 0.5, 0.0, d / (1.0 - d))


def log_prob_per_dimension(
    policy: Policy, obs: Float[Array, "rows obs"], action: Shaped[Array, "rows action"]
) -> Float[Array, "rows dimensions"]:
    """As `Policy.log_prob`, but with the log-determinant of the clipped action, because here its value is an input."""
    if not isinstance(policy, TanhGaussian):
        return policy.log_prob(obs, action)
    u = jnp.arctanh(jnp.clip(action, -1.0 + 1e-7, 1.0 - 1e-7))
    return policy.log_prob_before_tanh(obs, u, log_tanh_slope(u))


@algorithm
class DWBC:
    """Discriminator-weighted behavioural cloning."""

    name: ClassVar[str] = "dwbc"
    about: ClassVar[About] = About("DWBC", "clones with the discriminator's output as the weight", colour=5)
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    alpha: float = 7.5
    eta: float = 0.5
    weight_decay: float = 0.005
    learning_rate: float = 1e-4
    discriminator_learning_rate: float = 1e-4
    discriminator_every: int = 100
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, sample_key, likelihood_key, joint_key = jax.random.split(key, 4)
        obs, action = batch.union.obs, batch.union.action
        floor = self.cloner.log_std_floor
        body = self.cloner.body()
        policy = init_policy(policy_key, obs, action, self.hidden, fan_in_uniform, MEAN_LIMIT, floor, body)
        dimensions = action.shape[-1] if isinstance(policy, TanhGaussian) else 1
        first, *rest = self.hidden
        (sample,) = init_perceptron(sample_key, (obs.shape[-1] + action.shape[-1], first // 2), [fan_in_uniform])
        (likelihood,) = init_perceptron(likelihood_key, (dimensions, first // 2), [fan_in_uniform])
        joint = init_perceptron(joint_key, (first // 2 * 2, *rest, 1), [fan_in_uniform] * (len(rest) + 1))
        return State(start(policy, self.cloner.average > 0.0), start(Discriminator(sample, likelihood, joint)))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        expert, other = batch.expert, batch.supplementary
        rows = Transitions(*(jnp.concatenate(pair) for pair in zip(expert, other, strict=True)))
        x = state_action(rows.obs, rows.action)

        def policy_loss(policy: Policy):
            log_prob = log_prob_per_dimension(policy, rows.obs, rows.action)
            d_expert, d_other = jnp.split(likeness(state.discriminator.params, x, log_prob), 2)
            weight = jnp.concatenate([expert_weight(d_expert, self.alpha, self.eta), other_weight(d_other)])
            # The mean over both batches is half the sum of their means.
            loss = 2.0 * weighted_loss(weight, jnp.sum(log_prob, axis=-1))
            return loss, (log_prob, d_expert, d_other, weight)

        def discriminator_loss(network: Discriminator) -> Float[Array, ""]:
            d_expert, d_other = jnp.split(likeness(network, x, log_prob), 2)
            return positive_unlabelled_loss(d_expert, d_other, self.eta)

        def discriminator_step(discriminator: Learner) -> Learner:
            gradient = jax.grad(discriminator_loss)(discriminator.params)
            return descend(discriminator, gradient, self.discriminator_learning_rate, epsilon=TORCH_ADAM_EPSILON)

        (loss, aux), gradient = jax.value_and_grad(policy_loss, has_aux=True)(state.policy.params)
        log_prob, d_expert, d_other, weight = aux
        adam = {"epsilon": TORCH_ADAM_EPSILON, "weight_decay": self.weight_decay}
        policy = update_policy(state.policy, gradient, self.learning_rate, iteration, self.cloner, **adam)
        due = (iteration + 1) % self.discriminator_every == 0
        discriminator = jax.lax.cond(due, discriminator_step, lambda same: same, state.discriminator)
        metrics = {
            "policy_loss": loss,
            "discriminator_loss": positive_unlabelled_loss(d_expert, d_other, self.eta),
            "discriminator_accuracy": 0.5 * (jnp.mean(d_expert > 0.5) + jnp.mean(d_other < 0.5)),
            **weight_metrics(weight[len(d_expert) :]),
        }
        return State(policy, discriminator), metrics

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """The weight each row would have as a supplementary sample."""
        log_prob = log_prob_per_dimension(state.policy.params, rows.obs, rows.action)
        return other_weight(likeness(state.discriminator.params, state_action(rows.obs, rows.action), log_prob))

    def work(self) -> list[Work]:
        """Without the discriminator's own step, which is taken once in a hundred iterations."""
        return [cloning_work(2 * self.batch_size, self.hidden), forward_work(2 * self.batch_size, self.hidden)]
