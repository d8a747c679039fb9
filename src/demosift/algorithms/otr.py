"""OTR (Luo et al., ICLR 2023): a row's reward is what its episode's optimal transport onto the expert's costs it; IQL.

    c_t = T sum_j P_tj C_tj      P the optimal transport of the episode's T states onto an expert episode's, C = 1 - cos
    r_t = 5 exp(-5 c_t / dim s)  of the expert episode that gives the episode the largest sum

then times 1000/(best return - worst return). Transport is by states alone, in the units of the data, with eps = 0.01
and 100 iterations of Sinkhorn (`learning/transport.py`). The authors give every step the mass 1/1000, whatever the
episode's length; their last iteration is over the episode's rows, so these masses hold and r_t is as above. The 5 in
front cancels against the scale. The expert's own episodes are treated as all others; the authors' are part of the data
set, so theirs are too. Where nobody knows what the expert did, the supplementary rows alone are learned from.

The step is that of `iql`, where its order and deviations are.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.algorithms.iql import CLONER, State, init_state, iteration_work, learn, weigh_rows
from demosift.learning.about import About, Work
from demosift.learning.algorithm import Batch, Metrics, algorithm
from demosift.learning.cloning import Cloner
from demosift.learning.networks import Policy
from demosift.learning.rewards import made_once, scaled_by_returns, with_known_actions, with_rewards
from demosift.learning.transport import costs_of_episodes
from demosift.types import Demonstrations, Transitions

ALPHA, BETA = 5.0, 5.0


def squashed(cost: Float[np.ndarray, "steps"], obs_dim: int) -> Float[np.ndarray, "steps"]:
    return ALPHA * np.exp(-BETA * cost / obs_dim)


def transport_rewards(data: Demonstrations) -> Float[np.ndarray, "rows"]:
    """Before they are scaled: for each episode of the union, those of the expert episode that suits it best."""
    experts = [episode.obs for episode in data.expert.episodes()]
    parts = [part for part in (data.expert, data.supplementary) if part is not None]
    episodes = [episode.obs for part in parts for episode in part.episodes()]
    found = []
    for costs in costs_of_episodes(episodes, experts):
        rewards = [squashed(cost, data.expert.obs_dim) for cost in costs]
        found.append(max(rewards, key=np.sum))
    return np.concatenate(found)


@algorithm
class OTR:
    """IQL on rewards by the optimal transport of each episode onto the expert's."""

    name: ClassVar[str] = "otr"
    about: ClassVar[About] = About("OTR", "IQL, rewarded by optimal transport of each episode onto the expert's")
    needs_supplementary: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False
    needs_expert_actions: ClassVar[bool] = False

    expectile: float = 0.7
    temperature: float = 3.0
    discount: float = 0.99
    target_rate: float = 0.005
    bias: float = 0.0  # subtracted from every reward, after scaling; the authors' is 2 for AntMaze
    learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    cloner: Cloner = CLONER

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        reward = made_once(self.name, data, folder, transport_rewards)
        return with_known_actions(scaled_by_returns(with_rewards(data, reward)))

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
