"""ILID (Yue et al., ICML 2024): rows of the pile are worth imitating if they lead to states of the expert.

A discriminator d(s) tells the expert's states E from the pile's, and a row of the pile is selected (S) if a state that
follows it, at most K steps later in its episode, looks like the expert's:

    L_d  = -mean_E log d(s) - mean_pile log(1 - d(s)),      d clipped to [0.1, 0.9], without a gradient outside
    S    = { t : d(s_{t+k}) >= sigma for some k = 1 .. K }
    L_D  = -mean_E log D(s,a) - mean_{E+S} log(1 - D(s,a)), D clipped alike
    L_pi = -mean_{E+S} D/(1-D) log pi(a|s)  -  mean_S beta log pi(a|s)

In the paper beta = 1[d(s) <= sigma]: in the expert's states the ratio D/(1-D) decides between actions, elsewhere every
selected row counts. The authors' code computes beta and does not use it (`form="code"`: beta = 1). Either way the first
mean is over the expert's and the selected rows, as in that code.

One array of weights over the N rows of the union gives both terms. A mean over n of them is N/n times the mean over all
of them of the term times an indicator, so

    w = N ( 1[E+S] D/(1-D) / (n_E + n_S)  +  1[S] beta / n_S ),     mean_U w log pi = -L_pi.

Order: d, the selection, D, the weights, then the policy, on rows drawn in proportion to w. That divides L_pi by the
mean of w, which is between 1 and 2 for the best D and matters only beside the weight decay. The discriminators are the
same for all seeds that share their data. s_{t+1} is the stored successor, so an episode's last state counts, and no
state of the next episode does; the authors' loader takes the first state of the next one.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.special import expit

from demosift.algorithms.bc import State, clone_evenly
from demosift.algorithms.dwbc import DISCRIMINATOR_RANGE, MEAN_LIMIT
from demosift.data.normaliser import fit_normaliser
from demosift.learning.about import About, Work, cloning_work
from demosift.learning.algorithm import Batch, Metrics, algorithm, before_training
from demosift.learning.cloning import PAPER, Cloner
from demosift.learning.discriminator import weight_metrics
from demosift.learning.learner import TORCH_ADAM_EPSILON, start
from demosift.learning.networks import Policy, fan_in_uniform, init_policy
from demosift.learning.prepared import Kept, kept_in, key_of
from demosift.learning.pretraining import Discriminator, Stage, logits
from demosift.learning.stages import Stages, alone
from demosift.ranges import STEPS, UNIT
from demosift.results.checkpoint import Arrays
from demosift.types import Demonstrations, InputError, Transitions

DISCRIMINATOR_DECAY = 0.005

Rows = Float[np.ndarray, "rows"]
Mask = Bool[np.ndarray, "rows"]


def clipped_loss(z_expert: Float[Array, "rows"], z_other: Float[Array, "rows"]) -> Float[Array, ""]:
    """-mean log d_E - mean log(1 - d_O), d clipped: no gradient outside."""
    d_expert, d_other = (jnp.clip(jax.nn.sigmoid(z), *DISCRIMINATOR_RANGE) for z in (z_expert, z_other))
    return -jnp.mean(jnp.log(d_expert)) - jnp.mean(jnp.log1p(-d_other))


def likeness(z: Rows) -> Rows:
    return np.clip(expit(z), *DISCRIMINATOR_RANGE)


def leads_to(hit: Mask, episode_ends: Int[np.ndarray, "episodes"], steps: int) -> Mask:
    """Which rows have a hit among the successors of the `steps` rows from their own on, in their own episode."""
    rows = len(hit)
    place = np.where(hit, np.arange(rows), rows)
    next_hit = np.minimum.accumulate(place[::-1])[::-1]
    end = np.repeat(episode_ends, np.diff(episode_ends, prepend=0))
    return next_hit < np.minimum(end, np.arange(rows) + steps)


def joint_weight(
    ratio: Float[np.ndarray, "union"], selected: Mask, beta: Mask, num_expert: int
) -> Float[np.ndarray, "union"]:
    """Of the union's rows, from those of the pile that were selected and, of these, those with beta = 1.

    `ratio` is D/(1-D) of the union.
    """
    rows, num_selected = len(ratio), int(selected.sum())
    used = np.concatenate([np.ones(num_expert, bool), selected])
    diverse = np.concatenate([np.zeros(num_expert, bool), selected & beta])
    return rows * (used * ratio / (num_expert + num_selected) + diverse / max(num_selected, 1))


@algorithm
class ILID:
    """Imitation of what leads to the expert's states."""

    name: ClassVar[str] = "ilid"
    about: ClassVar[About] = About("ILID", "clones the expert's rows and those that lead to its states", colour=10)
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    form: Literal["paper", "code"] = "paper"
    learning_rate: float = 1e-4
    weight_decay: float = 0.005
    sigma: float = before_training(0.4, UNIT)
    steps_ahead: int = before_training(20, STEPS)
    discriminator_learning_rate: float = before_training(1e-5)
    discriminator_iterations: int = 100_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = PAPER

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        """The data with their weights; with a folder, what the discriminators say is kept there."""
        kept = kept_in(folder)
        return alone(self.prepare_in_stages(data, kept), kept)

    def prepare_in_stages(self, data: Demonstrations, kept: Kept) -> Stages[Demonstrations]:
        if data.supplementary is None:
            raise InputError("ilid: needs a supplementary dataset to select from; bc does not")
        settings = (self.discriminator_learning_rate, self.discriminator_iterations, self.batch_size, self.hidden)
        key = key_of(data, self.name, self.sigma, self.steps_ahead, *settings)
        pile = len(data.supplementary)
        rows = {"likeness": pile, "selected": pile, "ratio": len(data.expert) + pile}
        found = kept.read(key, rows)
        if found is None:
            found = yield from self.select(data)
            kept.write(key, found)
        if not found["selected"].any():
            warnings.warn("ilid: no row of the pile leads to a state of the expert; its own are cloned", stacklevel=2)
        beta = found["likeness"] <= self.sigma if self.form == "paper" else np.ones(pile, bool)
        return replace(data, weight=joint_weight(found["ratio"], found["selected"], beta, len(data.expert)))

    def select(self, data: Demonstrations) -> Stages[Arrays]:
        """d(s) of the pile, which rows of it are selected, and D/(1-D) of the union."""
        assert data.supplementary is not None
        normaliser, pile = fit_normaliser(data, "union"), data.supplementary
        obs, next_obs = (normaliser.apply(array) for array in (data.union.obs, pile.transitions.next_obs))
        first, rest = obs[: len(data.expert)], obs[len(data.expert) :]
        of_states = yield self.stage(first, rest, "states")
        hit = likeness(logits(of_states, next_obs)) >= self.sigma
        selected = leads_to(hit, pile.episode_ends, self.steps_ahead)
        x = np.concatenate([obs, data.union.action.astype(obs.dtype)], axis=1)
        used = np.concatenate([np.ones(len(first), bool), selected])
        of_actions = yield self.stage(x[: len(first)], x[used], "actions")
        both = likeness(logits(of_actions, x))
        return {"likeness": likeness(logits(of_states, rest)), "selected": selected, "ratio": both / (1.0 - both)}

    def stage(self, expert: np.ndarray, other: np.ndarray, of: str) -> Stage:
        how = Discriminator(
            clipped_loss,
            self.discriminator_learning_rate,
            weight_decay=DISCRIMINATOR_DECAY,
            batch_size=self.batch_size,
            hidden=self.hidden,
        )
        return Stage(how, expert, other, self.discriminator_iterations, f"ilid: discriminator of {of}", of)

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        obs, action, floor, body = batch.union.obs, batch.union.action, self.cloner.log_std_floor, self.cloner.body()
        policy = init_policy(key, obs, action, self.hidden, fan_in_uniform, MEAN_LIMIT, floor, body)
        return State(start(policy, self.cloner.average > 0.0))

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        rows = batch.union if batch.weighted is None else batch.weighted
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
