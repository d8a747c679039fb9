"""The linear discriminator c(s, a) = sigmoid(<phi(s, a), theta>) of Equation 11, solved exactly, many at once.

Its loss (Equation 12) at one time step, over rows i with features phi_i, is

    L(theta) = sum_i a_i log(1 + exp(-<phi_i, theta>)) + b_i log(1 + exp(<phi_i, theta>)),

where a_i is the row's share of the expert's data (d^E) and b_i its share of the union (d^U). An expert row is in both,
as the union holds the expert's data, so it has both labels. Shape letters: I instances, n rows, d features.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.optimize import nnls
from scipy.special import expit

Theta = Float[np.ndarray, "I d"]
PerInstance = Float[np.ndarray, "I"]

# A gradient this small, relative to the sum of the rows' pulls that cancel in it, is rounding.
CONVERGED = 1e-14
MOST_ITERATIONS = 200
# Stiemke's system of unit rows counts as solved below this residual. What NNLS leaves by rounding is below 1e-13.
CERTAIN = 1e-9


@dataclass(frozen=True)
class Rows:
    """The samples of one time step, in I instances. A row without weight and label is padding.

    `good` marks D^E and D^(S,1), the rows the expert took; `bad` marks D^(S,2). A discriminator sees neither.
    """

    features: Float[np.ndarray, "I n d"]
    expert: Float[np.ndarray, "I n"]  # a
    union: Float[np.ndarray, "I n"]  # b
    good: Bool[np.ndarray, "I n"]
    bad: Bool[np.ndarray, "I n"]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: np.ndarray | slice) -> "Rows":
        """Some of the instances."""
        return Rows(*(part[index] for part in vars(self).values()))

    @property
    def dimension(self) -> int:
        return self.features.shape[-1]


def dataset(expert: ArrayLike, good: ArrayLike, bad: ArrayLike) -> Rows:
    """One instance from the features of D^E, D^(S,1) and D^(S,2), each [*, d]: the union is all three."""
    parts = [np.asarray(part, np.float64).reshape(-1, np.shape(expert)[-1]) for part in (expert, good, bad)]
    sizes = [len(part) for part in parts]
    kind = np.repeat([0, 1, 2], sizes)[None]
    shares = np.where(kind == 0, 1.0 / max(sizes[0], 1), 0.0), np.full(kind.shape, 1.0 / sum(sizes))
    return Rows(np.concatenate(parts)[None], *shares, kind < 2, kind == 2)


def scores(rows: Rows, theta: Theta) -> Float[np.ndarray, "I n"]:
    """<phi, theta>: the logarithm of the weight w = c / (1 - c)."""
    return np.einsum("ind,id->in", rows.features, theta)


def loss(rows: Rows, theta: Theta) -> PerInstance:
    """L(theta) (Equation 12)."""
    z = scores(rows, theta)
    return np.sum(rows.expert * np.logaddexp(0.0, -z) + rows.union * np.logaddexp(0.0, z), -1)


def gradient(rows: Rows, theta: Theta) -> Theta:
    """sum_i (b_i sigmoid(z_i) - a_i sigmoid(-z_i)) phi_i."""
    z = scores(rows, theta)
    pull = rows.union * expit(z) - rows.expert * expit(-z)
    return np.einsum("in,ind->id", pull, rows.features)


def pulls(rows: Rows) -> PerInstance:
    """The sum of the rows' pulls, which cancel in the gradient at the minimiser."""
    return np.einsum("in,ind->i", rows.expert + rows.union, np.abs(rows.features))


def curvature(z: np.ndarray) -> np.ndarray:
    """sigmoid'(z), the second derivative of log(1 + exp(z)); even in z, and falling away from zero."""
    return expit(z) * expit(-z)


def hessian(rows: Rows, theta: Theta) -> Float[np.ndarray, "I d d"]:
    """sum_i (a_i + b_i) sigmoid'(z_i) phi_i phi_i^T."""
    return gram(rows.features, (rows.expert + rows.union) * curvature(scores(rows, theta)))


def gram(features: Float[np.ndarray, "I n d"], weight: Float[np.ndarray, "I n"]) -> Float[np.ndarray, "I d d"]:
    """sum_i weight_i phi_i phi_i^T."""
    return np.swapaxes(features, -1, -2) @ (features * weight[..., None])


@dataclass(frozen=True)
class Minimiser:
    """One for each instance; `theta` is NaN where the loss has no finite minimiser."""

    theta: Theta
    finite: Bool[np.ndarray, "I"]
    residual: PerInstance  # the gradient that is left, relative to the rows' pulls that cancel in it
    iterations: int


def minimise(rows: Rows) -> Minimiser:
    """The minimiser of the loss, where there is one, by Newton steps from zero, shortened where necessary.

    A step times ln(1 + m) / m, where m = max_i |<phi_i, step>|, always descends, as the loss is generalised
    self-concordant (|L'''| <= m L'' along the step; Sun and Tran-Dinh 2019). The full step is taken where it descends
    enough, and a small one is as good as full. Where the rows do not span the space the minimiser is the shortest.
    """
    finite = has_minimiser(rows)
    theta = np.tile(np.where(finite, 0.0, np.nan)[:, None], rows.dimension)
    residual = np.where(finite, np.inf, np.nan)
    total = pulls(rows)
    total[total == 0.0] = 1.0
    left, iterations = np.flatnonzero(finite), 0
    while len(left) and iterations < MOST_ITERATIONS:
        now = rows[left]
        slope = gradient(now, theta[left])
        size = residual[left] = np.abs(slope).max(-1) / total[left]
        step = -_solve(hessian(now, theta[left]), slope)
        reach = np.abs(scores(now, step)).max(-1)
        factor = np.where(reach > 0.0, np.log1p(reach) / np.where(reach > 0.0, reach, 1.0), 1.0)
        if np.any(bold := reach > 1.0):
            some, at, move = now[bold], theta[left][bold], step[bold]
            descent = loss(some, at) + 0.25 * np.sum(slope[bold] * move, -1)
            factor[bold] = np.where(loss(some, at + move) <= descent, 1.0, factor[bold])
        # An instance takes this step even if it has converged: it squares what is left, at next to no cost.
        theta[left] += factor[:, None] * step
        left, iterations = left[size > CONVERGED], iterations + 1
    return Minimiser(theta, finite, residual, iterations)


def _solve(matrix: Float[np.ndarray, "I d d"], vector: Theta) -> Theta:
    """The shortest solution of symmetric systems, which are singular where the rows do not span the space."""
    if matrix.shape[-1] == 1:
        flat = matrix[:, 0]
        return np.divide(vector, flat, out=np.zeros_like(vector), where=flat > 0.0)
    value, vectors = np.linalg.eigh(matrix)
    enough = value > 1e-13 * value[:, -1:]
    inverse = np.divide(1.0, value, out=np.zeros_like(value), where=enough & (value > 0.0))
    return np.einsum("ide,ie,ice,ic->id", vectors, inverse, vectors, vector)


def has_minimiser(rows: Rows) -> Bool[np.ndarray, "I"]:
    """Whether the infimum of the loss is attained.

    It is not attained if and only if there is a direction v in which no row's term rises and one falls: <phi, v> >= 0
    on expert rows, <= 0 on union rows, not all zero. A row in both must then have <phi, v> = 0. So there is a minimiser
    if the rows of D^E span the space; that D^U spans it (rank(A) = d, Lemma 2) is not enough.
    """
    both = (rows.expert > 0.0) & (rows.union > 0.0)
    held = np.linalg.matrix_rank(rows.features * both[..., None]) == rows.dimension
    for index in np.flatnonzero(~held):
        held[index] = recession_direction(rows[index : index + 1]) is None
    return held


def recession_direction(rows: Rows) -> Float[np.ndarray, "d"] | None:
    """A direction in which the loss of one instance falls for ever, or None if there is none.

    Stiemke's lemma: either B v <= 0, B v != 0 has a solution v, or B^T y = 0 has a solution y > 0. With y = 1 + u,
    u >= 0, the second is a non-negative least squares problem, and its residual r is the certificate of whichever
    holds: if r = 0 it is the second, and otherwise v = -r solves the first, by the optimality conditions for u.
    """
    (features,) = rows.features
    signed = np.concatenate([-features[rows.expert[0] > 0.0], features[rows.union[0] > 0.0]])
    length = np.linalg.norm(signed, axis=-1, keepdims=True)
    unit = (signed / np.where(length > 0.0, length, 1.0))[length[:, 0] > 0.0]
    if not len(unit):
        return None
    solution, distance = nnls(unit.T, -unit.sum(0), maxiter=100 * len(unit))
    if distance <= CERTAIN:
        return None
    residual = unit.T @ (1.0 + solution)
    return -residual / np.linalg.norm(residual)
