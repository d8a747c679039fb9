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

from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.critic import advantages, criticise
from demosift.learning.discriminator import discriminate, init_discriminator, weight_metrics
from demosift.learning.learner import Learner, start
from demosift.learning.losses import normalised_weight, smoothed_cost
from demosift.learning.networks import Policy, he_normal, init_scalar_network, scalar, state_action
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner
    discriminator: Learner
    critic: Learner


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
        reward, temperature = -smoothed_cost(z_union), 1.0 + self.alpha
        critic, critic_loss, gain = criticise(
            state.critic,
            batch,
            batch.union,
            reward,
            discount=self.discount,
            temperature=temperature,
            nu_penalty=self.nu_penalty,
            learning_rate=self.critic_learning_rate,
        )
        weight = normalised_weight(gain, temperature)
        policy, policy_loss = clone(state.policy, batch.union, weight, self.learning_rate, iteration, self.cloner)
        metrics |= {"policy_loss": policy_loss, "critic_loss": critic_loss, **weight_metrics(weight)}
        return State(policy, discriminator, critic), metrics

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """exp(A/K): the weight, up to the constant that normalises a batch."""
        z = scalar(state.discriminator.params, state_action(rows.obs, rows.action))
        return jnp.exp(advantages(state.critic, rows, -smoothed_cost(z), self.discount) / (1.0 + self.alpha))

    def work(self) -> list[Work]:
        batch, hidden = self.batch_size, self.hidden
        return [cloning_work(rows, hidden) for rows in (batch, 4 * batch, 5 * batch)]  # policy, discriminator, critic
