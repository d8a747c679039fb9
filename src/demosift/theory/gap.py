"""The imitation gap E[V(expert) - V(learned)]: measured on many datasets at once, or in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import binom

from demosift.theory.claim import Finding, Tightest
from demosift.theory.instances import Instance
from demosift.theory.learners import Learner
from demosift.theory.mdp import Initial, values
from demosift.theory.sampling import collect

# A mean is trusted to within this many of its standard errors. By chance alone, one in 1.7 million is further off.
ERRORS = 5.0
EXACT = 1e-12  # the most by which two ways to compute the same number may differ
BELOW = f"1 - (gap + {ERRORS:g} standard errors) / bound"


@dataclass(frozen=True)
class Gap:
    """A measured imitation gap, and the standard error of the measurement."""

    mean: float
    error: float

    @property
    def upper(self) -> float:
        return self.mean + ERRORS * self.error

    @property
    def lower(self) -> float:
        return self.mean - ERRORS * self.error

    def below(self, bound: float) -> float:
        """The room under a bound, relative to it; negative where the gap is larger."""
        return 1.0 - self.upper / bound

    def off(self, exact: float) -> float:
        """How many standard errors lie between the measurement and `exact`; rounding counts as none."""
        distance = abs(self.mean - exact)
        return distance / max(self.error, 1e-12) if distance > 1e-12 else 0.0


def imitation_gap(
    rng: np.random.Generator, instance: Instance, learner: Learner, eta: float, total: int, replicates: int
) -> Gap:
    """The gap under Assumption 1, averaged over `replicates` datasets."""
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
    """How many instances or replicates to use where scale one uses `count`."""
    return max(least, round(count * scale))


def described(instance: Instance) -> dict[str, Any]:
    """An instance in a few numbers, for a counterexample."""
    mdp = instance.mdp
    return {"states": mdp.num_states, "actions": mdp.num_actions, "horizon": mdp.horizon}


@dataclass
class Bounded:
    """Measured gaps, each beside its bound min(H, level + constant * rate)."""

    constant: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    tightest: Tightest = field(default_factory=Tightest)

    def add(
        self,
        gap: Gap,
        rate: float,
        instance: Instance,
        eta: float,
        total: int,
        kind: str = "random",
        level: float = 0.0,
    ) -> None:
        bound = min(float(instance.mdp.horizon), level + self.constant * rate)
        above, room = gap.mean - level, gap.below(bound)
        self.rows.append({"kind": kind, "gap": above, "rate": rate, "bound": bound, "share": above / rate})
        case = {"kind": kind, "eta": eta, "total": total, "gap": gap.mean, "bound": bound, "room": room}
        self.tightest.see(room, **described(instance), **case)

    @property
    def fitting_constant(self) -> float:
        """The smallest constant with which every measured gap would lie below its bound."""
        return max(row["share"] for row in self.rows)

    def finding(self) -> Finding:
        numbers = {"rows": self.rows, "constant": self.constant, "fitting constant": self.fitting_constant}
        return self.tightest.finding(len(self.rows), BELOW, numbers)
