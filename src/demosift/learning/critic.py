"""The critic nu(s) of DICE methods: its step, and the advantages made of its values.

    L_nu = (1-gamma) mean nu(s0) + K logsumexp(A/K) + nu_penalty * mean ||grad nu||^2,   A = r + gamma nu(s') - nu(s)

The value is masked at true terminals. The gradient flows through nu(s') as well: there is no target network.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from demosift.learning.algorithm import Batch
from demosift.learning.learner import Learner, descend
from demosift.learning.losses import advantage, gradient_penalty, mix, nu_loss
from demosift.learning.networks import Perceptron, scalar, value_and_slope
from demosift.types import Transitions

Rows = Float[Array, "rows"]


def criticise(
    critic: Learner,
    batch: Batch,
    rows: Transitions,
    reward: Rows,
    *,
    discount: float,
    temperature: float,
    nu_penalty: float,
    learning_rate: float,
) -> tuple[Learner, Float[Array, ""], Rows]:
    """One step of nu on these rows of the batch: it, its loss, and the rows' advantages from before the step."""
    expert, amount = batch.expert, batch.uniform[1]
    # nu is penalised at the rows' states and at mixes with the expert's, of states and of next states. The rows' own
    # states come first, so that their values are the ones the loss needs.
    points = jnp.concatenate([rows.obs, mix(amount, expert.obs, rows.obs), mix(amount, expert.next_obs, rows.next_obs)])
    others = jnp.concatenate([batch.initial.obs, rows.next_obs])

    def loss(network: Perceptron):
        initial_nu, next_nu = jnp.split(scalar(network, others), 2)
        nu_at, slope = value_and_slope(network, points)
        nu = nu_at[: len(rows.reward)]
        gain = advantage(jax.lax.stop_gradient(reward), nu, next_nu, rows.terminal, discount)
        penalty = gradient_penalty(jnp.ones(len(points)), slope, target=0.0)
        return nu_loss(initial_nu, gain, discount, temperature) + nu_penalty * penalty, gain

    (value, gain), gradient = jax.value_and_grad(loss, has_aux=True)(critic.params)
    return descend(critic, gradient, learning_rate), value, gain


def advantages(critic: Learner, rows: Transitions, reward: Rows, discount: float) -> Rows:
    nu, next_nu = (scalar(critic.params, obs) for obs in (rows.obs, rows.next_obs))
    return advantage(reward, nu, next_nu, rows.terminal, discount)
