"""Discounted, stationary MDPs without a reward, as DemoDICE and DWBC assume; and DemoDICE's d*, solved exactly."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from demosift.theory.mdp import conditional, deterministic

Table = Float[np.ndarray, "S A"]


@dataclass(frozen=True)
class Discounted:
    initial: Float[np.ndarray, "S"]
    transitions: Float[np.ndarray, "S A S"]
    gamma: float

    def occupancy(self, policy: Table) -> Table:
        """d(s, a), normalised: the solution of the Bellman flow equation for this policy."""
        moves = np.einsum("sa,sat->st", policy, self.transitions)
        state = np.linalg.solve(np.eye(len(moves)) - self.gamma * moves.T, (1.0 - self.gamma) * self.initial)
        return state[:, None] * policy

    def flow_error(self, mass: Table) -> float:
        """How far a table is from satisfying the Bellman flow equation."""
        inflow = np.einsum("sa,sat->t", mass, self.transitions)
        return float(np.abs(mass.sum(-1) - (1.0 - self.gamma) * self.initial - self.gamma * inflow).max())


def random_discounted(rng: np.random.Generator, states: int, actions: int) -> Discounted:
    transitions = rng.dirichlet(np.ones(states), (states, actions))
    return Discounted(rng.dirichlet(np.ones(states)), transitions, float(rng.uniform(0.5, 0.95)))


def random_pair(rng: np.random.Generator, world: Discounted, share: float, stochastic: bool) -> tuple[Table, Table]:
    """The occupancies of an expert and of a behaviour that is the expert with probability `share`.

    The other part of the behaviour takes every action sometimes, and so does a stochastic expert.
    """
    states, actions = world.transitions.shape[:2]
    expert = rng.dirichlet(np.ones(actions), states)
    if not stochastic:
        expert = deterministic(rng.integers(actions, size=states), actions)
    of_expert = world.occupancy(expert)
    other = world.occupancy(conditional(rng.uniform(0.1, 1.0, (states, actions))))
    return of_expert, share * of_expert + (1.0 - share) * other


def total_variation(first: Table, second: Table) -> float:
    return float(np.abs(first - second).sum() / 2.0)


def regularised_divergence(mass: Table, expert: Table, union: Table, alpha: float) -> float:
    """DemoDICE's objective KL(d || d^E) + alpha KL(d || d^U)."""
    seen = mass > 0.0
    d, e, u = mass[seen], expert[seen], union[seen]
    return float(np.sum(d * (np.log(d / e) + alpha * np.log(d / u))))


def demodice(world: Discounted, expert: Table, union: Table, alpha: float, tolerance: float = 1e-13) -> Table:
    """The minimiser d* of DemoDICE's objective under the Bellman flow constraint, by Newton's method on its dual.

    With a multiplier nu(s) for each constraint, d* = exp((log d^E + alpha log d^U + nu(s) - gamma E[nu(s')]) /
    (1 + alpha) - 1), and nu maximises (1 - gamma) <rho, nu> - (1 + alpha) sum d*, which is concave. Where the expert
    never goes the divergence is infinite, so d* is zero there and those rows are left out.
    """
    seen = expert > 0.0
    visited = expert.sum(-1) > 0.0
    state, action = np.nonzero(seen)
    weight = 1.0 + alpha
    flow = np.eye(len(expert))[state] - world.gamma * world.transitions[state, action]
    flow, start = flow[:, visited], (1.0 - world.gamma) * world.initial[visited]
    logits = (np.log(expert[seen]) + alpha * np.log(union[seen])) / weight - 1.0
    nu = np.zeros(flow.shape[1])

    def mass(at: np.ndarray) -> np.ndarray:
        return np.exp(logits + flow @ at / weight)

    def dual(at: np.ndarray) -> float:
        return float(start @ at - weight * mass(at).sum())

    for _ in range(200):
        d = mass(nu)
        gradient = start - flow.T @ d
        if np.abs(gradient).max() <= tolerance:
            break
        step = np.linalg.solve(flow.T @ (flow * d[:, None]) / weight, gradient)
        size, rise = 1.0, float(gradient @ step)
        # Near the maximum the rise drowns in rounding; there the whole step is right.
        while rise > 1e-9 and dual(nu + size * step) < dual(nu) + 0.1 * size * rise:
            size /= 2.0
        nu = nu + size * step
    solution = np.zeros(expert.shape)
    solution[seen] = mass(nu)
    return solution
