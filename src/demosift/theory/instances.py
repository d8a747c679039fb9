"""The worlds that the claims are about: an MDP, an expert in it, and the behaviour that collects the rest of the data.

The hard ones come from the literature: Standard Imitation (Xu et al. 2021), where a missed state costs its own reward
only, and Reset Cliff (Rajaraman et al. 2020), where one wrong action costs the rest of the episode.
"""

from dataclasses import dataclass, replace

import numpy as np

from demosift.theory.mdp import (
    MDP,
    Initial,
    Policy,
    conditional,
    deterministic,
    mixture_policy,
    occupancy,
    optimal,
    values,
)


@dataclass(frozen=True)
class Instance:
    """An MDP with its expert and its behaviour policy, each [H, S, A]."""

    mdp: MDP
    expert: Policy
    behaviour: Policy
    behaviour_initial: Initial | None = None  # where the behaviour starts, if not where the expert does

    @property
    def expert_value(self) -> float:
        return float(values(self.mdp, self.expert))

    @property
    def behaviour_value(self) -> float:
        """The value of the behaviour as a policy, so from the MDP's own initial distribution."""
        return float(values(self.mdp, self.behaviour))

    @property
    def expert_occupancy(self) -> np.ndarray:
        return occupancy(self.mdp, self.expert)

    @property
    def behaviour_occupancy(self) -> np.ndarray:
        return occupancy(self.mdp, self.behaviour, self.behaviour_initial)


def always(action: int, horizon: int, states: int, actions: int) -> Policy:
    return deterministic(np.full((horizon, states), action), actions)


def standard_imitation(states: int, actions: int, horizon: int) -> Instance:
    """Standard Imitation: every state absorbs, the first action is worth 1, the start is uniform.

    The expert always takes the first action and the behaviour the second (proof of Proposition 1).
    """
    stay = np.broadcast_to(np.eye(states)[None, :, None, :], (horizon - 1, states, actions, states))
    rewards = np.zeros((horizon, states, actions))
    rewards[..., 0] = 1.0
    mdp = MDP(np.full(states, 1.0 / states), stay, rewards)
    return Instance(mdp, always(0, *rewards.shape), always(1, *rewards.shape))


def rare_start(states: int, rarity: float) -> Initial:
    """Each state but the last two has probability `rarity`, the last but one has the rest, and the last has none."""
    initial = np.full(states, rarity)
    initial[-2:] = 1.0 - rarity * (states - 2), 0.0
    assert initial[-2] >= 0.0, "the rare states' probabilities exceed one"
    return initial


def reset_cliff(states: int, actions: int, horizon: int, initial: Initial) -> Instance:
    """Reset Cliff: the first action is worth 1 and draws the next state from `initial`; any other falls off.

    The last state is the foot of the cliff: no reward and no way out, so a single mistake costs all later rewards and
    the gap grows with H squared. With N trajectories and `initial = rare_start(S, 1 / (N + 1))` a rare state is missed
    as often as possible, and the gap falls like 1/N; in a fixed MDP it falls exponentially in the end.
    The behaviour is uniform.
    """
    transitions = np.zeros((horizon - 1, states, actions, states))
    transitions[..., -1] = 1.0
    transitions[:, :-1, 0, :] = initial
    rewards = np.zeros((horizon, states, actions))
    rewards[:, :-1, 0] = 1.0
    mdp = MDP(initial, transitions, rewards)
    return Instance(mdp, always(0, *rewards.shape), np.full(rewards.shape, 1.0 / actions))


def random_policy(rng: np.random.Generator, horizon: int, states: int, actions: int, spread: float = 1.0) -> Policy:
    """Random action probabilities; the smaller `spread`, the closer to deterministic."""
    return rng.dirichlet(np.full(actions, spread), (horizon, states))


def random_mdp(rng: np.random.Generator, states: int, actions: int, horizon: int, successors: int | None = None) -> MDP:
    """Uniform rewards; every state and action leads to at most `successors` states, with random probabilities."""
    successors = states if successors is None else min(successors, states)
    shape = (horizon - 1, states, actions)
    reached = np.argsort(rng.random((*shape, states)), -1)[..., :successors]
    transitions = np.zeros((*shape, states))
    np.put_along_axis(transitions, reached, rng.dirichlet(np.ones(successors), shape), -1)
    return MDP(rng.dirichlet(np.ones(states)), transitions, rng.random((horizon, states, actions)))


def random_instance(
    rng: np.random.Generator, states: int, actions: int, horizon: int, stochastic: bool = False
) -> Instance:
    """A random MDP with an optimal (or a random stochastic) expert, and a behaviour that is a random mixture.

    The behaviour mixes the expert and a random policy in a random proportion. It is the paper's
    pi^beta = sum_i alpha_i pi^i, each of whose trajectories comes from one of its base policies. The distribution of
    the data at each step depends on the mixture's occupancy alone, so its Markov policy can stand for it.
    """
    mdp = random_mdp(rng, states, actions, horizon, successors=int(rng.integers(1, states + 1)))
    size = (horizon, states, actions)
    expert = random_policy(rng, *size) if stochastic else optimal(mdp)
    other = occupancy(mdp, random_policy(rng, *size, spread=float(rng.choice([0.1, 1.0]))))
    return Instance(mdp, expert, mixture_policy(occupancy(mdp, expert), other, float(rng.random())))


def behaviour_is_expert(instance: Instance) -> Instance:
    """The same world with the expert as the behaviour (Theorem 3)."""
    return replace(instance, behaviour=instance.expert, behaviour_initial=None)


def no_overlap(rng: np.random.Generator, states: int, actions: int, horizon: int) -> Instance:
    """The behaviour never meets an expert state (Theorem 4): half of the states are the expert's, half its own.

    It starts from its own distribution, on its half. In the theorem both policies start from rho, so their supports
    meet at the first step whatever they do. The expert's actions stay in the expert's half, and all actions in the
    other half stay there; any other action in the expert's half leads anywhere, so a mistake can be costly.
    """
    assert states >= 2
    of_expert = np.arange(states) < states // 2
    expert = deterministic(rng.integers(actions, size=(horizon, states)), actions)
    weights = rng.dirichlet(np.ones(states), (horizon - 1, states, actions))
    closed = expert[:-1].astype(bool) & of_expert[:, None]
    weights *= np.where(closed[..., None], of_expert, 1.0)
    weights *= np.where(of_expert[:, None, None], 1.0, ~of_expert)
    initial = conditional(rng.random(states) * of_expert)
    rewards = np.where(of_expert[:, None], 1.0, 0.5) * rng.random((horizon, states, actions))
    mdp = MDP(initial, conditional(weights), rewards)
    behaviour = random_policy(rng, horizon, states, actions)
    return Instance(mdp, expert, behaviour, conditional(rng.random(states) * ~of_expert))


def detour(rng: np.random.Generator, states: int, actions: int, horizon: int) -> Instance:
    """Half of the states are the expert's: its action is worth 1 there and stays there, any other leads outside.

    Outside there is no reward; the expert's action leads back and any other does not. So a sample from outside matters
    only to a policy that has already gone wrong.
    """
    of_expert = np.arange(states) < states // 2
    expert = deterministic(rng.integers(actions, size=(horizon, states)), actions)
    weights = rng.random((horizon - 1, states, actions, states))
    weights *= np.where(expert[:-1, :, :, None] > 0.0, of_expert, ~of_expert)
    mdp = MDP(conditional(rng.random(states) * of_expert), conditional(weights), expert * of_expert[:, None])
    return Instance(mdp, expert, random_policy(rng, horizon, states, actions))
