"""DemoDICE (Kim et al., ICLR 2022): weights are ratios towards the best stationary distribution near the union's.

With r = -k(z) from a discriminator z(s,a) as in WBCU, K = 1 + alpha and A = r + gamma nu(s') - nu(s):

    L_nu = (1-gamma) mean nu(s0) + K logsumexp_U(A/K) + nu_penalty * mean ||grad nu||^2
    w    = exp(A/K), normalised to mean 1 over the batch
    L_pi = -mean_U  w log pi(a|s)

One iteration steps all three networks, each from the networks before it. The value is masked at true terminals and the
stored successor is used; the authors' loader, which bootstraps into the next episode's first state, is not reproduced.
Defaults are the authors' (penalty 0.1, alpha 0, batch 512); the paper's tables vary the penalty over 0, 1 and 10. With
alpha = 0 the term alpha KL(d || d_U) of the objective vanishes; that too is the authors' default.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.about import About, Work, cloning_work, slope_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.discriminator import discriminate, init_discriminator, weight_metrics
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import gradient_penalty, mix, smoothed_cost
from demosift.learning.networks import (
    Perceptron,
    Policy,
    he_normal,
    init_scalar_network,
    scalar,
    state_action,
    value_and_slope,
)
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner
    discriminator: Learner
    critic: Learner


Rows = Float[Array, "rows"]


def advantage(reward: Rows, nu: Rows, next_nu: Rows, terminal: Array, discount: float) -> Rows:
    return reward + discount * jnp.where(terminal, 0.0, next_nu) - nu


def nu_loss(initial_nu: Rows, advantage: Rows, discount: float, temperature: float) -> Float[Array, ""]:
    """(1-gamma) mean nu(s0) + K logsumexp(A/K); the sum form, which differs from the mean's by a constant."""
    return (1.0 - discount) * jnp.mean(initial_nu) + temperature * jax.nn.logsumexp(advantage / temperature)


def normalised_weight(advantage: Rows, temperature: float) -> Rows:
    weight = jnp.exp((advantage - jnp.max(advantage)) / temperature)
    return weight / jnp.mean(weight)


@algorithm
class DemoDICE:
    """DemoDICE: weights from a critic over the discriminator's reward."""

    name: ClassVar[str] = "demodice"
    about: ClassVar[About] = About(
        "DemoDICE", "clones the union, weighted by a learned advantage", colour=4, penalised=True
    )
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    gradient_penalty: float = 0.1
    nu_penalty: float = 1e-4
    alpha: float = 0.0
    discount: float = 0.99
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    batch_size: int = 512
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, discriminator_key, critic_key = jax.random.split(key, 3)
        obs = batch.union.obs
        return State(
            init_cloner(batch, self.hidden, policy_key, self.cloner, he_normal),
            init_discriminator(batch, self.hidden, discriminator_key, last=he_normal, last_bias=False),
            start(init_scalar_network(critic_key, obs.shape[-1], self.hidden, he_normal, last_bias=False)),
        )

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        discriminator, z_union, metrics = discriminate(
            state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, "logit"
        )
        critic, critic_loss, advantage = self.criticise(state.critic, batch, -smoothed_cost(z_union))
        weight = normalised_weight(advantage, 1.0 + self.alpha)
        policy, policy_loss = clone(state.policy, batch.union, weight, self.learning_rate, iteration, self.cloner)
        metrics |= {"policy_loss": policy_loss, "critic_loss": critic_loss, **weight_metrics(weight)}
        return State(policy, discriminator, critic), metrics

    def criticise(self, critic: Learner, batch: Batch, reward: Rows) -> tuple[Learner, Float[Array, ""], Rows]:
        """One step of nu. Returns it with its loss and the advantages of the union batch from before the step."""
        expert, union = batch.expert, batch.union
        amount = batch.uniform[1]
        # nu is penalised at the union's states and at expert-union mixes of states and of next states. The union's
        # states come first, so that their values are the ones the loss needs.
        points = jnp.concatenate(
            [union.obs, mix(amount, expert.obs, union.obs), mix(amount, expert.next_obs, union.next_obs)]
        )
        others = jnp.concatenate([batch.initial.obs, union.next_obs])

        def loss(network: Perceptron):
            initial_nu, next_nu = jnp.split(scalar(network, others), 2)
            nu_at, slope = value_and_slope(network, points)
            nu = nu_at[: len(union.reward)]
            gain = advantage(jax.lax.stop_gradient(reward), nu, next_nu, union.terminal, self.discount)
            penalty = gradient_penalty(jnp.ones(len(points)), slope, target=0.0)
            return nu_loss(initial_nu, gain, self.discount, 1.0 + self.alpha) + self.nu_penalty * penalty, gain

        (value, gain), gradient = jax.value_and_grad(loss, has_aux=True)(critic.params)
        return descend(critic, gradient, self.critic_learning_rate), value, gain

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """exp(A/K): the weight, up to the constant that normalises a batch."""
        z = scalar(state.discriminator.params, state_action(rows.obs, rows.action))
        nu, next_nu = (scalar(state.critic.params, obs) for obs in (rows.obs, rows.next_obs))
        return jnp.exp(advantage(-smoothed_cost(z), nu, next_nu, rows.terminal, self.discount) / (1.0 + self.alpha))

    def work(self) -> list[Work]:
        batch, hidden = self.batch_size, self.hidden
        discriminator, critic = slope_work(2 * batch, 2 * batch, hidden), slope_work(2 * batch, 3 * batch, hidden)
        return [cloning_work(batch, hidden), discriminator, critic]
