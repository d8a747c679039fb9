"""What the learned scorers are made of: discriminators without the policy that an algorithm trains beside them.

Each is a class of hyper-parameters with `init` and `step` like an algorithm's, with `logit`, the log-ratio it has
learned, and with `loss`, which decides on held-out rows when training stops. Ratios multiply, so logits add:

    log d_E(s,a)/d_U(s,a)  =  log d_E(s)/d_U(s)  +  log pi_E(a|s)/pi_U(a|s).

A discriminator of (s, a) learns the sum. With one expert trajectory the first term is the easy one, since any state of
the trajectory gives the expert away: the network memorises a thousand states and learns little about actions.
`ActionDiscriminator` learns the second term alone, from states that give nothing away.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from demosift.algorithms import DWBC, Batch, Metrics
from demosift.algorithms.dwbc import log_prob_per_dimension, squash
from demosift.learning.algorithm import algorithm
from demosift.learning.discriminator import discriminate, init_discriminator
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import discriminator_loss
from demosift.learning.networks import (
    Perceptron,
    affine,
    apply,
    glorot_uniform,
    he_normal,
    init_scalar_network,
    scalar,
    state_action,
)

Rows = Float[Array, "rows"]
Obs = Float[Array, "rows obs"]
Action = Shaped[Array, "rows action"]
Scalar = Float[Array, ""]

AVERAGE_OVER = 500  # iterations, or the last fifth of them while there are fewer than that


class Part(Protocol):
    """One log-ratio, learned by every model."""

    @property
    def batch_size(self) -> int: ...

    def init(self, batch: Batch, key: PRNGKeyArray) -> Any: ...

    def step(self, state: Any, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[Any, Metrics]: ...

    def logit(self, state: Any, obs: Obs, action: Action) -> Rows: ...

    def loss(self, state: Any, batch: Batch) -> Scalar:
        """On a batch of rows that were held out."""
        ...


class Averaged(NamedTuple):
    """A network and the running average of its parameters, which is used because it moves less from step to step."""

    learner: Learner
    average: Perceptron


def follow(state: Averaged, learner: Learner, iteration: Array) -> Averaged:
    rate = 1.0 / (1.0 + jnp.minimum(iteration / 5.0, AVERAGE_OVER))
    return Averaged(learner, jax.tree.map(lambda a, p: a + rate * (p - a), state.average, learner.params))


@algorithm
class Discriminator:
    """WBCU's discriminator of (s, a); without the last bias it is DemoDICE's."""

    gradient_penalty: float = 1.0
    learning_rate: float = 3e-4
    last_bias: bool = True
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> Learner:
        last = glorot_uniform if self.last_bias else he_normal
        return init_discriminator(batch, self.hidden, key, last, self.last_bias)

    def step(self, state: Learner, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[Learner, Metrics]:
        return discriminate(state, batch, self.learning_rate, self.gradient_penalty, "logit")[0], {}

    def logit(self, state: Learner, obs: Obs, action: Action) -> Rows:
        return scalar(state.params, state_action(obs, action))

    def loss(self, state: Learner, batch: Batch) -> Scalar:
        return expert_against_union(self, state, batch)


@algorithm
class LikelihoodDiscriminator:
    """DWBC's discriminator, which also sees how likely the policy trained beside it finds the action.

    Here it steps on every iteration: one step in a hundred would leave it untrained.
    """

    learning_rate: float = 1e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    @property
    def whole(self) -> DWBC:
        return DWBC(
            discriminator_learning_rate=self.learning_rate,
            discriminator_every=1,
            batch_size=self.batch_size,
            hidden=self.hidden,
        )

    def init(self, batch: Batch, key: PRNGKeyArray) -> Any:
        return self.whole.init(batch, key)

    def step(self, state: Any, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        return self.whole.step(state, batch, iteration, key)[0], {}

    def logit(self, state: Any, obs: Obs, action: Action) -> Rows:
        """DWBC's d before it is clipped, so that all rows are ranked."""
        network = state.discriminator.params
        log_prob = log_prob_per_dimension(state.policy.params, obs, action)
        seen = [affine(network.sample, state_action(obs, action)), affine(network.likelihood, squash(log_prob))]
        return apply(network.joint, jax.nn.relu(jnp.concatenate(seen, axis=-1)))[:, 0]

    def loss(self, state: Any, batch: Batch) -> Scalar:
        return expert_against_union(self, state, batch)


@algorithm
class ActionDiscriminator:
    """log pi_E(a|s)/p(a): the expert's actions in its states, against supplementary actions in the very same states.

    The states are the same on both sides, so they tell nothing by themselves: what is left to learn is how the expert's
    action depends on them. p is the distribution of actions in the supplementary set.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    batch_size: int = 256
    hidden: tuple[int, ...] = (128, 128)

    def init(self, batch: Batch, key: PRNGKeyArray) -> Averaged:
        inputs = batch.union.obs.shape[-1] + batch.union.action.shape[-1]
        network = init_scalar_network(key, inputs, self.hidden, glorot_uniform, last_bias=True)
        return Averaged(start(network), network)

    def inputs(self, batch: Batch) -> Float[Array, "rows inputs"]:
        """The expert's rows, then the same states with other actions."""
        actions = jnp.concatenate([batch.expert.action, batch.supplementary.action])
        return state_action(jnp.concatenate([batch.expert.obs, batch.expert.obs]), actions)

    def step(self, state: Averaged, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[Averaged, Metrics]:
        x = self.inputs(batch)

        def loss(network: Perceptron) -> Scalar:
            return discriminator_loss(*jnp.split(scalar(network, x), 2))

        gradient = jax.grad(loss)(state.learner.params)
        learner = descend(state.learner, gradient, self.learning_rate, weight_decay=self.weight_decay)
        return follow(state, learner, iteration), {}

    def logit(self, state: Averaged, obs: Obs, action: Action) -> Rows:
        return scalar(state.average, state_action(obs, action))

    def loss(self, state: Averaged, batch: Batch) -> Scalar:
        return discriminator_loss(*jnp.split(scalar(state.average, self.inputs(batch)), 2))


def expert_against_union(part: Part, state: Any, batch: Batch) -> Scalar:
    expert, union = (part.logit(state, rows.obs, rows.action) for rows in (batch.expert, batch.union))
    return discriminator_loss(expert, union)
