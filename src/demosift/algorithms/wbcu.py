"""Weighted behavioural cloning on the union: a discriminator's density ratio says how much each sample counts.

    max_c   mean_E log c(s,a) + mean_U log(1 - c(s,a))  -  gradient_penalty * GP     (paper, eq. 5)
    w       = c/(1-c), zero below the threshold delta                                 (paper, eq. 7)
    min_pi  -mean_U  w log pi(a|s)                                                    (paper, Algorithm 2)

Where the paper and its code differ, the default is the code, since it made the tables:

- the discriminator and the policy step together, once per iteration, and the weights come from the discriminator as it
  was before its step (the paper trains one after the other: `wbcu-two-stage`);
- the ratio is smoothed (`ratio="exact"` is the paper's);
- the penalty is on the gradient of the smoothed logit (`penalty="probability"` is the paper's).
"""

from typing import ClassVar, Literal, NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.discriminator import discriminate, init_discriminator, ratio_weight, weigh_rows, weight_metrics
from demosift.learning.learner import Learner
from demosift.learning.networks import Policy
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner
    discriminator: Learner


def init_state(batch: Batch, hidden: tuple[int, ...], key: PRNGKeyArray, cloner: Cloner) -> State:
    policy_key, discriminator_key = jax.random.split(key)
    policy = init_cloner(batch, hidden, policy_key, cloner)
    return State(policy, init_discriminator(batch, hidden, discriminator_key))


@algorithm
class WBCU:
    """Weighted behavioural cloning of the union, discriminator and policy together."""

    name: ClassVar[str] = "wbcu"
    about: ClassVar[About] = About("WBCU", "clones the union, weighted by the discriminator", colour=2, penalised=True)
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    gradient_penalty: float = 1.0
    threshold: float = 0.0
    learning_rate: float = 3e-4
    discriminator_learning_rate: float = 3e-4
    ratio: Literal["smoothed", "exact"] = "smoothed"
    penalty: Literal["logit", "probability"] = "logit"
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return init_state(batch, self.hidden, key, self.cloner)

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        discriminator, z_union, metrics = discriminate(
            state.discriminator, batch, self.discriminator_learning_rate, self.gradient_penalty, self.penalty
        )
        weight = ratio_weight(z_union, self.ratio, self.threshold)
        policy, loss = clone(state.policy, batch.union, weight, self.learning_rate, iteration, self.cloner)
        return State(policy, discriminator), {"policy_loss": loss, **metrics, **weight_metrics(weight)}

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return weigh_rows(state.discriminator, rows, self.ratio, self.threshold)

    def work(self) -> list[Work]:
        batch, hidden = self.batch_size, self.hidden
        return [cloning_work(batch, hidden), cloning_work(4 * batch, hidden)]
