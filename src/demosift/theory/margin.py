"""The margin of a linear discriminator, the largest one there is, and the constants of Lemmas 1 and 2 and Theorem 5.

    Delta(theta) = min over good rows <theta, phi> - max over bad rows <theta, phi>

It is positive if and only if some threshold on the weight keeps all good rows and no bad one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

from demosift.theory.linear import Minimiser, PerInstance, Rows, Theta, curvature, gram, loss, minimise, scores

PIECES = 8  # the segment from theta* to theta-bar has this many; on each the Hessian is bounded from below


def extremes(rows: Rows, score: Float[np.ndarray, "I n"]) -> tuple[PerInstance, PerInstance]:
    """The lowest score of a good row and the highest of a bad one; infinite where there is none."""
    return np.where(rows.good, score, np.inf).min(-1), np.where(rows.bad, score, -np.inf).max(-1)


def margin(rows: Rows, theta: Theta) -> PerInstance:
    """Delta(theta). Without a bad row it is infinite, as the maximum over none is."""
    return np.subtract(*extremes(rows, scores(rows, theta)))


def deciding_difference(rows: Rows, theta: Theta) -> Theta:
    """The worst good row under theta less the worst bad one."""
    z = scores(rows, theta)
    every = np.arange(len(rows))
    good = rows.features[every, np.where(rows.good, z, np.inf).argmin(-1)]
    return good - rows.features[every, np.where(rows.bad, z, -np.inf).argmax(-1)]


def lipschitz(rows: Rows, theta: Theta) -> PerInstance:
    """L of Lemma 1: how far apart the worst good and the worst bad row under theta are. It depends on theta."""
    return np.linalg.norm(deciding_difference(rows, theta), axis=-1)


@dataclass(frozen=True)
class MaximumMargin:
    """theta-bar for each instance: the unit vector of largest margin, NaN where no margin is positive."""

    theta: Theta
    separable: Bool[np.ndarray, "I"]
    excess: PerInstance  # by how much any margin could exceed this one at most, relative to it: the duality gap


def maximum_margin(rows: Rows) -> MaximumMargin:
    """The largest margin over unit vectors is the distance between the hulls of good and of bad rows.

    Let the rows of G be the differences between a good and a bad row. The margin is 1 / |x| for the shortest x with
    G x >= 1: a least distance problem, which is one non-negative least squares problem in the multipliers (Lawson and
    Hanson 1974, chapter 23). These also give a point p in the hull of G, and no unit vector has a margin above |p|.
    """
    if rows.dimension == 1:  # there are two unit vectors
        up, down = (margin(rows, np.full((len(rows), 1), sign)) for sign in (1.0, -1.0))
        separable = np.maximum(up, down) > 0.0
        theta = np.where(separable, np.where(up > down, 1.0, -1.0), np.nan)[:, None]
        return MaximumMargin(theta, separable, np.where(separable, 0.0, np.nan))
    number = len(rows)
    pairs = rows.good[:, :, None] & rows.bad[:, None, :]
    difference = np.where(pairs[..., None], rows.features[:, :, None] - rows.features[:, None, :], 0.0)
    difference = difference.reshape(number, -1, rows.dimension)
    size = np.maximum(np.linalg.norm(difference, axis=-1).max(-1), np.finfo(float).tiny)[:, None]
    unit = difference / size[..., None]
    # A column of zeros, where there is no pair, never gets a multiplier.
    system = np.concatenate([unit, pairs.reshape(number, -1, 1)], -1).swapaxes(-1, -2)
    target = np.eye(rows.dimension + 1)[-1]
    multiplier, distance = np.zeros(unit.shape[:2]), np.zeros(number)
    for index in range(number):
        multiplier[index], distance[index] = nnls(system[index], target, maxiter=100 * unit.shape[1])
    # Otherwise the hulls meet, or nearly so: they are within a ten-millionth of their size.
    separable = pairs.any((-2, -1)) & (distance > 1e-7)
    residual = np.einsum("idm,im->id", system, multiplier) - target
    x = np.where(separable[:, None], residual[:, :-1], np.nan)
    theta = x / np.linalg.norm(x, axis=-1, keepdims=True)
    point = np.einsum("im,imd->id", multiplier, difference) / np.where(separable, multiplier.sum(-1), 1.0)[:, None]
    return MaximumMargin(theta, separable, np.linalg.norm(point, axis=-1) / margin(rows, theta) - 1.0)


def growth(rows: Rows, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """The largest tau for which quadratic growth (Lemma 2) holds: 2 (L(bar) - L(star)) / |bar - star|^2."""
    return 2.0 * (loss(rows, theta_bar) - loss(rows, theta_star)) / np.sum((theta_bar - theta_star) ** 2, -1)


def proof_tau(rows: Rows, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """tau as the proof of Lemma 2 prints it, where a union row's share is 1 / (|D^E| + |D^U|)."""
    number = (rows.expert > 0.0).sum(-1, keepdims=True) + (rows.union > 0.0).sum(-1, keepdims=True)
    return _diagonal_tau(rows, np.where(rows.union > 0.0, 1.0 / number, 0.0), theta_star, theta_bar)


def corrected_tau(rows: Rows, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """The proof's tau with the loss's own share of a union row, 1 / |D^U|."""
    return _diagonal_tau(rows, rows.union, theta_star, theta_bar)


def _diagonal_tau(rows: Rows, union: np.ndarray, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """(min |B x| over unit x)^2 times the smallest second derivative of any row's term at either end.

    B has a row for every sample of D^E and again one for every sample of D^U.
    """
    times = (rows.expert > 0.0) * 1.0 + (rows.union > 0.0)
    smallest = _smallest(rows, times)
    steep = np.minimum(curvature(scores(rows, theta_star)), curvature(scores(rows, theta_bar)))
    share = np.minimum(np.where(rows.expert > 0.0, rows.expert, np.inf), np.where(union > 0.0, union, np.inf))
    return np.maximum(smallest, 0.0) * np.where(times > 0.0, steep * share, np.inf).min(-1)


def segment_tau(rows: Rows, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """The smallest Hessian eigenvalue on the segment between the two, bounded from below.

    Within a piece of the segment, each row's second derivative is at least the smaller of those at the piece's ends,
    as it rises and then falls. This is the argument of Lemma 2's proof, applied to the rows before eigenvalues are
    taken. So the Hessian is at least the sum over rows with those.
    """
    steep = _along(rows, theta_star, theta_bar)
    pieces = (np.minimum(left, right) for left, right in pairwise(steep))
    return np.min([_smallest(rows, weight) for weight in pieces], 0)


def segment_tau_from_above(rows: Rows, theta_star: Theta, theta_bar: Theta) -> PerInstance:
    """The smallest Hessian eigenvalue at the ends of the pieces: with `segment_tau`, a bracket."""
    return np.min([_smallest(rows, weight) for weight in _along(rows, theta_star, theta_bar)], 0)


def _along(rows: Rows, theta_star: Theta, theta_bar: Theta) -> list[Float[np.ndarray, "I n"]]:
    """The rows' weights in the Hessian, at the ends of the pieces of the segment."""
    first, last = scores(rows, theta_star), scores(rows, theta_bar)
    share = rows.expert + rows.union
    return [share * curvature(first + t * (last - first)) for t in np.linspace(0.0, 1.0, PIECES + 1)]


def _smallest(rows: Rows, weight: Float[np.ndarray, "I n"]) -> PerInstance:
    """The smallest eigenvalue of sum_i weight_i phi_i phi_i^T."""
    return np.linalg.eigvalsh(gram(rows.features, weight))[:, 0]


Tau = Callable[[Rows, Theta, Theta], PerInstance]  # of the rows, theta* and theta-bar
TAUS: Mapping[str, Tau] = {"printed": proof_tau, "corrected": corrected_tau, "segment": segment_tau}


@dataclass(frozen=True)
class Solved:
    """Instances for which both parameters exist. Those without a finite minimiser are counted and left out."""

    rows: Rows
    star: Theta  # what the discriminator's loss leads to
    bar: Theta  # the unit vector of largest margin
    without_minimiser: int
    unsolved: int  # how often the learner left a gradient above rounding: never, unless it is broken

    def __len__(self) -> int:
        return len(self.rows)

    def with_length(self, length: PerInstance) -> "Solved":
        """The same instances with features rescaled so that |theta*| is `length`: longer features, shorter theta*."""
        factor = np.linalg.norm(self.star, axis=-1) / length
        rows = replace(self.rows, features=self.rows.features * factor[:, None, None])
        return replace(self, rows=rows, star=self.star / factor[:, None])


Learn = Callable[[Rows], Minimiser]


def solve(rows: Rows, learn: Learn = minimise) -> Solved:
    learned = learn(rows)
    best = maximum_margin(rows)
    both = learned.finite & best.separable
    return Solved(
        rows[both],
        learned.theta[both],
        best.theta[both],
        int(np.sum(~learned.finite)),
        int(np.sum(~(learned.residual[learned.finite] <= 1e-12))),
    )
