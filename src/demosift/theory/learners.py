"""The exact tabular learners: BC, NBCU and WBCU from counts, and BC over a finite class of policies.

A learner takes the counts of R pairs of datasets and returns R policies. On a state without any weight a policy is
uniform, and with an empty dataset it is uniform everywhere. The paper's closed forms do the same (Equations 2 and 4);
this makes tabular WBCU and BC one policy rather than two maximisers of one objective.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from demosift.theory.mdp import Policy, conditional
from demosift.theory.sampling import Counts, Data

Learner = Callable[[Data], Policy]  # -> [R, H, S, A]
Weights = Float[np.ndarray, "R H S A"]


def bc(data: Data) -> Policy:
    """Behavioural cloning of the expert's data: n^E(s, a) / n^E(s) (Equation 2)."""
    return conditional(data.expert.astype(np.float64))


def nbcu(data: Data) -> Policy:
    """Behavioural cloning of the union: n^U(s, a) / n^U(s) (Equation 4)."""
    return conditional(data.union.astype(np.float64))


def wbcu(data: Data, delta: float = 0.0) -> Policy:
    """Weighted cloning of the union (Equation 6) with the tabular discriminator's weights."""
    _, union = empirical(data)
    return weighted(union, tabular_weights(data), delta)


def weighted(union: Weights, weight: Weights, delta: float = 0.0) -> Policy:
    """The maximiser of sum d^U w log pi over samples with w >= delta, for any weights (Equation 6)."""
    return conditional(union * weight * (weight >= delta))


def tabular_weights(data: Data) -> Weights:
    """w = c / (1 - c), with the discriminator's closed form c = d^E / (d^E + d^U) (Equations 8 and 9).

    Where the union has no sample the weight is zero; the objective has no term there.
    """
    expert, union = empirical(data)
    both = expert + union
    c = np.divide(expert, both, out=np.zeros_like(both), where=both > 0.0)
    return c / (1.0 - c)


def empirical(data: Data) -> tuple[Weights, Weights]:
    """The empirical distributions of the expert's data and of the union; zero where there is no data."""
    expert, union = (each / np.maximum(each.sum((-2, -1), keepdims=True), 1) for each in (data.expert, data.union))
    return expert, union


def most_likely(counts: Counts, policies: Float[np.ndarray, "P H S A"]) -> Int[np.ndarray, "R"]:
    """BC over a finite class: the index of the most likely policy, the first one where several are equally likely."""
    flat = counts.reshape(len(counts), -1).astype(np.float64)
    table = policies.reshape(len(policies), -1).T
    possible = table > 0.0
    likelihood = flat @ np.log(np.where(possible, table, 1.0))
    return np.where(flat @ ~possible > 0.0, -np.inf, likelihood).argmax(-1)
