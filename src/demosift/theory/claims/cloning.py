"""Behavioural cloning on the expert's data: the binomial lemma, the bound, and its rates."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import binom

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.drawing import COLOURS, INK, SOFT
from demosift.theory.gap import ERRORS, Bounded, imitation_gap, log_slope, reset_cliff_gap, scaled
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
    tightest, rows = Tightest(), []
    for n in sizes:
        x = np.arange(n + 1)
        exact = (binom.pmf(x, n, probabilities[:, None]) / (x + 1)).sum(-1)
        closed = (1.0 - (1.0 - probabilities) ** (n + 1)) / ((n + 1) * probabilities)
        assert np.allclose(exact, closed, rtol=1e-9), "the proof's closed form"
        room = bound(n, probabilities) / exact - 1.0
        tightest.see(float(room.min()), N=n, p=float(probabilities[room.argmin()]))
        rows.append({"N": n, "np": (n * probabilities[:20]).tolist(), "ratio": (room[:20] + 1.0).tolist()})
    numbers = {"tightest": tightest.instance, "rows": rows}
    return tightest.finding(len(sizes) * len(probabilities), "bound / expectation - 1", numbers)


def draw_binomial_lemma(numbers: Numbers, axes: Axes) -> None:
    for row in numbers["rows"][::3]:
        axes.loglog(row["np"], row["ratio"], label=f"N = {row['N']}")
    axes.axhline(1.0, color=INK, linewidth=1)
    axes.set(xlabel="N p", ylabel="bound / E[1/(X+1)]", title="The bound is tight once N p is large, never below one")
    axes.legend()


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
    bounded = Bounded(constant)
    for kind, instance, eta, total in cloning_instances(rng, scale):
        gap = imitation_gap(rng, instance, learner, eta, total, scaled(500, scale, 100))
        rate = instance.mdp.num_states * instance.mdp.horizon**2 / (eta * total)
        bounded.add(gap, rate, instance, eta, total, kind)
    return bounded.finding()


def draw_bound(numbers: Numbers, axes: Axes) -> None:
    """Gap against rate, for any claim of the form gap <= min(H, constant * rate)."""
    rows, constant, fitting = numbers["rows"], numbers["constant"], numbers["fitting constant"]
    rates = [row["rate"] for row in rows]
    line = np.array([min(rates), max(rates)])
    for kind, colour, marker in (("random", COLOURS["wbcu"], "o"), ("Reset Cliff", COLOURS["nbcu"], "D")):
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            gaps = [max(row["gap"], 1e-9) for row in chosen]
            axes.loglog([row["rate"] for row in chosen], gaps, marker, color=colour, label=kind, linestyle="none")
    axes.loglog(line, constant * line, color=COLOURS["bound"], label=f"{constant:.3g} x rate")
    axes.loglog(line, fitting * line, ":", color=SOFT, label=f"the constant that fits: {fitting:.2g}")
    axes.set(xlabel="rate of the bound", ylabel="imitation gap", title="Every measured gap lies below the bound")
    axes.set_ylim(bottom=max(min(row["gap"] for row in rows), 1e-7) / 2)
    axes.legend()


RATES = {"N": -1.0, "H": 2.0, "S": 1.0}


def hard_gap(n: int, horizon: int, states: int) -> float:
    """BC's exact gap on the Reset Cliff that is hard for N trajectories, all of them the expert's."""
    return reset_cliff_gap(rare_start(states, 1.0 / (n + 1)), 2, horizon, 1.0, n)


def check_bc_rates(
    rng: np.random.Generator, scale: float, learner: Learner = bc, exact: Callable[[int, int, int], float] = hard_gap
) -> Finding:
    """The bound's rates are those of BC itself: slopes -1 in N, 2 in H, 1 in S on instances that depend on N.

    The slopes are those of the exact gap. That the learner, run on sampled data, has this gap is measured as well.
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
    measurements = []
    for n, horizon, states in [(30, 4, 8), (100, 5, 12), (300, 6, 6)]:
        world = reset_cliff(states, 2, horizon, rare_start(states, 1.0 / (n + 1)))
        gap = imitation_gap(rng, world, learner, 1.0, n, scaled(4000, scale, 300))
        off = gap.off(exact(n, horizon, states))
        measurements.append({"N": n, "H": horizon, "S": states, "gap": gap.mean, "off": off})
    fixed = rare_start(12, 1.0 / 101)
    still = [10, 30, 100, 300, 1_000, 2_000]
    numbers = {
        "slopes": slopes,
        "curves": curves,
        "fixed": {"x": still, "gap": [reset_cliff_gap(fixed, 2, 5, 1.0, n) for n in still]},
        "measurements": measurements,
    }
    furthest = max(row["off"] for row in measurements)
    error = max(abs(slopes[axis] - RATES[axis]) for axis in RATES)
    tightest = Tightest(SLOPE_TOLERANCE - error, {"slopes": slopes, "measurements": measurements})
    instances = sum(map(len, grids.values())) + len(measurements)
    wrong = ERRORS - furthest if furthest > ERRORS else None
    return tightest.finding(instances, f"{SLOPE_TOLERANCE:g} - largest error of a slope", numbers, wrong)


def draw_bc_rates(numbers: Numbers, *axes: Axes) -> None:
    names = {"N": "trajectories N", "H": "horizon H", "S": "rare states"}
    for ax, (axis, curve) in zip(axes, numbers["curves"].items(), strict=True):
        slope = numbers["slopes"][axis]
        ax.loglog(curve["x"], curve["gap"], "o-", color=COLOURS["bc"], label=f"slope {slope:.3f}")
        if axis != "N":
            ax.set_xticks(curve["x"], map(str, curve["x"]))
            ax.minorticks_off()
        ax.set(xlabel=names[axis])
    still = numbers["fixed"]
    axes[0].loglog(still["x"], still["gap"], ":", color=COLOURS["nbcu"], label="one fixed MDP")
    axes[0].set(ylabel="BC's exact gap")
    for ax in axes:
        ax.legend()


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
        "others. The expected loss is at most the smaller of H and 2 S H² / N_E: S states, H steps, N_E = eta N expert "
        "trajectories on average.",
        check=check_bc_bound,
        draw=draw_bound,
    ),
    Claim(
        name="bc-rates",
        title="Those rates are real: 1/N, H² and S",
        cites="Theorem 1 (Section 4.1), after Rajaraman et al. (2020)",
        statement="On Reset Cliff with states that are as rare as 1/(N+1), cloning does lose in proportion to S H² / "
        "N: one wrong action costs the rest of the episode. The MDP must change with N for that; in any one MDP every "
        "state is seen in the end and the loss falls exponentially (dotted).",
        check=check_bc_rates,
        draw=draw_bc_rates,
        panels=3,
    ),
)
