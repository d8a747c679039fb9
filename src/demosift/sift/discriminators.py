"""What the learned scorers are made of: discriminators without the policy that an algorithm trains beside them.

Each is a class of hyper-parameters with `init` and `step` like an algorithm's, `logit`, the log-ratio it has learned,
and `loss`, a proper one, by which training is stopped on rows that were held out. Ratios multiply, so logits add:

    log d_E(s,a)/d_U(s,a)  =  log d_E(s)/d_U(s)  +  log pi_E(a|s)/pi_U(a|s).

A discriminator of (s, a) learns the sum. With one expert trajectory it finds the first term easiest, since any state of
the trajectory gives the expert away; it memorises a thousand states and learns little of the actions.
`ActionDiscriminator` learns the second term alone, and never sees a state that tells.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from demosift.algorithms import DWBC, Batch
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

    def step(self, state: Any, batch: Batch, iteration: Array) -> Any: ...

    def logit(self, state: Any, obs: Obs, action: Action) -> Rows: ...

    def loss(self, state: Any, batch: Batch) -> Scalar:
        """On a batch of rows that were held out."""
        ...


class Averaged(NamedTuple):
    """A network and the running average of its parameters, which is what is used: it moves less from step to step."""

    learner: Learner
    average: Perceptron


def start_averaged(network: Perceptron) -> Averaged:
    return Averaged(start(network), network)


def follow(state: Averaged, learner: Learner, iteration: Array) -> Averaged:
    rate = 1.0 / (1.0 + jnp.minimum(iteration / 5.0, AVERAGE_OVER))
    return Averaged(learner, jax.tree.map(lambda a, p: a + rate * (p - a), state.average, learner.params))


@algorithm
class Discriminator:
    """WBCU's, of (s, a); without the last bias it is DemoDICE's."""

    gradient_penalty: float = 1.0
    learning_rate: float = 3e-4
    last_bias: bool = True
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> Learner:
        last = glorot_uniform if self.last_bias else he_normal
        return init_discriminator(batch, self.hidden, key, last, self.last_bias)

    def step(self, state: Learner, batch: Batch, iteration: Array) -> Learner:
        return discriminate(state, batch, self.learning_rate, self.gradient_penalty, "logit")[0]

    def logit(self, state: Learner, obs: Obs, action: Action) -> Rows:
        return scalar(state.params, state_action(obs, action))

    def loss(self, state: Learner, batch: Batch) -> Scalar:
        return expert_against_union(self, state, batch)


@algorithm
class LikelihoodDiscriminator:
    """DWBC's, which also sees how likely the policy trained beside it finds the action.

    Here it steps on every iteration: once in a hundred would leave it untrained.
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

    def step(self, state: Any, batch: Batch, iteration: Array) -> Any:
        return self.whole.step(state, batch, iteration, jax.random.key(0))[0]

    def logit(self, state: Any, obs: Obs, action: Action) -> Rows:
        """Unlike DWBC's own d not clipped, so that it ranks all rows."""
        network = state.discriminator.params
        log_prob = log_prob_per_dimension(state.policy.params, obs, action)
        seen = [affine(network.sample, state_action(obs, action)), affine(network.likelihood, squash(log_prob))]
        return apply(network.joint, jax.nn.relu(jnp.concatenate(seen, axis=-1)))[:, 0]

    def loss(self, state: Any, batch: Batch) -> Scalar:
        return expert_against_union(self, state, batch)


@algorithm
class ActionDiscriminator:
    """log pi_E(a|s)/p(a): the expert's actions in its states, against actions of the pile in the very same states.

    As states are the same on both sides, they tell nothing by themselves: what is left to learn is how the expert's
    action depends on them. p is how actions are spread over the pile.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    batch_size: int = 256
    hidden: tuple[int, ...] = (128, 128)

    def init(self, batch: Batch, key: PRNGKeyArray) -> Averaged:
        inputs = batch.union.obs.shape[-1] + batch.union.action.shape[-1]
        return start_averaged(init_scalar_network(key, inputs, self.hidden, glorot_uniform, last_bias=True))

    def inputs(self, batch: Batch) -> Float[Array, "rows inputs"]:
        """Rows of the expert's, then the same states with other actions."""
        actions = jnp.concatenate([batch.expert.action, batch.supplementary.action])
        return state_action(jnp.concatenate([batch.expert.obs, batch.expert.obs]), actions)

    def step(self, state: Averaged, batch: Batch, iteration: Array) -> Averaged:
        x = self.inputs(batch)

        def loss(network: Perceptron) -> Scalar:
            return discriminator_loss(*jnp.split(scalar(network, x), 2))

        gradient = jax.grad(loss)(state.learner.params)
        learner = descend(state.learner, gradient, self.learning_rate, weight_decay=self.weight_decay)
        return follow(state, learner, iteration)

    def logit(self, state: Averaged, obs: Obs, action: Action) -> Rows:
        return scalar(state.average, state_action(obs, action))

    def loss(self, state: Averaged, batch: Batch) -> Scalar:
        return discriminator_loss(*jnp.split(scalar(state.average, self.inputs(batch)), 2))


def expert_against_union(part: Part, state: Any, batch: Batch) -> Scalar:
    expert, union = (part.logit(state, rows.obs, rows.action) for rows in (batch.expert, batch.union))
    return discriminator_loss(expert, union)
