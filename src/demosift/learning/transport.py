"""Optimal transport between episodes: what it costs to move each step of one onto the steps of another.

    min_P  sum_ij P_ij C_ij - eps H(P),   rows of P sum to 1/n, columns to 1/m,   C_ij = 1 - cos(s_i, s_j)

Sinkhorn's iterations, P_ij = u_i K_ij v_j with K = exp(-C/eps), in float64. A cosine cost is at most 2, so K is at
least exp(-200) and neither u nor v can leave the range of float64: this is the iteration that others compute with
logarithms, which cost an exponential for every entry of every pass; here a pass is two products. One pass gives both: a
block of rows has its u, and while it is in the cache it is added to the columns' sums.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64
from threadpoolctl import threadpool_limits

from demosift.simulation.cores import core_threads
from demosift.types import InputError

EPSILON, ITERATIONS = 0.01, 100
BLOCK = 65_536  # entries of K in the cache together
LARGEST = 2**26  # entries of one cost matrix, half a gigabyte; each core has two such matrices

States = Float[np.ndarray, "_ obs"]
Costs = Float64[np.ndarray, "_"]


def cosine_cost(a: States, b: States) -> Float64[np.ndarray, "a b"]:
    """One minus the cosine of the angle between states; a state of zeros is at a right angle to all."""
    a, b = (direction(each.astype(np.float64)) for each in (a, b))
    return np.clip(1.0 - a @ b.T, 0.0, 2.0)


def direction(states: Float64[np.ndarray, "steps obs"]) -> Float64[np.ndarray, "steps obs"]:
    length = np.linalg.norm(states, axis=1, keepdims=True)
    return states / np.where(length > 0, length, 1.0)


def transport_plan(
    cost: Float64[np.ndarray, "a b"], epsilon: float = EPSILON, iterations: int = ITERATIONS
) -> Float64[np.ndarray, "a b"]:
    """The plan after so many iterations, each first of the columns, then of the rows, whose sums therefore hold."""
    rows, columns = cost.shape
    kernel = np.exp(-cost / epsilon)
    u, v, sums = np.empty(rows), np.empty(columns), kernel.sum(axis=0)
    step = max(1, BLOCK // columns)
    for _ in range(iterations):
        v = 1.0 / (columns * sums)
        sums = np.zeros(columns)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            u[part] = 1.0 / (rows * (kernel[part] @ v))
            sums += u[part] @ kernel[part]
    kernel *= u[:, None]
    kernel *= v[None]
    return kernel


def step_costs(episode: States, other: States) -> Costs:
    """The mean cost of moving each step of an episode: the plan's cost in its row, of the mass in its row."""
    cost = cosine_cost(episode, other)
    plan = transport_plan(cost)
    return len(episode) * np.einsum("ij,ij->i", plan, cost)


def costs_of_episodes(episodes: Sequence[States], experts: Sequence[States]) -> list[list[Costs]]:
    """For every episode the costs of its steps against each of the experts. Each core takes an episode at a time."""
    longest, other = (max(map(len, each)) for each in (episodes, experts))
    if longest * other > LARGEST:
        raise InputError(
            f"otr: an episode of {longest:,} steps against one of {other:,} of the expert takes too much "
            "memory; cut them into shorter episodes"
        )

    def one(episode: States) -> list[Costs]:
        return [step_costs(episode, expert) for expert in experts]

    with threadpool_limits(1, "blas"), core_threads() as threads:
        return list(threads.map(one, episodes))
