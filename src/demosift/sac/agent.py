"""Soft actor-critic (Haarnoja et al., 2018, "Soft Actor-Critic Algorithms and Applications"), which makes the experts.

Two critics Q_1, Q_2 with slowly following targets Q'_1, Q'_2, a tanh-Gaussian policy pi and a temperature alpha. For a
batch of transitions (s, a, r, s', end), fresh actions b ~ pi(.|s) and b' ~ pi(.|s'), and the soft Bellman target y,

    y       = r + gamma [end is no terminal] (min_i Q'_i(s', b') - alpha log pi(b'|s'))
    J_Q     = sum_i mean 1/2 (Q_i(s, a) - y)^2                                               (their eq. 5)
    J_pi    = mean( alpha log pi(b|s) - min_i Q_i(s, b) ),  b reparametrised                 (eq. 9)
    J_alpha = -log(alpha) mean( log pi(b|s) + h |A| )                                        (eq. 18, in log alpha)

with the target entropy h per action dimension, -1 as usual.

**Order of one update.** All three gradients are taken at the parameters from before the update; then the critics, the
policy and the temperature step by Adam, and last the targets move towards the new critics, Q' <- Q' + tau (Q - Q').
rlkit, which made the paper's experts, also computes its losses before it steps. (Other codes let the policy see the
critics' step of the same update.) This order is also faster: the policy runs once on s and s' together, and the critics
once on a and b together.

A time limit is not a terminal: the target bootstraps there. Every layer starts uniform in +-1/sqrt(fan-in), biases too;
with He-normal kernels, Ant reaches only a quarter of the return.

**Members** are agents that train together under one `vmap`. They may live in different environments: each is
initialised in its own sizes, then padded with zeros to common ones. A padded input is always zero, so its weights get
no gradient; a mask keeps padded actions at zero and out of the log-probability and the target entropy. So a padded
member learns what it learns alone.

The gradients are written out because a reverse pass through the policy's loss would also differentiate the critics'
parameters, and could not share the forward passes. An update makes 16 matrix products of the hidden size: 2 policy
forwards (s, s'), 2 target and 4 critic forwards, 4 critic backwards, 2 critic gradients, and a policy backward and
gradient.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demosift.learning.algorithm import algorithm
from demosift.learning.learner import Learner, descend, start
from demosift.learning.networks import (
    LOG_STD_RANGE,
    Layer,
    Perceptron,
    fan_in_uniform,
    init_perceptron,
    log_tanh_slope,
    squashed_log_prob,
)
from demosift.learning.products import kernel_gradient

RUNNING, TERMINAL, TIMEOUT = 0.0, 1.0, 2.0
"""What follows a row: the next step, a terminal state, or a time limit."""

ADAM_EPSILON = 1e-8


class Layout(NamedTuple):
    """A transition as one row of numbers: observation, action, next observation, reward, end.

    One array means one gather per batch; `obs` and `action` stand side by side because critics read them together.
    """

    obs_dim: int
    action_dim: int

    @property
    def width(self) -> int:
        return 2 * self.obs_dim + self.action_dim + 2

    @property
    def obs(self) -> slice:
        return slice(0, self.obs_dim)

    @property
    def action(self) -> slice:
        return slice(self.obs_dim, self.obs_dim + self.action_dim)

    @property
    def obs_action(self) -> slice:
        return slice(0, self.obs_dim + self.action_dim)

    @property
    def next_obs(self) -> slice:
        return slice(self.obs_dim + self.action_dim, self.width - 2)

    @property
    def reward(self) -> int:
        return self.width - 2

    @property
    def end(self) -> int:
        return self.width - 1


class State(NamedTuple):
    """One agent. The critics' arrays, and their targets', have a leading axis of two."""

    policy: Learner
    critics: Learner
    targets: Perceptron
    log_temperature: Learner


class Metrics(NamedTuple):
    """Means over a batch (and, from `advance`, over the updates of a round)."""

    critic_loss: Float[Array, "*"]
    value: Float[Array, "*"]
    entropy: Float[Array, "*"]
    temperature: Float[Array, "*"]


@algorithm
class SAC:
    """The hyper-parameters, and the maths as methods on one member, to be vmapped. Members may differ in the floats."""

    hidden: tuple[int, ...] = (256, 256)
    discount: float = 0.99
    target_rate: float = 0.005
    learning_rate: float = 3e-4
    batch_size: int = 256
    initial_temperature: float = 1.0
    target_entropy: float = -1.0  # per action dimension

    def init(self, key: PRNGKeyArray, size: Layout, padded: Layout) -> State:
        """An agent for spaces of the given size, its networks padded with zeros to the common size."""
        policy_key, scale_key, *critic_keys = jax.random.split(key, 4)
        body = init_perceptron(policy_key, (size.obs_dim, *self.hidden, size.action_dim), self._kernels)
        (scale,) = init_perceptron(scale_key, (self.hidden[-1], size.action_dim), [fan_in_uniform])
        more_obs, more_action = padded.obs_dim - size.obs_dim, padded.action_dim - size.action_dim
        heads = [_pad_outputs(head, more_action) for head in (body[-1], scale)]
        both = Layer(*(jnp.concatenate(pair, axis=-1) for pair in zip(*heads, strict=True)))
        policy = (_pad_inputs(body[0], size.obs_dim, more_obs), *body[1:-1], both)

        critics = []
        for critic_key in critic_keys:
            critic = init_perceptron(critic_key, (size.obs_dim + size.action_dim, *self.hidden, 1), self._kernels)
            first = _pad_inputs(critic[0], size.obs_dim, more_obs)  # the action's rows stay last
            critics.append((_pad_inputs(first, padded.obs_dim + size.action_dim, more_action), *critic[1:]))
        stacked = jax.tree.map(lambda *pair: jnp.stack(pair), *critics)
        targets = jax.tree.map(jnp.copy, stacked)  # a copy, so that both can be donated
        return State(start(policy), start(stacked), targets, start(jnp.log(jnp.float32(self.initial_temperature))))

    @property
    def _kernels(self) -> Sequence:
        return [fan_in_uniform] * (len(self.hidden) + 1)

    @staticmethod
    def explore(
        num_rows: int, action_mask: Float[Array, "action"], key: PRNGKeyArray
    ) -> Float[Array, "num_rows action"]:
        """Uniform actions."""
        uniform = partial(jax.random.uniform, shape=(num_rows,), minval=-1.0, maxval=1.0)
        return _per_dimension(uniform, key, len(action_mask)) * action_mask[None]

    @staticmethod
    def act(
        policy: Perceptron, obs: Float[Array, "rows obs"], action_mask: Float[Array, "action"], key: PRNGKeyArray
    ) -> Float[Array, "rows action"]:
        """Actions drawn from the policy."""
        heads, _ = forward(policy, obs)
        action, _ = sample(heads, _noise(key, obs.shape[:-1], len(action_mask)), action_mask)
        return action

    def update_flop(self, size: Layout) -> int:
        """The floating-point operations of one update's matrix products."""

        def products(inputs: int, outputs: int) -> tuple[int, int]:
            widths = (inputs, *self.hidden, outputs)
            per_layer = [a * b for a, b in itertools.pairwise(widths)]
            return sum(per_layer), sum(per_layer[1:])

        policy, policy_hidden = products(size.obs_dim, 2 * size.action_dim)
        critic, critic_hidden = products(size.obs_dim + size.action_dim, 1)
        action_slope = size.action_dim * self.hidden[0]
        # Forward on s and s', gradient; backward, except to the input.
        for_policy = 3 * policy + policy_hidden
        # Forward on the targets, on a and on b, gradient; backward from a and from b, the latter to the action.
        for_critic = 4 * critic + 2 * critic_hidden + action_slope
        return 2 * self.batch_size * (for_policy + 2 * for_critic)

    def update(
        self,
        state: State,
        rows: Float[Array, "batch width"],
        noise: Float[Array, "2 batch action"],
        action_mask: Float[Array, "action"],
        pace: Float[Array, ""] | float = 1.0,
    ) -> tuple[State, Metrics]:
        """One update, in the order given above. `noise` is standard normal, for the actions at s, then at s'.

        `pace` multiplies the learning rate.
        """
        num_rows, action_dim = len(rows), len(action_mask)
        size = Layout((rows.shape[-1] - action_dim - 2) // 2, action_dim)
        policy, critics = state.policy.params, state.critics.params
        temperature = jnp.exp(state.log_temperature.params)

        obs, next_obs = rows[:, size.obs], rows[:, size.next_obs]
        heads, policy_hidden = forward(policy, jnp.concatenate([obs, next_obs]))
        (action, log_prob), sample_vjp = jax.vjp(lambda h: sample(h, noise[0], action_mask), heads[:num_rows])
        next_action, next_log_prob = sample(heads[num_rows:], noise[1], action_mask)

        next_values, _ = forward(state.targets, jnp.concatenate([next_obs, next_action], axis=-1))
        next_value = jnp.min(next_values[..., 0], axis=0) - temperature * next_log_prob
        target = rows[:, size.reward] + self.discount * jnp.where(rows[:, size.end] == TERMINAL, 0.0, next_value)

        data_and_fresh = jnp.concatenate([rows[:, size.obs_action], jnp.concatenate([obs, action], axis=-1)])
        values, critic_hidden = forward(critics, data_and_fresh)
        value, fresh_value = values[:, :num_rows, 0], values[:, num_rows:, 0]
        error = value - target[None]
        lowest = jnp.arange(2)[:, None] == jnp.argmin(fresh_value, axis=0)[None]
        cotangent = jnp.concatenate([error, -lowest.astype(error.dtype)], axis=1)[..., None] / num_rows
        deltas = backward(critics, critic_hidden, cotangent)
        critic_gradient = gradient(
            [hidden[..., :num_rows, :] for hidden in critic_hidden], [delta[:, :num_rows] for delta in deltas]
        )
        action_kernels = critics[0].kernel[:, size.action]
        action_slope = jnp.sum(jnp.einsum("cbh,cah->cba", deltas[0][:, num_rows:], action_kernels), axis=0)

        (heads_slope,) = sample_vjp((action_slope, jnp.full(num_rows, 1.0 / num_rows) * temperature))
        policy_hidden = [hidden[:num_rows] for hidden in policy_hidden]
        policy_gradient = gradient(policy_hidden, backward(policy, policy_hidden, heads_slope))
        temperature_gradient = -(jnp.mean(log_prob) + self.target_entropy * jnp.sum(action_mask))

        rate = self.learning_rate * pace
        new_critics = descend(state.critics, critic_gradient, rate, epsilon=ADAM_EPSILON)
        new_policy = descend(state.policy, policy_gradient, rate, epsilon=ADAM_EPSILON)
        new_temperature = descend(state.log_temperature, temperature_gradient, rate, epsilon=ADAM_EPSILON)
        new_targets = jax.tree.map(lambda t, q: t + self.target_rate * (q - t), state.targets, new_critics.params)
        metrics = Metrics(0.5 * jnp.mean(error**2), jnp.mean(value), -jnp.mean(log_prob), temperature)
        return State(new_policy, new_critics, new_targets, new_temperature), metrics

    def advance(
        self,
        state: State,
        replay: Float[Array, "capacity width"],
        num_rows: Int[Array, ""] | int,
        num_updates: int,
        key: PRNGKeyArray,
        action_mask: Float[Array, "action"],
        pace: Float[Array, ""] | float = 1.0,
    ) -> tuple[State, Metrics]:
        """Updates on batches drawn uniformly, with replacement, from the first `num_rows` rows of the replay.

        Rows and noise of all updates are drawn before the scan: one gather and one generator call, not one per update.
        """
        row_key, noise_key = jax.random.split(key)
        chosen = jax.random.randint(row_key, (num_updates, self.batch_size), 0, num_rows)
        rows = replay.at[chosen].get(mode="promise_in_bounds")
        noise = _noise(noise_key, (num_updates, 2, self.batch_size), len(action_mask))
        state, metrics = jax.lax.scan(lambda s, xs: self.update(s, *xs, action_mask, pace), state, (rows, noise))
        return state, jax.tree.map(lambda m: jnp.mean(m, axis=0), metrics)


def sample(
    heads: Float[Array, "rows heads"], noise: Float[Array, "rows action"], action_mask: Float[Array, "action"]
) -> tuple[Float[Array, "rows action"], Float[Array, "rows"]]:
    """a = tanh(u), u = mean + std * noise, and log pi(a|s) = sum log N(u; mean, std) - log(1 - a^2)."""
    mean, log_std = jnp.split(heads, 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    u = mean + jnp.exp(log_std) * noise
    log_prob = squashed_log_prob(noise, log_std, log_tanh_slope(u))
    return jnp.tanh(u) * action_mask[None], jnp.sum(log_prob * action_mask[None], axis=-1)


def forward(
    network: Perceptron, x: Float[Array, "rows inputs"]
) -> tuple[Float[Array, "*stack rows outputs"], list[Array]]:
    """The output, and the input of every layer. The arrays of a stacked network have one more leading axis."""
    # Copied along the stack, so that the product is batched: a shared input makes XLA transpose every hidden layer.
    inputs = [jnp.broadcast_to(x, (*network[0].kernel.shape[:-2], *x.shape))]
    for layer in network[:-1]:
        inputs.append(jax.nn.relu(_affine(layer, inputs[-1])))
    return _affine(network[-1], inputs[-1]), inputs


def backward(
    network: Perceptron, inputs: Sequence[Array], cotangent: Float[Array, "*stack rows outputs"]
) -> list[Array]:
    """The loss's derivative by each layer's pre-activation, first to last: d_l = [h_l > 0] d_{l+1} W_{l+1}^T."""
    deltas = [cotangent]
    for layer, hidden in zip(reversed(network[1:]), reversed(inputs[1:]), strict=True):
        slope = jnp.einsum("...bo,...io->...bi", deltas[0], layer.kernel)
        deltas.insert(0, jnp.where(hidden > 0, slope, 0.0))
    return deltas


def gradient(inputs: Sequence[Array], deltas: Sequence[Array]) -> Perceptron:
    """The loss's derivative by the parameters: dW_l = h_{l-1}^T delta_l, db_l = sum over rows of delta_l."""
    return tuple(
        Layer(kernel_gradient(x, delta), jnp.sum(delta, axis=-2)) for x, delta in zip(inputs, deltas, strict=True)
    )


def _affine(layer: Layer, x: Array) -> Array:
    assert layer.bias is not None
    product = jnp.einsum("...bi,...io->...bo", x, layer.kernel)
    return product + (layer.bias[None] if layer.bias.ndim == 1 else layer.bias[:, None])


def _pad_inputs(layer: Layer, at: int, more: int) -> Layer:
    kernel = jnp.insert(layer.kernel, jnp.full(more, at), 0.0, axis=0) if more else layer.kernel
    return Layer(kernel, layer.bias)


def _pad_outputs(layer: Layer, more: int) -> Layer:
    assert layer.bias is not None
    return Layer(jnp.pad(layer.kernel, ((0, 0), (0, more))), jnp.pad(layer.bias, (0, more)))


def _noise(key: PRNGKeyArray, shape: tuple[int, ...], action_dim: int) -> Float[Array, "*shape action"]:
    return _per_dimension(partial(jax.random.normal, shape=shape), key, action_dim)


def _per_dimension(draw: Callable[[PRNGKeyArray], Array], key: PRNGKeyArray, action_dim: int) -> Array:
    """Random numbers from a key per action dimension, so that a padded member draws what it draws alone."""
    return jax.vmap(draw, out_axes=-1)(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(action_dim)))
