"""SMODICE (Ma et al., ICML 2022): visit the expert's states. Its actions are not used, so nobody need know them.

With c a discriminator of states, expert against supplementary, and S the supplementary rows:

    R(s) = log c(s)/(1-c(s))                     from a discriminator trained first, with gradient penalty on its logit
    e    = R(s) + gamma V(s') - V(s)             V(s') = 0 at a terminal
    KL           L_V = (1-gamma) mean V(s0) + log mean_S exp(e),     w = exp(e), normalised to mean 1 over the batch
    chi-square   L_V = (1-gamma) mean V(s0) + mean_S (e^2/2 + e),    w = max(0, e+1)
    L_pi = -mean_S  w log pi(a|s)

The discriminator alone trains for the first `discriminator_iterations` and is then frozen, as in the paper and in the
authors' code (1,000 passes over one trajectory of 1,000 steps by 256 rows are 4,000 iterations). After that V and the
policy step once per iteration, each from V before its step; the paper has V converge first, its code does as we do.

Deviations, each for a reason that docs/algorithms/smodice.md gives: the discriminator has ReLU, not tanh, and all of
its layers train (in the authors' code the first does not); exp(e) is divided by its mean over the batch; no entropy
constraint on the policy; terminals are masked instead of leading to an absorbing state; s0 is the start of an episode
of either set.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.demodice import State
from demosift.algorithms.wbcu_two_stage import as_float32
from demosift.learning.about import About, Work, cloning_work, forward_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.critic import advantages
from demosift.learning.discriminator import tell_apart, weight_metrics
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import (
    advantage,
    chi_square_nu_loss,
    chi_square_weight,
    mix,
    normalised_weight,
    nu_loss,
)
from demosift.learning.networks import Perceptron, Policy, glorot_uniform, init_scalar_network, scalar
from demosift.types import Transitions

Rows = Float[Array, "rows"]
VALUE_LOSSES = {"kl": nu_loss, "chi-square": chi_square_nu_loss}
WEIGHTS = {"kl": normalised_weight, "chi-square": chi_square_weight}


@algorithm
class SMODICE:
    """SMODICE: clones the supplementary rows that lead to the expert's states; needs no expert actions."""

    name: ClassVar[str] = "smodice"
    about: ClassVar[About] = About("SMODICE", "clones the rows of the pile that lead to the expert's states", colour=8)
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False
    needs_expert_actions: ClassVar[bool] = False

    divergence: Literal["kl", "chi-square"] = "kl"
    gradient_penalty: float = 10.0
    discount: float = 0.99
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    critic_decay: float = 1e-4
    discriminator_iterations: int = 4_000
    batch_size: int = 512
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    @property
    def policy_from(self) -> int:
        return self.discriminator_iterations

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, *keys = jax.random.split(key, 3)
        obs_dim = batch.union.obs.shape[-1]
        discriminator, critic = (init_scalar_network(k, obs_dim, self.hidden, glorot_uniform, True) for k in keys)
        return State(init_cloner(batch, self.hidden, policy_key, self.cloner), start(discriminator), start(critic))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        expert, rows = batch.expert, batch.supplementary

        def discriminator_step(state: State) -> tuple[State, Metrics]:
            discriminator, _, metrics = tell_apart(
                state.discriminator,
                expert.obs,
                rows.obs,
                mix(batch.uniform[0], expert.obs, rows.obs),
                self.discriminator_learning_rate,
                self.gradient_penalty,
                "exact logit",
            )
            unknown = dict.fromkeys(("policy_loss", "critic_loss", "weight_mean", "effective_share"), jnp.nan)
            return state._replace(discriminator=discriminator), as_float32({**unknown, **metrics})

        def policy_step(state: State) -> tuple[State, Metrics]:
            critic, critic_loss, gain = self.criticise(state.critic, batch, self.reward(state, rows))
            weight = WEIGHTS[self.divergence](gain)
            policy, policy_loss = clone(state.policy, rows, weight, self.learning_rate, iteration, self.cloner)
            unknown = dict.fromkeys(("discriminator_loss", "discriminator_accuracy"), jnp.nan)
            losses = {"policy_loss": policy_loss, "critic_loss": critic_loss}
            new = State(policy, state.discriminator, critic)
            return new, as_float32({**losses, **unknown, **weight_metrics(weight)})

        return jax.lax.cond(iteration < self.discriminator_iterations, discriminator_step, policy_step, state)

    def reward(self, state: State, rows: Transitions) -> Rows:
        """log c/(1-c) is the discriminator's logit."""
        return scalar(state.discriminator.params, rows.obs)

    def criticise(self, critic: Learner, batch: Batch, reward: Rows) -> tuple[Learner, Float[Array, ""], Rows]:
        """One step of V: it, its loss, and the rows' advantages from before the step."""
        rows = batch.supplementary
        obs = jnp.concatenate([batch.initial.obs, rows.obs, rows.next_obs])

        def loss(network: Perceptron):
            initial, here, following = jnp.split(scalar(network, obs), 3)
            gain = advantage(reward, here, following, rows.terminal, self.discount)
            return VALUE_LOSSES[self.divergence](initial, gain, self.discount), gain

        (value, gain), gradient = jax.value_and_grad(loss, has_aux=True)(critic.params)
        return descend(critic, gradient, self.critic_learning_rate, weight_decay=self.critic_decay), value, gain

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Rows:
        """With the KL divergence, exp(e): the weight, up to the constant that normalises a batch."""
        gain = advantages(state.critic, rows, self.reward(state, rows), self.discount)
        return jnp.exp(gain) if self.divergence == "kl" else chi_square_weight(gain)

    def work(self) -> list[Work]:
        """The work of the second stage, in which the discriminator only gives rewards."""
        batch, hidden = self.batch_size, self.hidden
        return [cloning_work(batch, hidden), forward_work(batch, hidden), cloning_work(3 * batch, hidden)]
