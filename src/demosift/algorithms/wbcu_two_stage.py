"""WBCU as the paper's Algorithm 2 has it: train the discriminator, then weigh the samples, then clone them.

The same losses and weights as `wbcu` (its docstring has the equations) on another schedule: the discriminator alone
trains for the first `discriminator_iterations` and is then frozen. A sample's weight is computed when the sample is
drawn, which gives the same numbers as weighing all samples once. A policy iteration costs a quarter of a joint one.

Where the data come with weights (`demosift score`, then `--scores`), these replace the discriminator's: every iteration
trains the policy, and the discriminator is never trained.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.wbcu import State, init_state
from demosift.learning.about import About, Work, cloning_work, forward_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone
from demosift.learning.discriminator import discriminate, ratio_weight, weigh_rows, weight_metrics
from demosift.learning.networks import Policy
from demosift.types import Transitions


@algorithm
class WBCUTwoStage:
    """Weighted behavioural cloning of the union, discriminator first."""

    name: ClassVar[str] = "wbcu-two-stage"
    about: ClassVar[About] = About(
        "Two-stage WBCU", "clones the union, weighted by a discriminator trained first", colour=3
    )
    needs_supplementary: ClassVar[bool] = True
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
    cloner: Cloner = PAPER

    @property
    def policy_from(self) -> int:
        return self.discriminator_iterations

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return init_state(batch, self.hidden, key, self.cloner)

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        def discriminator_step(state: State) -> tuple[State, Metrics]:
            discriminator, z_union, metrics = discriminate(
                state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, self.penalty
            )
            weight = ratio_weight(z_union, self.ratio, self.threshold)
            return State(state.policy, discriminator), as_float32(
                {"policy_loss": jnp.nan, **metrics, **weight_metrics(weight)}
            )

        def policy_step(state: State) -> tuple[State, Metrics]:
            weight = self.weigh(state, batch.union) if batch.weight is None else self.kept(batch.weight)
            policy, loss = clone(state.policy, batch.union, weight, self.learning_rate, iteration, self.cloner)
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
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return weigh_rows(state.discriminator, rows, self.ratio, self.threshold)

    def work(self) -> list[Work]:
        """The work of the second stage, in which the discriminator only weighs."""
        return [cloning_work(self.batch_size, self.hidden), forward_work(self.batch_size, self.hidden)]


def as_float32(metrics: dict) -> Metrics:
    """Both branches of the schedule must report the same types."""
    return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
