"""Weighted behavioural cloning on the union: a discriminator's density ratio says how much each sample counts.

    max_c   mean_E log c(s,a) + mean_U log(1 - c(s,a))  -  gradient_penalty * GP     (paper, eq. 5)
    w       = c/(1-c), zero below the threshold delta                                 (paper, eq. 7)
    min_pi  -mean_U  w log pi(a|s)                                                    (paper, Algorithm 2)

Where the paper and its code differ, the default is the code, since it made the tables:
the discriminator and the policy step together, once per iteration, and the weights come from the discriminator as it
was before its step (the paper trains one after the other: `wbcu-two-stage`); the ratio is smoothed (`ratio="exact"` is
the paper's); the penalty is on the gradient of the smoothed logit (`penalty="probability"` is the paper's).
"""

from typing import ClassVar, Literal, NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.discriminator import discriminate, init_discriminator, ratio_weight, weight_metrics
from demosift.learning.learner import Learner
from demosift.learning.losses import (
    discriminator_accuracy,
)
from demosift.learning.networks import (
    Policy,
    scalar,
    state_action,
)
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner
    discriminator: Learner


@algorithm
class WBCU:
    """Weighted behavioural cloning of the union, discriminator and policy together."""

    name: ClassVar[str] = "wbcu"
    needs_supplementary: ClassVar[bool] = True
    mean_limit: ClassVar[float] = 7.0

    gradient_penalty: float = 1.0
    threshold: float = 0.0
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    ratio: Literal["smoothed", "exact"] = "smoothed"
    penalty: Literal["logit", "probability"] = "logit"
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        policy_key, discriminator_key = jax.random.split(key)
        return State(
            init_cloner(batch, self.hidden, policy_key), init_discriminator(batch, self.hidden, discriminator_key)
        )

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        discriminator, discriminator_loss, z_expert, z_union = discriminate(
            state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, self.penalty
        )
        weight = ratio_weight(z_union, self.ratio, self.threshold)
        policy, policy_loss = clone(state.policy, batch.union, weight, self.learning_rate)
        metrics = {
            "policy_loss": policy_loss,
            "discriminator_loss": discriminator_loss,
            "discriminator_accuracy": discriminator_accuracy(z_expert, z_union),
            **weight_metrics(weight),
        }
        return State(policy, discriminator), metrics

    def policy(self, state: State) -> Policy:
        return state.policy.params

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        z = scalar(state.discriminator.params, state_action(rows.obs, rows.action))
        return ratio_weight(z, self.ratio, self.threshold)
