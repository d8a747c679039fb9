"""Finite-horizon MDPs whose transitions depend on the step, as arrays; values and occupancies by dynamic programming.

Shape letters: H steps, S states, A actions. A policy is an array [H, S, A] whose last axis sums to one; `...` are any
leading axes, such as thousands of policies learned from as many datasets, all evaluated at once.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Initial = Float[np.ndarray, "S"]
Policy = Float[np.ndarray, "... H S A"]
Occupancy = Float[np.ndarray, "... H S A"]


@dataclass(frozen=True)
class MDP:
    """The paper's M = (S, A, P, r, H, rho). There is no transition out of the last step."""

    initial: Initial
    transitions: Float[np.ndarray, "H-1 S A S"]
    rewards: Float[np.ndarray, "H S A"]  # in [0, 1]

    def __post_init__(self) -> None:
        horizon, states, actions = self.rewards.shape
        assert self.initial.shape == (states,)
        assert self.transitions.shape == (horizon - 1, states, actions, states)
        assert np.all((self.rewards >= 0.0) & (self.rewards <= 1.0)), "rewards are in [0, 1]"
        for distribution in (self.initial, self.transitions):
            assert np.all(distribution >= 0.0)
            assert np.allclose(distribution.sum(-1), 1.0, rtol=0.0, atol=1e-12), "probabilities sum to one"

    @property
    def horizon(self) -> int:
        return self.rewards.shape[0]

    @property
    def num_states(self) -> int:
        return self.rewards.shape[1]

    @property
    def num_actions(self) -> int:
        return self.rewards.shape[2]


def q_values(mdp: MDP, policy: Policy) -> Float[np.ndarray, "... H S A"]:
    """Q_h(s, a): the expected reward from step h on, after taking a in s and following the policy from then on."""
    values = np.empty(policy.shape)
    flat = mdp.transitions.reshape(mdp.horizon - 1, mdp.num_states * mdp.num_actions, mdp.num_states)
    values[..., -1, :, :] = mdp.rewards[-1]
    for step in reversed(range(mdp.horizon - 1)):
        following = np.sum(policy[..., step + 1, :, :] * values[..., step + 1, :, :], -1)
        ahead = following @ flat[step].T
        values[..., step, :, :] = mdp.rewards[step] + ahead.reshape(policy[..., step, :, :].shape)
    return values


def values(mdp: MDP, policy: Policy) -> Float[np.ndarray, "..."]:
    """V(pi), from the MDP's own initial distribution."""
    first = np.sum(policy[..., 0, :, :] * q_values(mdp, policy)[..., 0, :, :], -1)
    return first @ mdp.initial


def occupancy(mdp: MDP, policy: Policy, initial: Initial | None = None) -> Occupancy:
    """d_h(s, a): the probability of being in s and taking a at step h. `initial` is where this policy starts."""
    visited = np.empty(policy.shape)
    flat = mdp.transitions.reshape(mdp.horizon - 1, mdp.num_states * mdp.num_actions, mdp.num_states)
    state = np.broadcast_to(mdp.initial if initial is None else initial, (*policy.shape[:-3], mdp.num_states))
    for step in range(mdp.horizon):
        visited[..., step, :, :] = state[..., None] * policy[..., step, :, :]
        if step + 1 < mdp.horizon:
            state = visited[..., step, :, :].reshape(*state.shape[:-1], -1) @ flat[step]
    return visited


def conditional(mass: Float[np.ndarray, "... A"]) -> Float[np.ndarray, "... A"]:
    """Mass as probabilities over the last axis: a policy from its mass(s, a). Uniform where there is no mass."""
    total = mass.sum(-1, keepdims=True)
    return np.where(total > 0.0, mass / np.where(total > 0.0, total, 1.0), 1.0 / mass.shape[-1])


def mixture_policy(first: Occupancy, second: Occupancy, eta: float) -> Policy:
    """The policy whose occupancy is eta * first + (1 - eta) * second (proof of Theorem 2): pi^mix."""
    return conditional(eta * first + (1.0 - eta) * second)


def deterministic(actions: np.ndarray, num_actions: int) -> Policy:
    """The policy that takes `actions[..., h, s]`."""
    return np.eye(num_actions)[actions]


def optimal(mdp: MDP) -> Policy:
    """The best deterministic policy; the first action where several are equally good."""
    best = np.empty((mdp.horizon, mdp.num_states), np.int64)
    value = np.zeros(mdp.num_states)
    for step in reversed(range(mdp.horizon)):
        quality = mdp.rewards[step] + (mdp.transitions[step] @ value if step + 1 < mdp.horizon else 0.0)
        best[step], value = quality.argmax(-1), quality.max(-1)
    return deterministic(best, mdp.num_actions)
