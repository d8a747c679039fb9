"""NBCU on Standard Imitation: the lower bound, against the exact expectation that its proof computes."""

import itertools
from collections.abc import Callable
from math import ceil, log

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.gap import ERRORS, EXACT, imitation_gap, scaled
from demosift.theory.instances import standard_imitation
from demosift.theory.learners import Learner, nbcu
from demosift.theory.mdp import values
from demosift.theory.sampling import Data


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
    outcomes = list(
        itertools.product(range(2 * states), repeat=total)
    )  # of each trajectory: its state, and whose it is
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
    for states, actions, total in [(1, 2, 3), (2, 2, 1), (2, 3, 4), (3, 2, 3), (3, 4, 2)]:
        for eta in (0.0, 0.2, 0.7, 1.0):
            case = (states, actions, 3, eta, total)
            off = max(off, abs(enumerated_gap(learner, *case) - exact(*case)))
    furthest = 0.0
    for states, actions, total, eta in [(10, 3, 20, 0.2), (30, 2, 25, 0.4), (50, 5, 100, 0.1), (8, 2, 200, 0.9)]:
        gap = imitation_gap(rng, standard_imitation(states, actions, 4), learner, eta, total, scaled(2000, scale, 200))
        furthest = max(furthest, gap.off(exact(states, actions, 4, eta, total)))
    agrees = off <= EXACT and furthest <= ERRORS
    room, room_below, worst, compared = np.inf, np.inf, None, 0
    for states, actions, horizon in itertools.product((1, 2, 5, 10, 50, 200), (2, 3, 5, 10), (1, 10)):
        threshold = ceil(states * log(2.0))
        grid = np.concatenate([[0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99], rng.random(scaled(10, scale))])
        for eta, factor in itertools.product(grid.tolist(), (1, 2, 5, 20)):
            here = exact(states, actions, horizon, eta, threshold * factor) / bound(horizon, eta) - 1.0
            compared += 1
            if here < room:
                room = here
                worst = {"states": states, "actions": actions, "horizon": horizon, "eta": eta, "N": threshold * factor}
            for total in range(threshold):
                room_below = min(room_below, exact(states, actions, horizon, eta, total) / bound(horizon, eta) - 1.0)
    shown = {"N": list(range(0, 61, 2)), "states": 10, "actions": 4, "horizon": 1}
    curves = [
        {"eta": eta, "gap": [exact(10, 4, 1, eta, n) for n in shown["N"]], "bound": bound(1, eta)}
        for eta in (0.05, 0.25, 0.6)
    ]
    return Finding(
        holds=agrees and room >= 0.0,
        instances=compared + 20 + 4,
        slack=float(room) if agrees else min(EXACT - off, ERRORS - furthest),
        measure="exact gap / bound - 1",
        numbers={
            "error of the closed form": off,
            "standard errors off": furthest,
            "smallest room below N = S log 2": float(room_below),
            "curves": curves,
            **shown,
        },
        counterexample=None if agrees and room >= 0.0 else {"closed form off by": off, **(worst or {})},
    )


def draw_lower_bound(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    numbers = finding.numbers
    for curve, colour in zip(numbers["curves"], drawing.PALETTE[1:], strict=False):
        axes.plot(numbers["N"], curve["gap"], color=colour, label=f"eta = {curve['eta']}: exact gap")
        axes.axhline(curve["bound"], color=colour, linestyle="--", linewidth=1)
    axes.axvline(numbers["states"] * log(2.0), color=drawing.SOFT, linestyle=":", linewidth=1)
    axes.set(
        xlabel="trajectories N",
        ylabel="NBCU's gap / H",
        ylim=(0.0, 1.0),
        title="Standard Imitation, 10 states, 4 actions; lower bounds dashed, S log 2 dotted",
    )
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        name="nbcu-lower-bound",
        title="In the worst case the plateau cannot be avoided",
        cites="Proposition 1 (Section 4.2), proof in Appendix A.3",
        statement="On Standard Imitation, where the behaviour always takes a worthless action, NBCU loses at least "
        "half of the plateau once N >= S log 2. Its expected loss has a closed form, H (1 - eta + (eta - 1/A) "
        "(1 - 1/S)^N), which is checked as an equality first. By that form the bound holds for smaller N as well.",
        check=check_lower_bound,
        draw=draw_lower_bound,
    ),
)
