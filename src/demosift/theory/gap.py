"""The imitation gap E[V(expert) - V(learned)]: measured on many datasets at once, or in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import binom

from demosift.theory.instances import Instance
from demosift.theory.learners import Learner
from demosift.theory.mdp import Initial, values
from demosift.theory.sampling import collect

# A mean is trusted to within this many of its standard errors: by chance alone one in 1.7 million is further off.
ERRORS = 5.0
EXACT = 1e-12  # the most by which two ways to compute the same number may differ


@dataclass(frozen=True)
class Gap:
    """A measured imitation gap, and the standard error of the measurement."""

    mean: float
    error: float

    @property
    def upper(self) -> float:
        return self.mean + ERRORS * self.error

    def off(self, exact: float) -> float:
        """How many standard errors the measurement is away from this; rounding alone is no distance."""
        distance = abs(self.mean - exact)
        return distance / max(self.error, 1e-12) if distance > 1e-12 else 0.0


def imitation_gap(
    rng: np.random.Generator, instance: Instance, learner: Learner, eta: float, total: int, replicates: int
) -> Gap:
    """The gap under Assumption 1, over as many datasets as there are replicates."""
    learned = values(instance.mdp, learner(collect(rng, instance, eta, total, replicates)))
    return measured(instance.expert_value - learned)


def measured(gaps: Float[np.ndarray, "R"]) -> Gap:
    return Gap(float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps))))


def reset_cliff_gap(initial: Initial, actions: int, horizon: int, eta: float, total: int) -> float:
    """BC's exact imitation gap on Reset Cliff.

    The expert's states are independent draws from `initial` at every step. So with n trajectories a step is survived
    with probability 1 - e_n on average, e_n = (1 - 1/A) sum_s rho(s) (1 - rho(s))^n, independently of the other steps;
    the value is sum_h (1 - e_n)^h, and n is binomial.
    """
    n = np.arange(total + 1) if 0.0 < eta < 1.0 else np.array([round(eta * total)])
    missed = (1.0 - 1.0 / actions) * ((1.0 - initial[:, None]) ** n * initial[:, None]).sum(0)
    lost = 1.0 - (1.0 - missed[:, None]) ** np.arange(1, horizon + 1)
    probability = binom.pmf(n, total, eta) if len(n) > 1 else np.ones(1)
    return float(probability @ lost.sum(-1))


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y = c x^p, by least squares on a log-log plot."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def scaled(count: int, scale: float, least: int = 1) -> int:
    """How many instances or replicates to use when `count` are used at scale one."""
    return max(least, round(count * scale))


def described(instance: Instance, **more: Any) -> dict[str, Any]:
    """An instance in a few numbers, for a table of counterexamples."""
    mdp = instance.mdp
    return {"states": mdp.num_states, "actions": mdp.num_actions, "horizon": mdp.horizon, **more}
