"""From log-ratios to weights: a few coefficients, fitted on held-out rows. And measures of how good weights are.

Suppose that a share rho of the union is distributed as the expert's rows are, and the rest as some d_B. Then

    d_E/d_U  =  d_E / (rho d_E + (1 - rho) d_B)  =  (1/rho) sigmoid(log d_E/d_B + const),

which rises from 0 and levels off at 1/rho: all rows that the expert could have made weigh about the same. The models
return log-ratios z_i that are over-confident and wrong in scale, so the weight is

    log w  =  -log rho  +  log sigmoid(sum_i b_i z_i + b_0),      b_i >= 0,

with the coefficients that minimise the discriminator's own loss (paper, eq. 5), mean_E log(1 + 1/w) + mean_U log(1+w),
over rows whose z come from models that left them out. A z that says nothing about such rows gets the coefficient zero;
if none says anything, every weight is 1.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from demosift.data.folds import episode_batches

LOG_LIMIT = float(np.log(1e6))  # weights stay within [1e-6, 1e6]
RIDGE = 1e-4
USELESS = 1e-3  # a smaller coefficient of a feature with deviation 1 counts as zero
MOST_ROWS = 65_536  # of the union, which is enough to fit a few numbers

Features = Float[np.ndarray, "features rows"]
Rows = Float[np.ndarray, "rows"]


class Coefficients(NamedTuple):
    slopes: Float[np.ndarray, "features"]
    offset: float
    share: float  # rho

    def log_weight(self, features: Features) -> Rows:
        inner = self.slopes @ features + self.offset
        return np.clip(log_expit(inner) - np.log(self.share), -LOG_LIMIT, LOG_LIMIT)

    @property
    def useless(self) -> bool:
        return not (self.slopes > 0).any()


def fit_coefficients(
    features: Features,
    num_expert: int,
    ridge: float = RIDGE,
    standardise: bool = True,
    log_ceiling: float = LOG_LIMIT,
) -> Coefficients:
    """The coefficients of least loss. The first `num_expert` rows are the expert's; all rows are the union's.

    Features whose scale means nothing are standardised, which lets the ridge weigh them alike. No weight exceeds the
    ceiling.
    """
    return fit_sets(
        features[:, :num_expert], features[:, :: thinning(features.shape[1])], ridge, standardise, log_ceiling
    )


def thinning(num_rows: int) -> int:
    """Of the union, every so-manieth row is enough."""
    return max(1, num_rows // MOST_ROWS)


def fit_sets(
    expert: Features, union: Features, ridge: float, standardise: bool = True, log_ceiling: float = LOG_LIMIT
) -> Coefficients:
    """The same from the features of the expert's rows and of the union's."""
    centre = union.mean(axis=1)
    scale = union.std(axis=1) + 1e-9 if standardise else np.ones(len(union))
    x_expert, x_union = (((x.T - centre) / scale).T for x in (expert, union))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slopes, offset, log_top = parameters[:-2], parameters[-2], parameters[-1]
        value, gradient = 0.5 * ridge * slopes @ slopes, np.append(ridge * slopes, [0.0, 0.0])
        for x, sign in ((x_expert, 1.0), (x_union, -1.0)):
            inner = slopes @ x + offset
            z = log_top + log_expit(inner)
            value += -log_expit(sign * z).mean()
            rate = -sign * expit(-sign * z) / x.shape[1]  # dloss/dz
            bend = rate * expit(-inner)
            gradient += np.concatenate([x @ bend, [bend.sum(), rate.sum()]])
        return float(value), gradient

    # Two starts, for a union that is half the expert's and for one that hardly is: the loss is not convex in rho.
    bounds = [(0.0, None)] * len(union) + [(None, None), (0.0, log_ceiling)]
    starts = [
        np.array([*np.ones(len(union)), offset, min(top, log_ceiling)])
        for offset, top in ((1.0, np.log(2.0)), (-4.0, 5.0))
    ]
    solutions = [minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(solutions, key=lambda solution: solution.fun).x
    if (best[:-2] < USELESS).all():
        return Coefficients(np.zeros(len(union)), 0.0, 0.5)
    slopes = np.where(best[:-2] < USELESS, 0.0, best[:-2]) / scale
    return Coefficients(slopes, float(best[-2] - slopes @ centre), float(np.exp(-best[-1])))


def log_loss(log_weight: Rows, num_expert: int) -> float:
    """mean_E log(1 + 1/w) + mean_U log(1 + w), which is 2 log 2 where every weight is 1."""
    return float(np.logaddexp(0, -log_weight[:num_expert]).mean() + np.logaddexp(0, log_weight).mean())


def effective_sample_size(weight: Rows) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted rows these are worth."""
    share = weight / weight.max()
    return float(share.sum() ** 2 / (share**2).sum())


def segment_quantiles(
    value: Rows, starts: Int[np.ndarray, "episodes"], levels: tuple[float, ...]
) -> Float[np.ndarray, "levels episodes"]:
    """Quantiles of every episode's rows, interpolated as `np.quantile` does, without a loop over episodes."""
    found = np.empty((len(levels), len(starts)))
    for episodes, rows in episode_batches(starts, len(value)):
        own, part = starts[episodes] - rows.start, value[rows]
        lengths = np.diff(own, append=len(part))
        ordered = part[np.lexsort((part, np.repeat(np.arange(len(own)), lengths)))]
        position = np.multiply.outer(np.asarray(levels), lengths - 1)
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, lengths - 1)
        low, high = ordered[own + below], ordered[own + above]
        found[:, episodes] = low + (high - low) * (position - below)
    return found
