"""Behavioural cloning on the expert set alone: the baseline that ignores the supplementary data.

    min_pi  -mean_E log pi(a|s)                                                   (paper, eq. 1)

The paper's code has no BC run, only an unused deterministic policy beside the tanh-Gaussian one. This is the natural
reading: the same policy class, learning rate and batch size as NBCU and WBCU.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, clone, init_cloner
from demosift.learning.learner import Learner
from demosift.learning.networks import Policy
from demosift.types import Transitions


class State(NamedTuple):
    policy: Learner


def clone_evenly(
    state: State, rows: Transitions, learning_rate: float, iteration: Array, cloner: Cloner, **adam: Any
) -> tuple[State, Metrics]:
    """A step in which every row counts the same."""
    policy, loss = clone(state.policy, rows, jnp.ones(rows.reward.shape), learning_rate, iteration, cloner, **adam)
    return State(policy), {"policy_loss": loss}


@algorithm
class BC:
    """Behavioural cloning of the expert set."""

    name: ClassVar[str] = "bc"
    about: ClassVar[About] = About("BC", "clones the expert's data only", colour=0)
    needs_supplementary: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False

    learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key, self.cloner))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        return clone_evenly(state, batch.expert, self.learning_rate, iteration, self.cloner)

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return jnp.ones(rows.reward.shape)

    def work(self) -> list[Work]:
        return [cloning_work(self.batch_size, self.hidden)]
