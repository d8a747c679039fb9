"""Behavioural cloning on the expert's data: the binomial lemma, the bound, and its rates."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.gap import (
    ERRORS,
    described,
    imitation_gap,
    log_slope,
    reset_cliff_gap,
    scaled,
)
from demosift.theory.instances import Instance, random_instance, rare_start, reset_cliff
from demosift.theory.learners import Learner, bc

SLOPE_TOLERANCE = 0.05


def inverse_mean_bound(n: int, p: np.ndarray) -> np.ndarray:
    return 1.0 / (n * p)


def check_binomial_lemma(
    rng: np.random.Generator, scale: float, bound: Callable[[int, np.ndarray], np.ndarray] = inverse_mean_bound
) -> Finding:
    """Lemma 3, by summing over the distribution itself."""
    sizes = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377]
    probabilities = np.concatenate([np.logspace(-4, -0.01, 20), rng.random(scaled(60, scale))])
    slack, rows, worst = np.inf, [], None
    for n in sizes:
        x = np.arange(n + 1)
        exact = (binom.pmf(x, n, probabilities[:, None]) / (x + 1)).sum(-1)
        closed = (1.0 - (1.0 - probabilities) ** (n + 1)) / ((n + 1) * probabilities)
        assert np.allclose(exact, closed, rtol=1e-9), "the proof's closed form"
        room = bound(n, probabilities) / exact - 1.0
        tightest = int(room.argmin())
        if room[tightest] < slack:
            slack, worst = float(room[tightest]), {"N": n, "p": float(probabilities[tightest])}
        rows.append({"N": n, "np": (n * probabilities[:20]).tolist(), "ratio": (room[:20] + 1.0).tolist()})
    return Finding(
        holds=slack >= 0.0,
        instances=len(sizes) * len(probabilities),
        slack=slack,
        measure="bound / expectation - 1",
        numbers={"tightest": worst, "rows": rows},
        counterexample=worst if slack < 0.0 else None,
    )


def draw_binomial_lemma(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    for row in finding.numbers["rows"][::3]:
        axes.loglog(row["np"], row["ratio"], label=f"N = {row['N']}")
    axes.axhline(1.0, color=drawing.INK, linewidth=1)
    axes.set(xlabel="N p", ylabel="bound / E[1/(X+1)]", title="The bound is tight once N p is large, never below one")
    axes.legend()
    return figure


def cloning_instances(rng: np.random.Generator, scale: float) -> list[tuple[str, Instance, float, int]]:
    """Random worlds and Reset Cliff, each with a mixture and a number of trajectories."""
    cases: list[tuple[str, Instance, float, int]] = []
    for _ in range(scaled(400, scale, 3)):
        states, actions, horizon = int(rng.integers(2, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 9))
        instance = random_instance(rng, states, actions, horizon)
        cases.append(("random", instance, float(rng.uniform(0.1, 1.0)), int(np.exp(rng.uniform(0.0, 7.0)))))
    for total in (10, 30, 100, 300, 1000):
        for eta in (0.3, 1.0):
            states = int(rng.integers(3, min(12, int(total * eta) + 3)))
            world = reset_cliff(states, int(rng.integers(2, 6)), 6, rare_start(states, 1.0 / (total * eta + 1.0)))
            cases.append(("Reset Cliff", world, eta, total))
    return cases


def check_bc_bound(rng: np.random.Generator, scale: float, learner: Learner = bc, constant: float = 2.0) -> Finding:
    """Theorem 1 with the constant of its proof: the gap is at most min(H, 2 S H^2 / N_E)."""
    rows, worst = [], {"room": np.inf}
    for kind, instance, eta, total in cloning_instances(rng, scale):
        gap = imitation_gap(rng, instance, learner, eta, total, scaled(500, scale, 100))
        rate = instance.mdp.num_states * instance.mdp.horizon**2 / (eta * total)
        bound = min(float(instance.mdp.horizon), constant * rate)
        room = 1.0 - gap.upper / bound
        rows.append({"kind": kind, "gap": gap.mean, "rate": rate, "bound": bound, "share": gap.mean / rate})
        if room < worst["room"]:
            worst = described(instance, kind=kind, eta=eta, total=total, gap=gap.mean, bound=bound, room=room)
    return bound_finding(rows, worst, constant)


def bound_finding(rows: list[dict[str, Any]], worst: dict[str, Any], constant: float) -> Finding:
    """What is said of a measured gap and its bound: `worst` is the instance with the least room between the two."""
    return Finding(
        holds=worst["room"] >= 0.0,
        instances=len(rows),
        slack=worst["room"],
        measure=f"1 - (gap + {ERRORS:g} standard errors) / bound",
        numbers={"rows": rows, "constant": constant, "fitting constant": max(row["share"] for row in rows)},
        counterexample=worst if worst["room"] < 0.0 else None,
    )


def draw_bound(finding: Finding) -> Figure:
    """Gap against rate, for any claim of the form gap <= min(H, constant * rate)."""
    figure, (axes,) = drawing.panels()
    rows, constant = finding.numbers["rows"], finding.numbers["constant"]
    rates = [row["rate"] for row in rows]
    line = np.array([min(rates), max(rates)])
    for kind, colour, marker in (
        ("random", drawing.COLOURS["wbcu"], "o"),
        ("Reset Cliff", drawing.COLOURS["nbcu"], "D"),
    ):
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            gaps = [max(row["gap"], 1e-9) for row in chosen]
            axes.loglog([row["rate"] for row in chosen], gaps, marker, color=colour, label=kind, linestyle="none")
    axes.loglog(line, constant * line, color=drawing.COLOURS["bound"], label=f"{constant:.3g} x rate")
    fitting = finding.numbers["fitting constant"]
    axes.loglog(line, fitting * line, ":", color=drawing.SOFT, label=f"the constant that fits: {fitting:.2g}")
    axes.set(xlabel="rate of the bound", ylabel="imitation gap", title="Every measured gap lies below the bound")
    axes.set_ylim(bottom=max(min(row["gap"] for row in rows), 1e-7) / 2)
    axes.legend()
    return figure


RATES = {"N": -1.0, "H": 2.0, "S": 1.0}


def hard_gap(n: int, horizon: int, states: int) -> float:
    """BC's exact gap on the Reset Cliff that is hard for N trajectories, all of them the expert's."""
    return reset_cliff_gap(rare_start(states, 1.0 / (n + 1)), 2, horizon, 1.0, n)


def check_bc_rates(
    rng: np.random.Generator,
    scale: float,
    learner: Learner = bc,
    exact: Callable[[int, int, int], float] = hard_gap,
) -> Finding:
    """The bound's rates are those of BC itself: slopes -1 in N, 2 in H, 1 in S on instances that depend on N.

    The slopes are of the exact gap. That the learner, run on sampled data, has this gap is measured beside them.
    """
    many = 10_000_000  # so that the gap is far below H, where the rates are seen
    grids = {
        "N": [(n, 5, 12) for n in (1_000, 3_000, 10_000, 30_000, 100_000)],
        "H": [(many, h, 12) for h in (32, 64, 128, 256)],
        "S": [(many, 5, s + 2) for s in (4, 8, 16, 32, 64)],  # two of the states are never missed
    }
    curves, slopes = {}, {}
    for index, (axis, grid) in enumerate(grids.items()):
        x = [point[index] - 2 * (axis == "S") for point in grid]
        y = [exact(*point) for point in grid]
        curves[axis], slopes[axis] = {"x": x, "gap": y}, log_slope(x, y)
    fixed = rare_start(12, 1.0 / 101)
    still = [10, 30, 100, 300, 1_000, 2_000]
    points = [(30, 4, 8), (100, 5, 12), (300, 6, 6)]
    measurements = []
    for n, horizon, states in points:
        world = reset_cliff(states, 2, horizon, rare_start(states, 1.0 / (n + 1)))
        gap = imitation_gap(rng, world, learner, 1.0, n, scaled(4000, scale, 300))
        measurements.append(
            {"N": n, "H": horizon, "S": states, "gap": gap.mean, "off": gap.off(exact(n, horizon, states))}
        )
    furthest = max(row["off"] for row in measurements)
    errors = {axis: abs(slopes[axis] - RATES[axis]) for axis in RATES}
    slack = SLOPE_TOLERANCE - max(errors.values())
    holds = slack >= 0.0 and furthest <= ERRORS
    return Finding(
        holds=holds,
        instances=sum(map(len, grids.values())) + len(points),
        slack=slack if furthest <= ERRORS else ERRORS - furthest,
        measure=f"{SLOPE_TOLERANCE:g} - largest error of a slope",
        numbers={
            "slopes": slopes,
            "curves": curves,
            "fixed": {"x": still, "gap": [reset_cliff_gap(fixed, 2, 5, 1.0, n) for n in still]},
            "measurements": measurements,
        },
        counterexample=None if holds else {"slopes": slopes, "measurements": measurements},
    )


def draw_bc_rates(finding: Finding) -> Figure:
    figure, axes = drawing.panels(3, height=3.2)
    names = {"N": "trajectories N", "H": "horizon H", "S": "rare states"}
    for ax, (axis, curve) in zip(axes, finding.numbers["curves"].items(), strict=True):
        slope = finding.numbers["slopes"][axis]
        ax.loglog(curve["x"], curve["gap"], "o-", color=drawing.COLOURS["bc"], label=f"slope {slope:.3f}")
        if axis != "N":
            ax.set_xticks(curve["x"], map(str, curve["x"]))
            ax.minorticks_off()
        ax.set(xlabel=names[axis])
    still = finding.numbers["fixed"]
    axes[0].loglog(still["x"], still["gap"], ":", color=drawing.COLOURS["nbcu"], label="one fixed MDP")
    axes[0].set(ylabel="BC's exact gap")
    for ax in axes:
        ax.legend()
    return figure


CLAIMS = (
    Claim(
        name="binomial-lemma",
        title="The binomial lemma",
        cites="Lemma 3 (Appendix A)",
        statement="How many of N trajectories are the expert's is a matter of chance: a binomial X with success "
        "probability p. On average 1/(X+1) is at most 1/(Np), so a bound that falls like one over the number of expert "
        "trajectories still does when that number is random.",
        check=check_binomial_lemma,
        draw=draw_binomial_lemma,
    ),
    Claim(
        name="bc-bound",
        title="Behavioural cloning loses at most 2 S H² / N_E",
        cites="Theorem 1 (Section 4.1), proof in Appendix A.1",
        statement="Cloning the expert's data alone is right on every state that the data shows and guesses on the "
        "others. The expected loss is at most the smaller of H and 2 S H² / N_E: S states, H steps, N_E = eta N "
        "expert trajectories on average.",
        check=check_bc_bound,
        draw=draw_bound,
    ),
    Claim(
        name="bc-rates",
        title="Those rates are real: 1/N, H² and S",
        cites="Theorem 1 (Section 4.1), after Rajaraman et al. (2020)",
        statement="On Reset Cliff with states that are as rare as 1/(N+1), cloning does lose in proportion to S H² / N:"
        " one wrong action costs the rest of the episode. The MDP must change with N for that; in any one MDP every "
        "state is seen in the end and the loss falls exponentially (dotted).",
        check=check_bc_rates,
        draw=draw_bc_rates,
    ),
)
