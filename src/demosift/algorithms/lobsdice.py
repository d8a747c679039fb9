"""LobsDICE (Kim et al., NeurIPS 2022): make the transitions (s, s') that the expert makes. Its actions are not used.

With r = -k(z) from a discriminator z(s,s') of expert and supplementary rows, k as in WBCU, K = 1 + alpha, S the
supplementary rows and A = r + gamma nu(s') - nu(s):

    L_nu = (1-gamma) mean nu(s0) + K logsumexp_S(A/K) + nu_penalty * mean ||grad nu||^2
    w    = exp(A/K), normalised to mean 1 over the batch
    L_pi = -mean_S  w log pi(a|s)

It is DemoDICE with next states in place of actions, and with the supplementary set in place of the union, whose expert
rows have no actions to clone. One iteration steps all three networks, each from the networks before it, as in the
authors' code. That code's defaults are ours (penalty 0.1, alpha 0.1, batch 512). It also has a network mu for the
likelihood of transitions; with its default, the closed form, mu does not reach the policy, and is left out here.
Terminals are masked and the stored successor is used, as in DemoDICE.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.demodice import State
from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.critic import advantages, criticise
from demosift.learning.discriminator import tell_apart, weight_metrics
from demosift.learning.learner import start
from demosift.learning.losses import between_expert_and_union, normalised_weight, smoothed_cost
from demosift.learning.networks import Policy, he_normal, init_scalar_network, scalar
from demosift.types import Transitions


def state_pair(rows: Transitions) -> Float[Array, "rows inputs"]:
    """What the discriminator sees: a state beside the one that follows it."""
    return jnp.concatenate([rows.obs, rows.next_obs], axis=-1)


@algorithm
class LobsDICE:
    """LobsDICE: clones the supplementary rows whose transitions are like the expert's; needs no expert actions."""

    name: ClassVar[str] = "lobsdice"
    about: ClassVar[About] = About(
        "LobsDICE", "clones the pile, weighted by a learned advantage of its steps", colour=9
    )
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False
    needs_expert_actions: ClassVar[bool] = False

    gradient_penalty: float = 0.1
    nu_penalty: float = 1e-4
    alpha: float = 0.1
    discount: float = 0.99
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    batch_size: int = 512
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, discriminator_key, critic_key = jax.random.split(key, 3)
        obs_dim = batch.union.obs.shape[-1]
        return State(
            init_cloner(batch, self.hidden, policy_key, self.cloner, he_normal),
            start(init_scalar_network(discriminator_key, 2 * obs_dim, self.hidden, he_normal, last_bias=False)),
            start(init_scalar_network(critic_key, obs_dim, self.hidden, he_normal, last_bias=False)),
        )

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        rows = batch.supplementary
        x_expert, x_rows = state_pair(batch.expert), state_pair(rows)
        discriminator, z, metrics = tell_apart(
            state.discriminator,
            x_expert,
            x_rows,
            between_expert_and_union(batch.uniform[0], x_expert, x_rows),
            self.discriminator_learning_rate,
            self.gradient_penalty,
            "logit",
        )
        critic, critic_loss, gain = criticise(
            state.critic,
            batch,
            rows,
            -smoothed_cost(z),
            discount=self.discount,
            temperature=1.0 + self.alpha,
            nu_penalty=self.nu_penalty,
            learning_rate=self.critic_learning_rate,
        )
        weight = normalised_weight(gain, 1.0 + self.alpha)
        policy, policy_loss = clone(state.policy, rows, weight, self.learning_rate, iteration, self.cloner)
        metrics |= {"policy_loss": policy_loss, "critic_loss": critic_loss, **weight_metrics(weight)}
        return State(policy, discriminator, critic), metrics

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """exp(A/K): the weight, up to the constant that normalises a batch."""
        z = scalar(state.discriminator.params, state_pair(rows))
        return jnp.exp(advantages(state.critic, rows, -smoothed_cost(z), self.discount) / (1.0 + self.alpha))

    def work(self) -> list[Work]:
        batch, hidden = self.batch_size, self.hidden
        return [cloning_work(rows, hidden) for rows in (batch, 4 * batch, 5 * batch)]  # policy, discriminator, critic
