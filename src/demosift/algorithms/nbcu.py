"""Naive behavioural cloning on the union: every sample counts the same.

min_pi  -mean_U log pi(a|s)                                                   (paper, Algorithm 1)
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.bc import State, clone_evenly
from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import PAPER, Cloner, init_cloner
from demosift.learning.networks import Policy
from demosift.types import Transitions


@algorithm
class NBCU:
    """Naive behavioural cloning of the union."""

    name: ClassVar[str] = "nbcu"
    about: ClassVar[About] = About("NBCU", "clones the whole union, every sample alike", colour=1)
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key, self.cloner))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        return clone_evenly(state, batch.union, self.learning_rate, iteration, self.cloner)

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        return jnp.ones(rows.reward.shape)

    def work(self) -> list[Work]:
        return [cloning_work(self.batch_size, self.hidden)]
