"""NBCU, cloning of the union: the mixture policy it learns, how fast, and the loss at which it levels off."""

import itertools
from collections.abc import Callable
from math import ceil, log

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.claims.cloning import draw_bound
from demosift.theory.drawing import COLOURS, PALETTE, SOFT
from demosift.theory.gap import ERRORS, EXACT, Bounded, described, imitation_gap, scaled
from demosift.theory.instances import Instance, random_instance, rare_start, reset_cliff, standard_imitation
from demosift.theory.learners import Learner, nbcu
from demosift.theory.mdp import Occupancy, Policy, mixture_policy, occupancy, values
from demosift.theory.sampling import Data

Mixture = Callable[[Occupancy, Occupancy, float], Policy]


def plateau(instance: Instance, eta: float) -> float:
    """(1 - eta) (V(expert) - V(behaviour)): what NBCU loses however much data there is."""
    return (1.0 - eta) * (instance.expert_value - instance.behaviour_value)


def check_mixture_occupancy(rng: np.random.Generator, scale: float, mixture: Mixture = mixture_policy) -> Finding:
    """The mixture of two occupancies is the occupancy of the mixture policy, whose value is the mixture of the values.

    Deterministic and stochastic policies, with states that neither visits. An identity, so it holds to rounding.
    """
    tightest, instances = Tightest(), scaled(400, scale, 10)
    shown = {"eta": [], "gap": [], "plateau": []}
    for index in range(instances):
        states, actions, horizon = int(rng.integers(2, 11)), int(rng.integers(2, 6)), int(rng.integers(1, 11))
        instance = random_instance(rng, states, actions, horizon, stochastic=index % 2 == 1)
        eta = float(rng.random())
        of_expert, of_behaviour = instance.expert_occupancy, instance.behaviour_occupancy
        policy = mixture(of_expert, of_behaviour, eta)
        error = np.abs(occupancy(instance.mdp, policy) - eta * of_expert - (1.0 - eta) * of_behaviour).max()
        gap, level = instance.expert_value - float(values(instance.mdp, policy)), plateau(instance, eta)
        error = max(float(error), abs(gap - level) / horizon)
        tightest.see(EXACT - error, **described(instance), eta=eta, error=error)
        if index < 60:
            for name, value in (("eta", eta), ("gap", gap), ("plateau", level)):
                shown[name].append(value)
    measure = "1e-12 - largest difference of occupancies, or of values / H"
    return tightest.finding(instances, measure, {"largest difference": tightest.instance["error"], **shown})


def draw_mixture_occupancy(numbers: Numbers, axes: Axes) -> None:
    ends = [min(numbers["plateau"]), max(numbers["plateau"])]
    axes.plot(ends, ends, color=SOFT, linewidth=1)
    axes.plot(numbers["plateau"], numbers["gap"], "o", color=COLOURS["nbcu"])
    axes.set(xlabel="(1 - eta) (V(expert) - V(behaviour))", ylabel="V(expert) - V(mixture policy)")
    axes.set(title=f"Equal in every instance, to {numbers['largest difference']:.0e}")


def check_nbcu_bound(rng: np.random.Generator, scale: float, learner: Learner = nbcu, constant: float = 1.0) -> Finding:
    """Theorem 2: from N = 2 on, the gap is at most min(H, plateau + constant S H^2 log(N) / N).

    The theorem hides its constant. The check takes 1, and reports the smallest that fits every instance.
    """
    bounded = Bounded(constant)
    for index in range(scaled(400, scale, 4)):
        total = int(np.exp(rng.uniform(log(2.0), 8.0)))
        eta = float(rng.uniform(0.05, 1.0))
        if index % 4 == 0:
            states = int(rng.integers(3, min(12, total + 3)))
            kind, instance = "Reset Cliff", reset_cliff(states, 2, 6, rare_start(states, 1.0 / (total + 1)))
        else:
            sizes = int(rng.integers(2, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 9))
            kind, instance = "random", random_instance(rng, *sizes)
        gap = imitation_gap(rng, instance, learner, eta, total, scaled(500, scale, 100))
        rate = instance.mdp.num_states * instance.mdp.horizon**2 * log(total) / total
        bounded.add(gap, rate, instance, eta, total, kind, plateau(instance, eta))
    return bounded.finding()


def draw_nbcu_bound(numbers: Numbers, axes: Axes) -> None:
    draw_bound(numbers, axes)
    axes.set(xlabel="S H² log(N) / N", ylabel="imitation gap above the plateau")
    axes.set(title="What NBCU loses beyond its plateau")


def check_nbcu_plateau(
    rng: np.random.Generator, scale: float, learner: Learner = nbcu, level: Callable[[Instance, float], float] = plateau
) -> Finding:
    """With more and more data NBCU's gap tends to (1 - eta) (V(expert) - V(behaviour)), neither less nor more."""
    many, replicates = 1_000_000, scaled(200, scale, 40)
    tightest, curves, instances = Tightest(), [], scaled(100, scale, 4)
    for index in range(instances):
        sizes = int(rng.integers(2, 9)), int(rng.integers(2, 5)), int(rng.integers(2, 7))
        instance = standard_imitation(*sizes) if index % 5 == 0 else random_instance(rng, *sizes)
        eta = float(rng.uniform(0.05, 0.95))
        gap, expected = imitation_gap(rng, instance, learner, eta, many, replicates), level(instance, eta)
        # After finitely many trajectories the gap may still differ by the rest of the bound, with a constant of 1.
        missing = instance.mdp.num_states * instance.mdp.horizon**2 * log(many) / many
        room = ERRORS * gap.error + missing - abs(gap.mean - expected)
        tightest.see(room, **described(instance), eta=eta, gap=gap.mean, plateau=expected)
    instance, x = random_instance(rng, 6, 3, 5), [3, 10, 30, 100, 300, 1_000, 10_000]
    for eta in (0.1, 0.5, 0.9):
        y = [imitation_gap(rng, instance, learner, eta, n, replicates).mean for n in x]
        curves.append({"eta": eta, "x": x, "gap": y, "plateau": plateau(instance, eta)})
    measure = f"S H² log(N) / N + {ERRORS:g} standard errors - |gap - plateau|, at N = 1,000,000"
    return tightest.finding(instances, measure, {"curves": curves})


def draw_nbcu_plateau(numbers: Numbers, axes: Axes) -> None:
    for curve, colour in zip(numbers["curves"], PALETTE[1:], strict=False):
        axes.semilogx(curve["x"], curve["gap"], "o-", color=colour, label=f"eta = {curve['eta']}")
        axes.axhline(curve["plateau"], color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="trajectories in the union", ylabel="NBCU's imitation gap")
    axes.set(title="More data does not help below (1 - eta)(V(expert) - V(behaviour)), dotted")
    axes.legend()


def standard_imitation_gap(states: int, actions: int, horizon: int, eta: float, total: int) -> float:
    """NBCU's exact gap on Standard Imitation (proof of Proposition 1): no inequality in it."""
    unseen = (1.0 - 1.0 / states) ** total
    return horizon * (1.0 - eta + (eta - 1.0 / actions) * unseen)


def half_plateau(horizon: int, eta: float) -> float:
    """(1 - eta) (V(expert) - V(behaviour)) / 2, where the values are H and 0."""
    return (1.0 - eta) * horizon / 2.0


def enumerated_gap(learner: Learner, states: int, actions: int, horizon: int, eta: float, total: int) -> float:
    """The same expectation, by going through every dataset there is."""
    instance = standard_imitation(states, actions, horizon)
    # Each trajectory is known by its state and by who collected it.
    outcomes = list(itertools.product(range(2 * states), repeat=total))
    counts = np.zeros((2, len(outcomes), horizon, states, actions), np.int64)
    probability = np.ones(len(outcomes))
    for row, outcome in enumerate(outcomes):
        for state, by_behaviour in (divmod(each, 2) for each in outcome):
            counts[by_behaviour, row, :, state, by_behaviour] += 1
            probability[row] *= ((1.0 - eta) if by_behaviour else eta) / states
    learned = values(instance.mdp, learner(Data(expert=counts[0], supplementary=counts[1])))
    return float(probability @ (instance.expert_value - learned))


def check_lower_bound(
    rng: np.random.Generator,
    scale: float,
    learner: Learner = nbcu,
    exact: Callable[[int, int, int, float, int], float] = standard_imitation_gap,
    bound: Callable[[int, float], float] = half_plateau,
) -> Finding:
    """Proposition 1: on Standard Imitation NBCU loses at least half of the plateau once N >= S log 2.

    The proof's expectation is exact, so it is checked as an equality, against every dataset where there are few and
    against sampled ones where there are many; then the bound is compared with it.
    """
    off = 0.0
    few = [(1, 2, 3), (2, 2, 1), (2, 3, 4), (3, 2, 3), (3, 4, 2)]
    for (states, actions, total), eta in itertools.product(few, (0.0, 0.2, 0.7, 1.0)):
        case = (states, actions, 3, eta, total)
        off = max(off, abs(enumerated_gap(learner, *case) - exact(*case)))
    furthest = 0.0
    for states, actions, total, eta in [(10, 3, 20, 0.2), (30, 2, 25, 0.4), (50, 5, 100, 0.1), (8, 2, 200, 0.9)]:
        gap = imitation_gap(rng, standard_imitation(states, actions, 4), learner, eta, total, scaled(2000, scale, 200))
        furthest = max(furthest, gap.off(exact(states, actions, 4, eta, total)))
    tightest, room_below, compared = Tightest(), np.inf, 0
    for states, actions, horizon in itertools.product((1, 2, 5, 10, 50, 200), (2, 3, 5, 10), (1, 10)):
        size = {"states": states, "actions": actions, "horizon": horizon}
        threshold = ceil(states * log(2.0))
        grid = np.concatenate([[0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99], rng.random(scaled(10, scale))])
        for eta, factor in itertools.product(grid.tolist(), (1, 2, 5, 20)):
            total = threshold * factor
            room = exact(states, actions, horizon, eta, total) / bound(horizon, eta) - 1.0
            tightest.see(room, **size, eta=eta, N=total, **{"closed form off by": off})
            compared += 1
            for total in range(threshold):
                room_below = min(room_below, exact(states, actions, horizon, eta, total) / bound(horizon, eta) - 1.0)
    shown = {"N": list(range(0, 61, 2)), "states": 10, "actions": 4, "horizon": 1}
    curves = [
        {"eta": eta, "gap": [exact(10, 4, 1, eta, n) for n in shown["N"]], "bound": bound(1, eta)}
        for eta in (0.05, 0.25, 0.6)
    ]
    numbers = {
        "error of the closed form": off,
        "standard errors off": furthest,
        "smallest room below N = S log 2": float(room_below),
        "curves": curves,
        **shown,
    }
    wrong = None if off <= EXACT and furthest <= ERRORS else min(EXACT - off, ERRORS - furthest)
    return tightest.finding(compared + 4 * len(few) + 4, "exact gap / bound - 1", numbers, wrong)


def draw_lower_bound(numbers: Numbers, axes: Axes) -> None:
    for curve, colour in zip(numbers["curves"], PALETTE[1:], strict=False):
        axes.plot(numbers["N"], curve["gap"], color=colour, label=f"eta = {curve['eta']}: exact gap")
        axes.axhline(curve["bound"], color=colour, linestyle="--", linewidth=1)
    axes.axvline(numbers["states"] * log(2.0), color=SOFT, linestyle=":", linewidth=1)
    axes.set(xlabel="trajectories N", ylabel="NBCU's gap / H", ylim=(0.0, 1.0))
    axes.set(title="Standard Imitation, 10 states, 4 actions; lower bounds dashed, S log 2 dotted")
    axes.legend()


CLAIMS = (
    Claim(
        name="mixture-occupancy",
        title="The union is one policy's data",
        cites="Proof of Theorem 2 (Appendix A.2)",
        statement="Draw each trajectory from the expert with probability eta and from the behaviour otherwise. How "
        "often a state and action occur at a step is then exactly how often they occur under one policy, the mixture "
        "policy. Its value falls short of the expert's by exactly (1 - eta) (V(expert) - V(behaviour)). It is not the "
        "policy that tosses the eta-coin in every state.",
        check=check_mixture_occupancy,
        draw=draw_mixture_occupancy,
    ),
    Claim(
        name="nbcu-bound",
        title="Cloning everything: a plateau and a rate",
        cites="Theorem 2 (Section 4.2), proof in Appendix A.2",
        statement="NBCU clones the union of both datasets. Its expected loss is at most (1 - eta) (V(expert) - "
        "V(behaviour)), which no amount of data removes, plus something of order S H² log(N) / N, which data does "
        "remove. The theorem hides the constant of the second part; here it is checked with 1, and the smallest "
        "constant that fits all instances is reported.",
        check=check_nbcu_bound,
        draw=draw_nbcu_bound,
    ),
    Claim(
        name="nbcu-plateau",
        title="The plateau is reached, exactly",
        cites="Theorem 2 (Section 4.2), proof in Appendix A.2",
        statement="With a million trajectories NBCU's loss is (1 - eta) (V(expert) - V(behaviour)), neither more nor "
        "less: it has learned the mixture policy.",
        check=check_nbcu_plateau,
        draw=draw_nbcu_plateau,
    ),
    Claim(
        name="nbcu-lower-bound",
        title="In the worst case the plateau cannot be avoided",
        cites="Proposition 1 (Section 4.2), proof in Appendix A.3",
        statement="On Standard Imitation, where the behaviour always takes a worthless action, NBCU loses at least "
        "half of the plateau once N >= S log 2. Its expected loss has a closed form, H (1 - eta + (eta - 1/A) (1 - "
        "1/S)^N), which is checked as an equality first. By that form the bound holds for smaller N as well.",
        check=check_lower_bound,
        draw=draw_lower_bound,
    ),
)
