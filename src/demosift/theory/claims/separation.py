"""When the learned discriminator separates good from bad samples: Theorem 5, and Theorem 6 in one dimension."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.claims.landscape import TAU_STYLES, describe
from demosift.theory.drawing import ALARM, COLOURS, INK, SOFT
from demosift.theory.gap import scaled
from demosift.theory.linear import PerInstance, Rows, dataset, gradient, loss, minimise, pulls, scores
from demosift.theory.margin import TAUS, Learn, Solved, Tau, extremes, growth, lipschitz, margin, maximum_margin, solve
from demosift.theory.separable import Family, almost_equal, integers

WANTED = {1: 3000, 2: 6000, 3: 1000}  # how many instances must satisfy the condition, by dimension; few do
BATCH = 4000
MOST_BATCHES = 120
LENGTHS = np.geomspace(0.1, 4.0, 15)  # the lengths of theta* at which frequencies are taken
DOTS = 500  # how many a picture has


def condition(found: Solved, tau: PerInstance) -> np.ndarray:
    """Equation 13: sqrt(2 (L(bar) - L(star)) / tau) < Delta(bar) / L, as the two sides."""
    excess = np.maximum(loss(found.rows, found.bar) - loss(found.rows, found.star), 0.0)
    left = np.sqrt(2.0 * np.divide(excess, tau, out=np.full_like(tau, np.inf), where=tau > 0.0))
    return np.stack([left, margin(found.rows, found.bar) / lipschitz(found.rows, found.star)])


class Tally:
    """What is counted over the batches."""

    def __init__(self, taus: Mapping[str, Tau]) -> None:
        self.taus = taus
        self.satisfied = Counter(dict.fromkeys(taus, 0))
        self.tightest = Tightest()
        self.instances = self.unsolved = self.wrong_threshold = self.separated = self.wrong_signs = 0
        self.dots: list[list[float]] = []

    def add(self, found: Solved) -> dict[str, int]:
        """Count a batch; return how many of its instances satisfy the condition, for each tau."""
        rows, star = found.rows, found.star
        reached = margin(rows, star)
        share = reached / margin(rows, found.bar)
        residual = np.abs(gradient(rows, star)).max(-1) / pulls(rows)
        self.instances += len(found)
        self.unsolved += found.unsolved + int(np.sum(residual > 1e-11))
        self.separated += int(np.sum(reached > 0.0))
        self.wrong_threshold += int(np.sum((reached > 0.0) & ~zero_separates(rows, star)))
        self.wrong_signs += int(np.sum(~zero_separates(rows, found.bar)))
        counts = {}
        for name, tau in self.taus.items():
            left, right = condition(found, tau(rows, star, found.bar))
            met = left < right
            counts[name] = int(met.sum())
            if met.any():
                index = int(np.where(met, share, np.inf).argmin())
                at = {"star": star[index].tolist(), "bar": found.bar[index].tolist(), "tau": name}
                self.tightest.see(float(share[index]), **describe(rows, index), **at)
            if name == list(self.taus)[-1] and rows.dimension == 2 and len(self.dots) < DOTS:
                near = right - left > -2.0
                self.dots += np.stack([right - left, share], 1)[near][:60].tolist()
        self.satisfied.update(counts)
        return counts


def zero_separates(rows: Rows, theta: np.ndarray) -> np.ndarray:
    """Whether good rows score above zero and bad ones below, so that the threshold c = 1/2 separates."""
    lowest, highest = extremes(rows, scores(rows, theta))
    return (lowest > 0.0) & (highest < 0.0)


def check_theorem(
    rng: np.random.Generator, scale: float, taus: Mapping[str, Tau] = TAUS, learn: Learn = minimise
) -> Finding:
    """First features of any length, for the frequencies; then of lengths at which the condition holds often enough.

    The condition compares theta* with a unit vector and cannot hold unless |theta* - theta-bar| < 1. So the second kind
    has features scaled such that |theta*| is near one. The conclusion does not depend on the features' scale.
    """
    tally = Tally(taus)
    plain, by_length = {}, []
    for dimension in WANTED:
        drawn = scaled(8000, scale)
        found = solve(Family().draw(rng, drawn, dimension), learn)
        counts = tally.add(found)
        plain[f"d = {dimension}"] = {
            **{name: count / drawn for name, count in counts.items()},
            "conclusion": float(np.sum(margin(found.rows, found.star) > 0.0)) / drawn,
            "without_minimiser": found.without_minimiser / drawn,
        }
        if dimension == 2:
            by_length = [_frequencies(found, length, taus) for length in LENGTHS]
    enough = True
    for dimension, wanted in WANTED.items():
        counts, batches = Counter(dict.fromkeys(taus, 0)), 0
        while min(counts.values()) < wanted * scale and batches < MOST_BATCHES * max(scale, 0.1):
            found = solve(Family().draw(rng, BATCH, dimension), learn)
            batches += 1
            counts.update(tally.add(found.with_length(rng.uniform(0.5, 1.25, len(found)))))
        enough = enough and min(counts.values()) >= wanted * scale
    numbers = {
        "satisfied": tally.satisfied,
        "enough": enough,
        "frequencies": plain,
        "wrong_threshold": tally.wrong_threshold / max(tally.separated, 1),
        "max_margin_breaks_assumption": tally.wrong_signs / max(tally.instances, 1),
        "unsolved": tally.unsolved,
        "by_length": by_length,
        "dots": tally.dots,
    }
    worst = tally.tightest
    holds = enough and worst.room > 0.0 and not tally.unsolved
    measure = "margin learned / largest margin, where the condition holds"
    slack = worst.room if worst.instance else -1.0  # no instance satisfied the condition
    counterexample = worst.instance if worst.room <= 0.0 else None
    return Finding(holds, tally.instances, slack, measure, numbers, counterexample)


def _frequencies(found: Solved, length: float, taus: Mapping[str, Tau]) -> dict[str, float]:
    """How often the condition holds when features are scaled such that |theta*| is `length`."""
    at = found.with_length(np.full(len(found), length))
    result = {"length": float(length), "conclusion": float(np.mean(margin(at.rows, at.star) > 0.0))}
    for name, tau in {**taus, "sharp": growth}.items():
        left, right = condition(at, tau(at.rows, at.star, at.bar))
        result[name] = float(np.mean(left < right))
    return result


def draw_theorem(numbers: Numbers, left: Axes, right: Axes) -> None:
    room, share = np.array(numbers["dots"]).reshape(-1, 2).T
    share = np.clip(share, -1.5, 1.5)
    met = room > 0.0
    left.axhspan(-1.6, 0.0, xmin=2.1 / 3.2, color=ALARM, alpha=0.1, lw=0)
    left.plot(room[~met], share[~met], "o", ms=2.5, color=SOFT, alpha=0.5, mew=0)
    left.plot(room[met], share[met], "o", ms=3.0, color=COLOURS["wbcu-linear"], mew=0)
    _axes_through_zero(left)
    left.text(0.55, -0.8, "refuted,\nif any", color=ALARM, ha="center", fontsize=8)
    left.set(xlim=(-2.1, 1.1), ylim=(-1.6, 1.6), title="Condition and conclusion (d = 2)")
    left.set(xlabel="room in the condition: right - left side", ylabel="margin learned / largest margin")
    table = numbers["by_length"]
    lines = {"conclusion": (INK, "-", "conclusion: θ* separates"), "sharp": (SOFT, ":", "condition, best τ")}
    lines |= {name: (colour, "-", f"condition, τ: {label}") for name, (colour, label) in TAU_STYLES.items()}
    for name, (colour, style, label) in lines.items():
        if name in table[0]:
            x, y = ([row[key] for row in table] for key in ("length", name))
            right.plot(x, y, style, color=colour, label=label)
    right.set(xscale="log", ylim=(0.0, 1.0), title="How conservative it is (d = 2)")
    right.set(xlabel="‖θ*‖, set by the features' scale", ylabel="share of instances")
    right.legend(loc="upper left", fontsize=7)


def _axes_through_zero(axes: Axes) -> None:
    axes.axhline(0.0, color=INK, lw=0.8)
    axes.axvline(0.0, color=INK, lw=0.8)


def exact_sums(rows: Rows) -> tuple[PerInstance, PerInstance]:
    """|D^E| times the sum of D^S's features, and |D^S| times the sum of D^E's: exact for whole numbers."""
    expert = rows.expert > 0.0
    supplementary = (rows.union > 0.0) & ~expert
    feature = rows.features[..., 0]
    of_expert, of_supplementary = (np.sum(feature * part, -1) for part in (expert, supplementary))
    return expert.sum(-1) * of_supplementary, supplementary.sum(-1) * of_expert


Condition = Callable[[Rows, PerInstance], np.ndarray]


def scores_are_lower(rows: Rows, bar: PerInstance) -> np.ndarray:
    """Theorem 6's condition: under theta-bar the supplementary data score less on average than the expert's."""
    supplementary, expert = exact_sums(rows)
    return bar * supplementary < bar * expert


def check_one_dimension(
    rng: np.random.Generator, scale: float, learn: Learn = minimise, condition: Condition = scores_are_lower
) -> Finding:
    """Whole numbers, where equality of means is decided exactly; any features; and means that are a millionth apart."""
    number = scaled(40_000, scale)
    anyhow = Family(length=(0.3, 3.0))
    families = (integers(rng, number), anyhow.draw(rng, number, 1), almost_equal(rng, anyhow.draw(rng, number, 1)))
    least, wrong, ties, met, unsolved = np.inf, 0, 0, 0, 0
    dots, counterexample = [], None
    for rows in families:
        bar, learned = maximum_margin(rows).theta[:, 0], learn(rows)
        unsolved += int(np.sum(~(learned.residual <= 1e-12)))
        # At a tie theta* is zero but for rounding.
        reached = np.where(np.abs(learned.theta[:, 0]) <= 1e-12, 0.0, margin(rows, learned.theta))
        lower = condition(rows, bar)
        supplementary, expert = exact_sums(rows)
        tied = supplementary == expert
        right = (reached > 0.0) == lower
        ties, met, wrong = ties + int(tied.sum()), met + int(lower.sum()), wrong + int(np.sum(~right))
        least = min(least, float(np.where(tied, np.inf, np.abs(reached)).min()))
        if not right.all() and counterexample is None:
            index = int(np.flatnonzero(~right)[0])
            at = {"star": float(learned.theta[index, 0]), "bar": float(bar[index]), "condition": bool(lower[index])}
            counterexample = {**describe(rows, index), **at}
        samples = (rows.expert > 0.0).sum(-1)
        gap = bar * (expert - supplementary) / (samples * ((rows.union > 0.0).sum(-1) - samples))
        dots += np.stack([gap, reached], 1)[: DOTS // len(families)].tolist()
    instances = sum(map(len, families))
    numbers = {
        "condition_holds": met / instances,
        "disagreements": wrong,
        "ties": ties,
        "unsolved": unsolved,
        "without_bad_samples": _without_bad_samples(),
        "dots": dots,
    }
    measure = "least |margin learned| where the means differ; minus the number of disagreements, if any"
    slack = -float(wrong) if wrong else least
    return Finding(not wrong and not unsolved, instances, slack, measure, numbers, counterexample)


def _without_bad_samples() -> dict[str, Any]:
    """Why there must be bad samples: without any, every theta separates, and the condition is not necessary."""
    rows = dataset([[1.0]], [[2.0]], np.empty((0, 1)))
    separates = margin(rows, minimise(rows).theta) > 0.0
    return {"condition": bool(scores_are_lower(rows, np.ones(1))[0]), "separates": bool(separates[0])}


def draw_one_dimension(numbers: Numbers, axes: Axes) -> None:
    gap, reached = np.array(numbers["dots"]).T
    reached = np.clip(reached, -3.0, 3.0)
    axes.axvspan(-3.0, 0.0, ymin=0.5, color=ALARM, alpha=0.08, lw=0)
    axes.axvspan(0.0, 8.0, ymax=0.5, color=ALARM, alpha=0.08, lw=0)
    for met, name, label in ((gap > 0.0, "good", "condition holds"), (gap <= 0.0, "nbcu", "it does not")):
        axes.plot(gap[met], reached[met], "o", ms=3, mew=0, alpha=0.7, color=COLOURS[name], label=label)
    _axes_through_zero(axes)
    axes.set(xlim=(-3.0, 8.0), ylim=(-3.0, 3.0), ylabel="margin learned, Δ(θ*)")
    axes.set(xlabel="mean score of the expert's data - mean score of the supplementary data, under θ̄")
    axes.set(title="The shaded quadrants must stay empty")
    axes.legend(loc="lower right")


CLAIMS = (
    Claim(
        name="learned-margin",
        title="When the learned discriminator separates",
        cites="Theorem 5 (Section 5.2), proof in Appendix B.4",
        statement="If good and bad samples can be separated by a plane, and if the loss at the best separating "
        "parameters is close enough to the smallest loss (Equation 13), then the discriminator that minimises the loss "
        "also separates them: some threshold on the weight keeps every good sample, in the expert's and in the "
        "supplementary data, and no bad one.",
        check=check_theorem,
        draw=draw_theorem,
        panels=2,
        amendment="As for quadratic growth, instances on which the loss has no minimiser are counted and left out.",
        slow=True,
    ),
    Claim(
        name="one-dimension",
        title="One feature: a condition that is exact",
        cites="Theorem 6 (Appendix B.6)",
        statement="With a single feature, the learned discriminator separates good from bad samples if and only if the "
        "supplementary data score less on average, under the best separating parameter, than the expert's data.",
        check=check_one_dimension,
        draw=draw_one_dimension,
        amendment="The theorem does not say that there are bad samples. Without any, every discriminator separates, "
        "and the condition is not necessary.",
    ),
)
