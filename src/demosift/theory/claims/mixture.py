"""NBCU, cloning of the union: the mixture policy it learns, how fast, and the loss at which it levels off."""

from collections.abc import Callable
from math import log

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.claims.cloning import bound_finding, draw_bound
from demosift.theory.gap import ERRORS, EXACT, described, imitation_gap, scaled
from demosift.theory.instances import Instance, random_instance, rare_start, reset_cliff, standard_imitation
from demosift.theory.learners import Learner, nbcu
from demosift.theory.mdp import Occupancy, Policy, mixture_policy, occupancy, values

Mixture = Callable[[Occupancy, Occupancy, float], Policy]


def plateau(instance: Instance, eta: float) -> float:
    """(1 - eta) (V(expert) - V(behaviour)): what NBCU loses however much data there is."""
    return (1.0 - eta) * (instance.expert_value - instance.behaviour_value)


def check_mixture_occupancy(rng: np.random.Generator, scale: float, mixture: Mixture = mixture_policy) -> Finding:
    """The mixture of two occupancies is the occupancy of the mixture policy, whose value is the mixture of the values.

    Deterministic and stochastic policies, with states that neither visits. An identity, so it holds to rounding.
    """
    furthest, worst, instances = 0.0, None, scaled(400, scale, 10)
    shown = {"eta": [], "gap": [], "plateau": []}
    for index in range(instances):
        states, actions, horizon = int(rng.integers(2, 11)), int(rng.integers(2, 6)), int(rng.integers(1, 11))
        instance = random_instance(rng, states, actions, horizon, stochastic=index % 2 == 1)
        eta = float(rng.random())
        of_expert, of_behaviour = instance.expert_occupancy, instance.behaviour_occupancy
        policy = mixture(of_expert, of_behaviour, eta)
        error = np.abs(occupancy(instance.mdp, policy) - eta * of_expert - (1.0 - eta) * of_behaviour).max()
        gap = instance.expert_value - float(values(instance.mdp, policy))
        error = max(float(error), abs(gap - plateau(instance, eta)) / horizon)
        if error > furthest:
            furthest, worst = error, described(instance, eta=eta, error=error)
        if index < 60:
            shown["eta"].append(eta)
            shown["gap"].append(gap)
            shown["plateau"].append(plateau(instance, eta))
    return Finding(
        holds=furthest <= EXACT,
        instances=instances,
        slack=EXACT - furthest,
        measure="1e-12 - largest difference of occupancies, or of values / H",
        numbers={"largest difference": furthest, **shown},
        counterexample=worst if furthest > EXACT else None,
    )


def draw_mixture_occupancy(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    numbers = finding.numbers
    low, high = min(numbers["plateau"]), max(numbers["plateau"])
    axes.plot([low, high], [low, high], color=drawing.SOFT, linewidth=1)
    axes.plot(numbers["plateau"], numbers["gap"], "o", color=drawing.COLOURS["nbcu"])
    axes.set(
        xlabel="(1 - eta) (V(expert) - V(behaviour))",
        ylabel="V(expert) - V(mixture policy)",
        title=f"Equal in every instance, to {numbers['largest difference']:.0e}",
    )
    return figure


def check_nbcu_bound(rng: np.random.Generator, scale: float, learner: Learner = nbcu, constant: float = 1.0) -> Finding:
    """Theorem 2: the gap is at most min(H, plateau + constant S H^2 log(N) / N), from two trajectories on.

    The theorem hides its constant. One is checked; the least that fits every instance is reported.
    """
    rows, worst = [], {"room": np.inf}
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
        level = plateau(instance, eta)
        bound = min(float(instance.mdp.horizon), level + constant * rate)
        room = 1.0 - gap.upper / bound
        rows.append(
            {"kind": kind, "gap": gap.mean - level, "rate": rate, "bound": bound, "share": (gap.mean - level) / rate}
        )
        if room < worst["room"]:
            worst = described(instance, kind=kind, eta=eta, total=total, gap=gap.mean, bound=bound, room=room)
    return bound_finding(rows, worst, constant)


def draw_nbcu_bound(finding: Finding) -> Figure:
    figure = draw_bound(finding)
    figure.axes[0].set(
        ylabel="imitation gap above the plateau",
        xlabel="S H² log(N) / N",
        title="What NBCU loses beyond its plateau",
    )
    return figure


def check_nbcu_plateau(
    rng: np.random.Generator, scale: float, learner: Learner = nbcu, level: Callable[[Instance, float], float] = plateau
) -> Finding:
    """With more and more data NBCU's gap tends to (1 - eta) (V(expert) - V(behaviour)), neither less nor more."""
    many, replicates = 1_000_000, scaled(200, scale, 40)
    room, worst, curves = np.inf, {}, []
    instances = scaled(100, scale, 4)
    for index in range(instances):
        sizes = int(rng.integers(2, 9)), int(rng.integers(2, 5)), int(rng.integers(2, 7))
        instance = standard_imitation(*sizes) if index % 5 == 0 else random_instance(rng, *sizes)
        eta = float(rng.uniform(0.05, 0.95))
        gap = imitation_gap(rng, instance, learner, eta, many, replicates)
        # The rest of the bound, with its constant one, is what may still be missing after finitely many trajectories.
        missing = instance.mdp.num_states * instance.mdp.horizon**2 * log(many) / many
        here = ERRORS * gap.error + missing - abs(gap.mean - level(instance, eta))
        if here < room:
            room, worst = here, described(instance, eta=eta, gap=gap.mean, plateau=level(instance, eta))
    instance = random_instance(rng, 6, 3, 5)
    for eta in (0.1, 0.5, 0.9):
        x = [3, 10, 30, 100, 300, 1_000, 10_000]
        y = [imitation_gap(rng, instance, learner, eta, n, replicates).mean for n in x]
        curves.append({"eta": eta, "x": x, "gap": y, "plateau": plateau(instance, eta)})
    return Finding(
        holds=room >= 0.0,
        instances=instances,
        slack=float(room),
        measure=f"S H² log(N) / N + {ERRORS:g} standard errors - |gap - plateau|, at N = 1,000,000",
        numbers={"curves": curves},
        counterexample=worst if room < 0.0 else None,
    )


def draw_nbcu_plateau(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    for curve, colour in zip(finding.numbers["curves"], drawing.PALETTE[1:], strict=False):
        axes.semilogx(curve["x"], curve["gap"], "o-", color=colour, label=f"eta = {curve['eta']}")
        axes.axhline(curve["plateau"], color=colour, linestyle=":", linewidth=1)
    axes.set(
        xlabel="trajectories in the union",
        ylabel="NBCU's imitation gap",
        title="More data does not help below (1 - eta)(V(expert) - V(behaviour)), dotted",
    )
    axes.legend()
    return figure


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
)
