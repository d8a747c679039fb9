"""The landscape of Section 5.2: the margin is Lipschitz continuous (Lemma 1), the loss grows quadratically (2)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.drawing import COLOURS, INK, PALETTE, SOFT
from demosift.theory.gap import scaled
from demosift.theory.linear import PerInstance, Rows, Theta, dataset, loss, minimise, recession_direction
from demosift.theory.margin import (
    TAUS,
    Learn,
    Tau,
    deciding_difference,
    growth,
    lipschitz,
    margin,
    maximum_margin,
    segment_tau,
    segment_tau_from_above,
    solve,
)
from demosift.theory.separable import Family, example, log_uniform

ROUNDING = 1e-10  # in a ratio of differences, none of which is below a hundredth of the numbers it is taken from
NEAREST = 1e-2  # if theta* and theta-bar are closer, their losses are too close to compare in double precision
MODEST = Family(length=(0.3, 3.0))


def describe(rows: Rows, index: int) -> dict[str, Any]:
    """An instance in numbers that a reader can type in."""
    features, expert = rows.features[index], rows.expert[index] > 0.0
    parts = {"expert": expert, "good": rows.good[index] & ~expert, "bad": rows.bad[index]}
    return {name: features[mask].tolist() for name, mask in parts.items()}


def check_lipschitz(
    rng: np.random.Generator, scale: float, constant: Callable[[Rows, Theta], PerInstance] = lipschitz
) -> Finding:
    """Random theta, and theta moved from theta-bar straight against the rows that decide its margin: the worst case."""
    used, pairs, instances, tightest = [], 0, 0, Tightest()
    for dimension in (1, 2, 3, 4):
        rows = Family().draw(rng, scaled(4000, scale), dimension)
        bar = maximum_margin(rows).theta
        for attempt in range(8):
            theta = rng.normal(size=bar.shape) * log_uniform(rng, (0.1, 10.0), len(rows))[:, None]
            if attempt % 2:
                decisive = deciding_difference(rows, bar)
                decisive /= np.linalg.norm(decisive, axis=-1, keepdims=True)
                theta = bar - decisive * log_uniform(rng, (0.03, 3.0), len(rows))[:, None]
            allowed, reached = constant(rows, theta), margin(rows, theta)
            ratio = (margin(rows, bar) - reached) / (allowed * np.linalg.norm(bar - theta, axis=-1))
            other = rng.permutation(theta)
            pairs += int(np.sum(reached - margin(rows, other) > allowed * np.linalg.norm(other - theta, axis=-1)))
            instances += len(rows)
            used.append(ratio)
            worst = int(ratio.argmax())
            at = {"bar": bar[worst].tolist(), "theta": theta[worst].tolist()}
            tightest.see(1.0 + ROUNDING - float(ratio[worst]), **describe(rows, worst), **at)
    ratios = np.concatenate(used)
    counts, edges = np.histogram(ratios, bins=np.linspace(-1.0, 1.0 + 1e-9, 61))
    numbers = {
        "largest_ratio": float(ratios.max()),
        "no_common_constant": pairs / instances,  # how often L at theta does not bound a rise towards theta
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        "slice": _slice(),
    }
    return tightest.finding(instances, "1 + 1e-10 - (drop of the margin) / (L x distance)", numbers)


def _slice() -> dict[str, Any]:
    """The margin and Lemma 1's bound on a line through theta-bar, in one instance in the plane."""
    rows = dataset([[0.6, 1.0], [1.3, 0.2]], [[0.2, 0.6]], [[-0.9, 0.4], [-0.2, -0.7]])
    bar = maximum_margin(rows).theta
    along = np.linspace(-1.5, 1.5, 121)
    direction = np.array([[np.cos(2.2), np.sin(2.2)]])
    values, bounds = [], []
    for distance in along:
        theta = bar + distance * direction
        values.append(float(margin(rows, theta)[0]))
        bounds.append(float((margin(rows, bar) - lipschitz(rows, theta) * abs(distance))[0]))
    return {"along": along.tolist(), "margin": values, "bound": bounds}


def draw_lipschitz(numbers: Numbers, left: Axes, right: Axes) -> None:
    part, histogram = numbers["slice"], numbers["histogram"]
    left.fill_between(part["along"], part["bound"], part["margin"], color=COLOURS["bound"], alpha=0.12, lw=0)
    left.plot(part["along"], part["margin"], color=COLOURS["wbcu-linear"], label="margin Δ(θ)")
    left.plot(part["along"], part["bound"], "--", color=COLOURS["bound"], label="Δ(θ̄) - L ‖θ̄ - θ‖")
    left.set(xlabel="distance of θ from θ̄, along a line", title="One instance in the plane")
    left.legend(loc="lower center")
    right.stairs(histogram["counts"], histogram["edges"], fill=True, color=COLOURS["wbcu-linear"], alpha=0.75)
    right.axvline(1.0, color=COLOURS["bound"], ls="--")
    right.set_yscale("log")
    right.set(xlabel="drop of the margin / (L x distance)", ylabel="cases", title="All cases; the lemma allows 1")


def check_growth(
    rng: np.random.Generator, scale: float, taus: Mapping[str, Tau] = TAUS, learn: Learn = minimise
) -> Finding:
    """For each tau, how much faster the loss grows than tau / 2 times the squared distance."""
    shares: dict[str, list[np.ndarray]] = {name: [] for name in taus}
    tightest = {name: Tightest() for name in taus}
    without, unsolved, near, width, instances = {}, 0, 0, 0.0, 0
    for dimension in (1, 2, 3):
        drawn = scaled(8000, scale)
        found = solve(MODEST.draw(rng, drawn, dimension), learn)
        without[f"d = {dimension}"] = found.without_minimiser / drawn
        unsolved += found.unsolved
        apart = np.linalg.norm(found.bar - found.star, axis=-1) >= NEAREST
        near += int(np.sum(~apart))
        rows, star, bar = found.rows[apart], found.star[apart], found.bar[apart]
        instances += len(rows)
        grown = growth(rows, star, bar)
        bracket = segment_tau_from_above(rows, star, bar) / segment_tau(rows, star, bar)
        width = max(width, float(np.median(bracket) - 1.0))
        for name, tau in taus.items():
            value = tau(rows, star, bar)
            shares[name].append(value / grown)
            index = int(np.argmax(value / grown))
            room = float(grown[index] / value[index] - 1.0) if value.min() > 0.0 else -1.0
            at = {"star": star[index].tolist(), "bar": bar[index].tolist(), "tau": name}
            tightest[name].see(room, **describe(rows, index), **at)
    worst = min(tightest.values(), key=lambda each: each.room)
    slack = worst.room + ROUNDING
    edges = np.linspace(-4.0, 0.0 + 1e-9, 61)
    logs = {name: np.log10(np.maximum(np.concatenate(share), 1e-300)) for name, share in shares.items()}
    numbers = {
        "least_room": {name: each.room for name, each in tightest.items()},
        "median_share": {name: float(10.0 ** np.median(log)) for name, log in logs.items()},
        "without_minimiser": without,
        "unsolved": unsolved,
        "too_near": near,
        "segment_bracket_width": width,
        "full_rank_without_minimiser": _full_rank_without_minimiser(),
        "edges": edges.tolist(),
        "histograms": {name: np.histogram(np.clip(log, -4.0, None), edges)[0].tolist() for name, log in logs.items()},
        "slice": _parabolas(),
    }
    measure = "growth of the loss / (tau/2 x distance squared) - 1 + 1e-10"
    counterexample = worst.instance if slack < 0.0 else None
    return Finding(slack >= 0.0 and not unsolved, instances, slack, measure, numbers, counterexample)


def _full_rank_without_minimiser() -> dict[str, Any]:
    """Assumption 2 and rank(A) = d hold, and yet there is no theta*: the loss falls for ever towards (0, 1)."""
    rows = dataset([[1.0, 0.0]], np.empty((0, 2)), [[0.0, -1.0]])
    direction = recession_direction(rows)
    assert direction is not None
    return {
        **describe(rows, 0),
        "rank": int(np.linalg.matrix_rank(rows.features[0])),
        "largest_margin": float(margin(rows, maximum_margin(rows).theta)[0]),
        "direction": (direction + 0.0).tolist(),
        "losses": [float(loss(rows, length * direction[None])[0]) for length in (0.0, 1.0, 10.0, 100.0)],
    }


def _parabolas() -> dict[str, Any]:
    """The loss of Example 1 along the line through theta* and theta-bar, and each tau's bound on it."""
    rows = example()
    star, bar = minimise(rows).theta, maximum_margin(rows).theta
    along = np.linspace(-0.4, 1.4, 73)
    squared = np.sum((bar - star) ** 2)
    lowest = loss(rows, star)[0]
    bounds = {name: lowest + tau(rows, star, bar)[0] / 2.0 * squared * along**2 for name, tau in TAUS.items()}
    return {
        "along": along.tolist(),
        "loss": [float(loss(rows, star + t * (bar - star))[0]) for t in along],
        "bounds": {name: bound.tolist() for name, bound in bounds.items()},
    }


TAU_STYLES = {
    "segment": (PALETTE[3], "smallest eigenvalue"),
    "corrected": (PALETTE[6], "the proof's, with 1/|Dᵁ|"),
    "printed": (PALETTE[7], "the proof's, as printed"),
}


def draw_growth(numbers: Numbers, left: Axes, right: Axes) -> None:
    part = numbers["slice"]
    left.plot(part["along"], part["loss"], color=INK, label="loss")
    for name, (colour, _) in TAU_STYLES.items():
        left.plot(part["along"], part["bounds"][name], "--", color=colour)
    for place, label in ((0.0, "θ*"), (1.0, "θ̄")):
        left.axvline(place, color=SOFT, lw=0.8)
        left.annotate(label, (place, 1.0), (3, -9), xycoords=("data", "axes fraction"), textcoords="offset points")
    left.set(xlabel="from θ* to θ̄", ylabel="loss", title="The appendix's example")
    for name, counts in numbers["histograms"].items():
        colour, label = TAU_STYLES[name]
        right.stairs(counts, numbers["edges"], color=colour, label=label, lw=1.4)
    right.axvline(0.0, color=INK, ls="--", lw=1.0)
    right.set(xlabel="log₁₀ of τ / (the largest τ that holds)", ylabel="instances")
    right.set(title="All instances; the lemma allows 0")
    right.legend(loc="upper left", title="τ", alignment="left")


CLAIMS = (
    Claim(
        name="margin-lipschitz",
        title="The margin is Lipschitz continuous",
        cites="Lemma 1 (Section 5.2), proof in Appendix B.2",
        statement="The margin of a linear discriminator is the score of its worst good sample less the score of its "
        "worst bad one. Move the parameters away from the best ones by some distance, and the margin drops by at most "
        "L times that distance, where L is how far apart in feature space the two deciding samples are.",
        check=check_lipschitz,
        draw=draw_lipschitz,
        panels=2,
    ),
    Claim(
        name="quadratic-growth",
        title="The discriminator's loss grows quadratically",
        cites="Lemma 2 (Section 5.2), proof in Appendix B.3",
        statement="If the samples' features span the space, the loss at the best separating parameters exceeds the "
        "smallest loss by at least tau/2 times the squared distance between the two. So a small difference in loss "
        "means that the learned parameters are near. Checked with tau as the proof prints it, with the proof's "
        "denominator put right, and as the smallest eigenvalue of the Hessian on the way.",
        check=check_growth,
        draw=draw_growth,
        panels=2,
        amendment="The lemma takes a minimiser for granted. Features that span the space do not give one (one expert "
        "sample at (1, 0) and a bad one at (0, -1) have none), so instances without one are told apart, counted and "
        "left out.",
    ),
)
