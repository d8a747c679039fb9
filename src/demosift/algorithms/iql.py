"""Implicit Q-learning (Kostrikov, Nair and Levine, ICLR 2022): values of the data's own actions, then cloning by them.

    L_V  = mean_U |tau - 1(Q' < V)| (Q' - V)^2           Q' = min_i Q'_i(s,a), V = V(s): an expectile above the mean
    L_Q  = mean_U sum_i (r + gamma [no terminal] V(s') - Q_i(s,a))^2
    w    = min(exp(temperature (Q' - V)), 100)
    L_pi = -mean_U  w log pi(a|s)

Q' are target networks. The rewards are those in the data, so scaled that the best and the worst return are 1,000 apart,
as the authors do for locomotion (for AntMaze they take `scaling="none", bias=1`). `seabo` and `otr` run the same step
on rewards of their own.

**Order of one iteration**, as in the authors' code: V steps; the policy steps with the weights of the new V; the twin Q
step towards targets of the new V; the target networks move by 0.005 towards the new Q.

Deviations: the policy is the tanh-Gaussian that every method here clones (the authors' is a Gaussian around a squashed
mean, with one deviation for all states); states are normalised, as for every method here (the authors' are not); the
policy's learning rate falls to zero at the end of the run, whatever its length (theirs after a million iterations).
"""

from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from demosift.learning.about import About, Work, cloning_work, forward_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import Cloner, clone, init_cloner
from demosift.learning.discriminator import weight_metrics
from demosift.learning.learner import Learner, descend, start
from demosift.learning.networks import Initialiser, Perceptron, Policy, init_perceptron, scalar, state_action
from demosift.learning.rewards import return_range, scaled_by_returns
from demosift.types import Demonstrations, InputError, Transitions

ADAM_EPSILON = 1e-8  # of optax, which the authors use
LARGEST_WEIGHT = 100.0
CLONER = Cloner(rate_schedule="cosine")

orthogonal: Initialiser = jax.nn.initializers.orthogonal(2.0**0.5)

Rows = Float[Array, "rows"]
Twins = tuple[Perceptron, Perceptron]


class State(NamedTuple):
    policy: Learner
    value: Learner
    critics: Learner
    targets: Twins


@runtime_checkable
class Settings(Protocol):
    """What the step needs of a method's hyper-parameters."""

    @property
    def expectile(self) -> float: ...
    @property
    def temperature(self) -> float: ...
    @property
    def discount(self) -> float: ...
    @property
    def target_rate(self) -> float: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def critic_learning_rate(self) -> float: ...
    @property
    def cloner(self) -> Cloner: ...


def expectile_loss(gap: Rows, expectile: float) -> Float[Array, ""]:
    """mean |tau - 1(gap < 0)| gap^2: its minimum over V is the mean of Q for tau = 1/2, and the maximum for tau = 1."""
    return jnp.mean(jnp.where(gap > 0.0, expectile, 1.0 - expectile) * gap**2)


def bellman_target(reward: Rows, next_value: Rows, terminal: Shaped[Array, "rows"], discount: float) -> Rows:
    return reward + discount * jnp.where(terminal, 0.0, next_value)


def advantage_weight(advantage: Rows, temperature: float) -> Rows:
    return jnp.minimum(jnp.exp(temperature * advantage), LARGEST_WEIGHT)


def least(critics: Twins, x: Float[Array, "rows inputs"]) -> Rows:
    """The smaller of the twins' values."""
    return jnp.minimum(*(scalar(critic, x) for critic in critics))


def init_state(batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray, cloner: Cloner) -> State:
    """Every layer starts orthogonal, times the square root of two; the targets start as the critics."""
    policy_key, value_key, *critic_keys = jax.random.split(key, 4)
    obs, kernels = batch.union.obs, [orthogonal] * (len(hidden) + 1)
    inputs = obs.shape[-1] + batch.union.action.shape[-1]
    first, second = (init_perceptron(each, (inputs, *hidden, 1), kernels) for each in critic_keys)
    return State(
        init_cloner(batch, hidden, policy_key, cloner, orthogonal),
        start(init_perceptron(value_key, (obs.shape[-1], *hidden, 1), kernels)),
        start((first, second)),
        # Copies: the memory of a state is reused by the next one, and no two of its arrays may share it.
        jax.tree.map(jnp.copy, (first, second)),
    )


def learn(setting: Settings, state: State, rows: Transitions, reward: Rows, iteration: Array) -> tuple[State, Metrics]:
    """One iteration of V, the policy, the twins and their targets, in this order."""
    x = state_action(rows.obs, rows.action)
    q = least(state.targets, x)

    def value_loss(network: Perceptron) -> Float[Array, ""]:
        return expectile_loss(q - scalar(network, rows.obs), setting.expectile)

    loss_v, gradient = jax.value_and_grad(value_loss)(state.value.params)
    value = descend(state.value, gradient, setting.critic_learning_rate, epsilon=ADAM_EPSILON)
    v, next_v = jnp.split(scalar(value.params, jnp.concatenate([rows.obs, rows.next_obs])), 2)
    weight = advantage_weight(q - v, setting.temperature)
    policy, loss_pi = clone(
        state.policy, rows, weight, setting.learning_rate, iteration, setting.cloner, epsilon=ADAM_EPSILON
    )
    target = bellman_target(reward, next_v, rows.terminal, setting.discount)

    def critic_loss(twins: Twins) -> Float[Array, ""]:
        return sum((jnp.mean((scalar(critic, x) - target) ** 2) for critic in twins), jnp.zeros(()))

    loss_q, gradient = jax.value_and_grad(critic_loss)(state.critics.params)
    critics = descend(state.critics, gradient, setting.critic_learning_rate, epsilon=ADAM_EPSILON)
    rate = setting.target_rate
    targets = jax.tree.map(lambda old, new: (1.0 - rate) * old + rate * new, state.targets, critics.params)
    metrics = {
        "policy_loss": loss_pi,
        "value_loss": loss_v,
        "critic_loss": loss_q,
        "value_mean": jnp.mean(v),
        "reward_mean": jnp.mean(reward),
        **weight_metrics(weight),
    }
    return State(policy, value, critics, targets), metrics


def weigh_rows(state: State, rows: Transitions, temperature: float) -> Rows:
    q = least(state.targets, state_action(rows.obs, rows.action))
    return advantage_weight(q - scalar(state.value.params, rows.obs), temperature)


def iteration_work(batch: int, hidden: tuple[int, ...]) -> list[Work]:
    """Four networks step; the targets are evaluated once, and the new V at both states."""
    return [*[cloning_work(batch, hidden)] * 4, *[forward_work(batch, hidden)] * 2, forward_work(2 * batch, hidden)]


@algorithm
class IQL:
    """Implicit Q-learning on the rewards in the data."""

    name: ClassVar[str] = "iql"
    about: ClassVar[About] = About("IQL", "clones the union, weighted by the advantage of the data's own rewards")
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    expectile: float = 0.7
    temperature: float = 3.0
    discount: float = 0.99
    target_rate: float = 0.005
    bias: float = 0.0  # subtracted from every reward; with 1, steps cost and reaching a terminal ends the cost
    learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    scaling: Literal["returns", "none"] = "returns"  # of the rewards: the best and worst return 1,000 apart
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = CLONER

    def check_data(self, data: Demonstrations) -> None:
        if not data.union.reward.any():
            raise InputError("iql: every reward in the data is zero; seabo and otr make rewards of their own")
        if self.scaling == "returns" and not return_range(data):
            raise InputError("iql: every episode has the same return, which cannot be scaled; take scaling none")

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        self.check_data(data)
        return scaled_by_returns(data) if self.scaling == "returns" else data

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return init_state(batch, self.hidden, key, self.cloner)

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        return learn(self, state, batch.union, batch.union.reward - self.bias, iteration)

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return weigh_rows(state, rows, self.temperature)

    def work(self) -> list[Work]:
        return iteration_work(self.batch_size, self.hidden)
