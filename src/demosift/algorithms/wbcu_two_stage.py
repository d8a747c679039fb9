"""WBCU as the paper's Algorithm 2 has it: train the discriminator, then weigh the samples, then clone them.

The same losses and weights as `wbcu` (its docstring has the equations) on another schedule: the discriminator alone
takes the first `discriminator_iterations`, then stays as it is. A sample's weight is computed when the sample is
drawn: the discriminator no longer moves, so these are the numbers that weighing all samples once would give. A policy
iteration costs a quarter of a joint one.

Where the data come with weights (`demosift score`, then `--scores`), they take the discriminator's place: every
iteration is one of the policy, and the discriminator stays as it was made.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.wbcu import State
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.discriminator import discriminate, init_discriminator, ratio_weight, weight_metrics
from demosift.learning.losses import discriminator_accuracy
from demosift.learning.networks import Policy, scalar, state_action
from demosift.types import Transitions


@algorithm
class WBCUTwoStage:
    """Weighted behavioural cloning of the union, discriminator first."""

    name: ClassVar[str] = "wbcu-two-stage"
    needs_supplementary: ClassVar[bool] = True
    mean_limit: ClassVar[float] = 7.0
    takes_weights: ClassVar[bool] = True

    gradient_penalty: float = 1.0
    threshold: float = 0.0
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    ratio: Literal["smoothed", "exact"] = "smoothed"
    penalty: Literal["logit", "probability"] = "logit"
    discriminator_iterations: int = 10_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, discriminator_key = jax.random.split(key)
        return State(
            init_cloner(batch, self.hidden, policy_key), init_discriminator(batch, self.hidden, discriminator_key)
        )

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        def discriminator_step(state: State) -> tuple[State, Metrics]:
            discriminator, loss, z_expert, z_union = discriminate(
                state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, self.penalty
            )
            weight = ratio_weight(z_union, self.ratio, self.threshold)
            metrics = {
                "policy_loss": jnp.nan,
                "discriminator_loss": loss,
                "discriminator_accuracy": discriminator_accuracy(z_expert, z_union),
                **weight_metrics(weight),
            }
            return State(state.policy, discriminator), as_float32(metrics)

        def policy_step(state: State) -> tuple[State, Metrics]:
            weight = self.weigh(state, batch.union) if batch.weight is None else self.kept(batch.weight)
            policy, loss = clone(state.policy, batch.union, weight, self.learning_rate)
            unknown = {"discriminator_loss": jnp.nan, "discriminator_accuracy": jnp.nan}
            return State(policy, state.discriminator), as_float32(
                {"policy_loss": loss, **unknown, **weight_metrics(weight)}
            )

        if batch.weight is not None:
            return policy_step(state)
        return jax.lax.cond(iteration < self.discriminator_iterations, discriminator_step, policy_step, state)

    def kept(self, weight: Float[Array, "rows"]) -> Float[Array, "rows"]:
        return jnp.where(weight >= self.threshold, weight, 0.0)

    def policy(self, state: State) -> Policy:
        return state.policy.params

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        z = scalar(state.discriminator.params, state_action(rows.obs, rows.action))
        return ratio_weight(z, self.ratio, self.threshold)


def as_float32(metrics: dict) -> Metrics:
    """Both branches of the schedule must report the same types."""
    return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
