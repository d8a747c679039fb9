"""The positive result end to end: over features that separate, WBCU's imitation gap falls with supplementary data."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.drawing import COLOURS
from demosift.theory.gap import ERRORS, EXACT, Gap, measured, scaled
from demosift.theory.instances import Instance, always, reset_cliff
from demosift.theory.learners import Weights, bc, empirical, nbcu, wbcu, weighted
from demosift.theory.linear import Rows, minimise, scores
from demosift.theory.margin import Learn, extremes, margin
from demosift.theory.mdp import Policy, values
from demosift.theory.sampling import Counts, Data, roll_out

STATES, ACTIONS, HORIZON, DIMENSION = 40, 2, 5, 3
NUM_EXPERT = 12
SHARE = 0.3  # the share of supplementary trajectories that the expert collected
SUPPLEMENTARY = (10, 30, 100, 300, 1000, 3000)

Features = Float[np.ndarray, "R H S A d"]
Represent = Callable[[np.random.Generator, Instance, int], Features]  # features for each of R replicates


def world() -> Instance:
    """Reset Cliff with states of very different probability, and a behaviour that always steps off.

    Assumption 2 needs such a behaviour. If a bad trajectory takes the expert's action in a state that a good one
    visits, that sample is good and bad at once, and no feature can separate a sample from itself.
    """
    rarity = 1.0 / np.arange(1.0, STATES) ** 1.5
    cliff = reset_cliff(STATES, ACTIONS, HORIZON, np.append(rarity / rarity.sum(), 0.0))
    return replace(cliff, behaviour=always(1, HORIZON, STATES, ACTIONS))


def separating(rng: np.random.Generator, instance: Instance, replicates: int, noise: float = 0.3) -> Features:
    """One feature tells the expert's actions from others, with noise; the rest is noise."""
    noisy = noise * rng.normal(size=(replicates, HORIZON, STATES, ACTIONS, DIMENSION))
    noisy[..., 0] = np.where(instance.expert > 0.0, 1.0, -1.0) + 0.5 * np.clip(noisy[..., 0], -1.0, 1.0)
    return noisy


def of_states(rng: np.random.Generator, instance: Instance, replicates: int) -> Features:
    """Features of the state alone: the action makes no difference, so nothing separates at the first step."""
    state = rng.normal(size=(replicates, HORIZON, STATES, 1, DIMENSION))
    return np.repeat(state, ACTIONS, axis=-2)


@dataclass(frozen=True)
class Split:
    """Data together with who collected its supplementary part: D^(S,1) and D^(S,2), which no learner sees."""

    data: Data
    good: Counts  # D^(S,1)
    bad: Counts  # D^(S,2)

    @property
    def of_expert(self) -> Data:
        """All that the expert collected, as if it were known."""
        return Data(self.data.expert + self.good, np.zeros_like(self.good))


def draw_data(rng: np.random.Generator, instance: Instance, supplementary: int, replicates: int) -> Split:
    good = round(SHARE * supplementary)
    sizes = ((instance.expert, NUM_EXPERT), (instance.expert, good), (instance.behaviour, supplementary - good))
    parts = [roll_out(rng, instance.mdp, policy, np.full(replicates, number)) for policy, number in sizes]
    return Split(Data(parts[0], parts[1] + parts[2]), parts[1], parts[2])


def rows_of(split: Split, features: Features) -> Rows:
    """One instance of the discriminator's problem per replicate and step; its rows are pairs of state and action."""
    count = len(split.good) * HORIZON
    expert, union = (part.reshape(count, -1) for part in empirical(split.data))
    good, bad = (part.reshape(count, -1) > 0 for part in (split.of_expert.expert, split.bad))
    return Rows(features.reshape(count, -1, DIMENSION), expert, union, good, bad)


@dataclass(frozen=True)
class Linear:
    """What WBCU with a linear discriminator learns from each replicate."""

    thresholded: Policy  # with a delta half way between the lowest good and the highest bad score, as theory has it
    plain: Policy  # with delta = 0, as in practice
    separates: np.ndarray  # [R]: whether the margin is positive at every step
    found: np.ndarray  # [R]: whether the loss has a minimiser at every step


def linear_wbcu(split: Split, features: Features, learn: Learn = minimise) -> Linear:
    rows = rows_of(split, features)
    learned = learn(rows)
    theta = np.where(learned.finite[:, None], learned.theta, 0.0)
    z = np.where(rows.union > 0.0, scores(rows, theta), -np.inf)
    middle = np.add(*extremes(rows, z)) / 2.0
    weight = np.exp(z - z.max(-1, keepdims=True))  # a factor per step does not change the policy
    kept = np.where(z >= middle[:, None], weight, 0.0)
    shape = split.good.shape

    def policy(weights: Weights) -> Policy:
        return weighted(empirical(split.data)[1], weights.reshape(shape))

    separates = (margin(rows, theta) > 0.0) & learned.finite
    at_every_step = (np.all(part.reshape(shape[:2]), axis=-1) for part in (separates, learned.finite))
    return Linear(policy(kept), policy(weight), *at_every_step)


def check_positive(
    rng: np.random.Generator,
    scale: float,
    features: Represent = separating,
    useless: Represent = of_states,
    learn: Learn = minimise,
) -> Finding:
    """Where the margin is positive WBCU is BC on all that the expert collected; on useless features it loses to BC."""
    instance = world()
    replicates = scaled(300, scale, 60)
    curves: dict[str, list[Gap]] = {}
    shares: dict[str, list[float]] = {"separating": [], "useless": []}
    difference, without = 0.0, 0
    for number in SUPPLEMENTARY:
        split = draw_data(rng, instance, number, replicates)
        oracle = bc(split.of_expert)
        policies = {"bc": bc(split.data), "nbcu": nbcu(split.data), "wbcu": wbcu(split.data), "oracle": oracle}
        difference = max(difference, float(np.abs(policies["wbcu"] - policies["bc"]).max()))
        for kind, represent in (("separating", features), ("useless", useless)):
            linear = linear_wbcu(split, represent(rng, instance, replicates), learn)
            policies |= {kind: linear.thresholded, f"{kind}-plain": linear.plain}
            shares[kind].append(float(linear.separates.mean()))
            without += int(np.sum(~linear.found))
            if linear.separates.any():
                apart = np.abs(linear.thresholded - oracle)[linear.separates]
                difference = max(difference, float(apart.max()))
        for name, policy in policies.items():
            curves.setdefault(name, []).append(measured(instance.expert_value - values(instance.mdp, policy)))
    first, last = curves["separating"][0], {name: curve[-1] for name, curve in curves.items()}
    wbcu_gap, bc_gap = last["separating"], last["bc"]
    margins = {
        "WBCU with separating features beats BC": bc_gap.lower - wbcu_gap.upper,
        "WBCU with separating features improves with supplementary data": first.lower - wbcu_gap.upper,
        "NBCU is worse than BC": last["nbcu"].lower - bc_gap.upper,
        "WBCU with useless features is worse than BC": last["useless-plain"].lower - bc_gap.upper,
    }
    numbers = {
        "supplementary": list(SUPPLEMENTARY),
        "gaps": {name: [gap.mean for gap in curve] for name, curve in curves.items()},
        "errors": {name: [gap.error for gap in curve] for name, curve in curves.items()},
        "separates": shares,
        "without_minimiser": without,
        "largest_difference": difference,
        "margins": margins,
    }
    tightest = Tightest()
    for name, room in margins.items():
        tightest.see(room, violated=name, largest_difference=difference)
    measure = f"distance between the imitation gaps, less {ERRORS:g} standard errors"
    wrong = EXACT - difference if difference > EXACT else None
    return tightest.finding(replicates * len(SUPPLEMENTARY), measure, numbers, wrong)


def draw_positive(numbers: Numbers, left: Axes, right: Axes) -> None:
    _curves(left, numbers, "separating")
    left.set_title("Features that separate")
    left.legend(loc="lower left", fontsize=7)
    _curves(right, numbers, "useless")
    right.set_title("Features that do not")
    right.sharey(left)


def _curves(axes: Axes, numbers: Numbers, kind: str) -> None:
    lines = {
        "nbcu": ("nbcu", "o-", "NBCU"),
        "bc": ("bc", "-", "BC"),
        "wbcu": ("wbcu", "s--", "WBCU, table"),
        f"{kind}-plain": ("wbcu-linear", "^:", "WBCU, linear, δ = 0"),
        kind: ("wbcu-linear", "o-", "WBCU, linear, δ between"),
        "oracle": ("good", "--", "BC on all expert data"),
    }
    x = numbers["supplementary"]
    for name, (colour, style, label) in lines.items():
        width = 3.5 if name == "bc" else 1.4
        gaps, errors = (np.array(numbers[key][name]) for key in ("gaps", "errors"))
        axes.plot(x, gaps, style, color=COLOURS[colour], lw=width, label=label)
        axes.fill_between(x, gaps - 2 * errors, gaps + 2 * errors, alpha=0.15, lw=0, color=COLOURS[colour])
    axes.set(xscale="log", yscale="log", xlabel="supplementary trajectories", ylabel="imitation gap")


CLAIMS = (
    Claim(
        name="positive-result",
        title="Supplementary data helps WBCU, if its features separate",
        cites="Section 5.2, after Theorem 5",
        statement="A dozen expert trajectories, and more and more supplementary ones, of which three in ten are the "
        "expert's and the rest never do what the expert would. BC cannot use them, NBCU copies the mistakes, and WBCU "
        "with a table is BC. WBCU with a linear discriminator learns, wherever its margin is positive, exactly what BC "
        "would learn from all expert trajectories, had they been known. With features that do not separate it is worse "
        "than BC.",
        check=check_positive,
        draw=draw_positive,
        panels=2,
    ),
)
