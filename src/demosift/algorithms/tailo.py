"""TAILO (Yan, Schwing and Wang, NeurIPS 2023): a row is worth what the rest of its episode looks like.

Two discriminators of states, E the expert's, U the pile's (c their probability, z their logit). The first learns from
positive and unlabelled rows, and the episodes with the lowest mean of z become safe negatives N for the second:

    L_1 = eta BCE(E, 1) + max(0, BCE(U, 0) - eta BCE(E, 0)) + penalty (||dz/ds|| - 1)^2
    L_2 = BCE(E, 1) + BCE(N, 0)                             + penalty (||dz/ds|| - 1)^2

    R(s) = z(s) = log c/(1-c),      W_t = sum_{j>=0} gamma^j exp(kappa R(s_{t+j})),     the last state repeated for ever
    L_pi = -mean_U W log pi(a|s)

So W_T = exp(kappa R(s_T)) / (1-gamma) at an episode's last row, and W_t = exp(kappa R(s_t)) + gamma W_{t+1} before it.
There is no value function, so rows that are missing from an episode only shorten the sum. The expert's actions are
never used: its rows have no weight.

Order: both discriminators to the end, the weights of all rows, then the policy, on rows of the pile drawn in proportion
to W. That divides the loss by the mean weight (the authors' code divides by the largest), which matters only beside the
weight decay. Sums are taken in logarithms, so no exponential overflows. The discriminators are the same for all seeds
that share their data.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demosift.algorithms.bc import State, clone_evenly
from demosift.data.normaliser import fit_normaliser
from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm, before_training
from demosift.learning.cloning import PAPER, Cloner, init_cloner
from demosift.learning.discriminator import weight_metrics
from demosift.learning.learner import TORCH_ADAM_EPSILON
from demosift.learning.losses import discriminator_loss
from demosift.learning.networks import Policy, fan_in_uniform
from demosift.learning.prepared import Kept, kept_in, key_of
from demosift.learning.pretraining import Discriminator, Loss, Stage, logits
from demosift.learning.stages import Stages, alone
from demosift.ranges import BATCH, NOT_NEGATIVE, SHARE, STEPS, Range
from demosift.results.checkpoint import Arrays
from demosift.types import Demonstrations, InputError, Transitions

Rows = Float[np.ndarray, "rows"]
Ends = Int[np.ndarray, "episodes"]


@dataclass(frozen=True)
class PositiveUnlabelled:
    """eta BCE(E, 1) + max(0, BCE(U, 0) - eta BCE(E, 0)): a share eta of the unlabelled rows is the expert's.

    A class, so that equal losses are equal: a compiled program is found by what it is made of.
    """

    eta: float

    def __call__(self, z_expert: Float[Array, "rows"], z_other: Float[Array, "rows"]) -> Float[Array, ""]:
        as_expert, as_other = (jnp.mean(jax.nn.softplus(sign * z_expert)) for sign in (-1.0, 1.0))
        return self.eta * as_expert + jnp.maximum(jnp.mean(jax.nn.softplus(z_other)) - self.eta * as_other, 0.0)


def safe_negatives(z: Rows, episode_ends: Ends, share: float) -> Bool[np.ndarray, "rows"]:
    """The rows of the episodes whose mean is below this quantile of all means; those of one episode at the least.

    Of n episodes ceil(share (n - 1)) are below the (linearly interpolated) quantile, if no two are alike.
    """
    lengths = np.diff(episode_ends, prepend=0)
    means = np.add.reduceat(z, episode_ends - lengths) / lengths
    count = max(1, int(np.ceil(share * (len(means) - 1))))
    chosen = np.zeros(len(means), bool)
    chosen[np.argsort(means, kind="stable")[:count]] = True
    return np.repeat(chosen, lengths)


def log_discounted_sum(log_reward: Rows, episode_ends: Ends, discount: float) -> Rows:
    """log sum_j gamma^j exp(r_{t+j}) within each episode, whose last row is repeated for ever."""
    last = episode_ends - 1
    lengths = np.diff(episode_ends, prepend=0)
    total = np.array(log_reward, np.float64)
    total[last] -= np.log1p(-discount)
    log_discount = np.log(discount) if discount > 0.0 else -np.inf
    for back in range(1, int(lengths.max())):  # all episodes at once, from their ends to their starts
        row = last[lengths > back] - back
        total[row] = np.logaddexp(total[row], log_discount + total[row + 1])
    return total


@algorithm
class TAILO:
    """Imitation weighted by the discounted future of each row."""

    name: ClassVar[str] = "tailo"
    about: ClassVar[About] = About(
        "TAILO", "clones the pile, weighted by how expert-like the rest of an episode is", colour=11, iterations=20_000
    )
    needs_supplementary: ClassVar[bool] = True
    needs_expert_actions: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False

    learning_rate: float = 1e-4
    weight_decay: float = 1e-5
    kappa: float = before_training(1.25, NOT_NEGATIVE)
    discount: float = before_training(0.998, Range(0, 1 - 1e-9))
    eta: float = before_training(0.2)
    gradient_penalty: float = before_training(10.0)
    negative_share: float = before_training(0.8, SHARE)
    discriminator_learning_rate: float = before_training(3e-4)
    first_iterations: int = before_training(10_000, STEPS)
    discriminator_iterations: int = 40_000
    discriminator_batch_size: int = before_training(512, BATCH)
    batch_size: int = 8_192
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        """The data with their weights; with a folder, the log-ratios of the states are kept there."""
        kept = kept_in(folder)
        return alone(self.prepare_in_stages(data, kept), kept)

    def prepare_in_stages(self, data: Demonstrations, kept: Kept) -> Stages[Demonstrations]:
        if data.supplementary is None:
            raise InputError("tailo: needs a supplementary dataset to clone; bc does not")
        first = (self.eta, self.first_iterations, self.negative_share)
        second = (self.discriminator_iterations, self.gradient_penalty, self.discriminator_learning_rate)
        key = key_of(data, self.name, *first, *second, self.discriminator_batch_size, self.hidden)
        found = kept.read(key, {"log_ratio": len(data.supplementary)})
        if found is None:
            found = yield from self.compare(data)
            kept.write(key, found)
        total = log_discounted_sum(self.kappa * found["log_ratio"], data.supplementary.episode_ends, self.discount)
        return replace(data, weight=np.concatenate([np.zeros(len(data.expert)), np.exp(total - total.max())]))

    def compare(self, data: Demonstrations) -> Stages[Arrays]:
        """R(s) of the pile's rows."""
        assert data.supplementary is not None
        normaliser, pile = fit_normaliser(data, "supplementary"), data.supplementary
        expert, other = (normaliser.apply(each.transitions.obs) for each in (data.expert, pile))

        def stage(loss: Loss, negative: np.ndarray, iterations: int, of: str) -> Stage:
            how = Discriminator(
                loss,
                self.discriminator_learning_rate,
                gradient_penalty=self.gradient_penalty,
                batch_size=self.discriminator_batch_size,
                hidden=self.hidden,
            )
            return Stage(how, expert, negative, iterations, f"tailo: {of} discriminator", of)

        first = yield stage(PositiveUnlabelled(self.eta), other, self.first_iterations, "first")
        negative = safe_negatives(logits(first, other), pile.episode_ends, self.negative_share)
        second = yield stage(discriminator_loss, other[negative], self.discriminator_iterations, "second")
        return {"log_ratio": logits(second, other)}

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        return State(init_cloner(batch, self.hidden, key, self.cloner, fan_in_uniform))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        rows = batch.supplementary if batch.weighted is None else batch.weighted
        adam = {"epsilon": TORCH_ADAM_EPSILON, "weight_decay": self.weight_decay}
        state, metrics = clone_evenly(state, rows, self.learning_rate, iteration, self.cloner, **adam)
        return state, metrics | weight_metrics(jnp.ones(rows.reward.shape) if batch.weight is None else batch.weight)

    def policy(self, state: State) -> Policy:
        return state.policy.acting

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """The policy weighs nothing: what a row is worth was decided before it was trained."""
        return jnp.ones(rows.reward.shape)

    def work(self) -> list[Work]:
        return [cloning_work(self.batch_size, self.hidden)]
