"""The bias remark, with infinite data: what each method's weights make of the union's distribution.

WBCU, DemoDICE and DWBC all clone a weighted union. With infinite data the weighted distribution should be the expert's.
"""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.discounted import (
    Discounted,
    Table,
    demodice,
    random_discounted,
    random_pair,
    regularised_divergence,
    total_variation,
)
from demosift.theory.gap import EXACT, scaled
from demosift.theory.mdp import conditional

BIASED = 1e-6  # a total variation above this is no rounding
UNBIASED = 1e-10  # and one below this is nothing else

Weighting = Callable[[Table, Table], Table]
Solver = Callable[[Discounted, Table, Table, float], Table]


def sizes(rng: np.random.Generator) -> tuple[int, int]:
    return int(rng.integers(2, 9)), int(rng.integers(2, 5))


def density_ratio(expert: Table, union: Table) -> Table:
    """WBCU's weight c / (1 - c), with the discriminator that is best on these distributions (Equations 8 and 9)."""
    c = expert / (expert + union)
    return c / (1.0 - c)


def check_wbcu_unbiased(rng: np.random.Generator, scale: float, weight: Weighting = density_ratio) -> Finding:
    """The union's distribution times WBCU's weight is the expert's distribution, to rounding."""
    furthest, worst, shown = 0.0, {}, []
    instances = scaled(400, scale, 10)
    for index in range(instances):
        world = random_discounted(rng, *sizes(rng))
        expert, behaviour = random_pair(rng, world, float(rng.random()), stochastic=index % 2 == 0)
        eta = float(rng.uniform(0.01, 1.0))
        union = eta * expert + (1.0 - eta) * behaviour
        weighted = union * weight(expert, union)
        error = float(np.abs(weighted - expert).max())
        if index < 10:
            shown += list(zip(expert.flat, union.flat, weighted.flat, strict=True))
        if error > furthest:
            furthest, worst = error, {"states": len(expert), "eta": eta, "error": error}
    return Finding(
        holds=furthest <= EXACT,
        instances=instances,
        slack=EXACT - furthest,
        measure="1e-12 - largest difference from the expert's distribution",
        numbers={"pairs": np.array(shown).tolist()},
        counterexample=worst if furthest > EXACT else None,
    )


def draw_wbcu_unbiased(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    expert, union, weighted = np.array(finding.numbers["pairs"]).T
    axes.plot(expert, union, ".", color=drawing.COLOURS["nbcu"], label="union, as NBCU clones it")
    axes.plot(expert, weighted, ".", color=drawing.COLOURS["wbcu"], label="union times WBCU's weight")
    top = max(expert.max(), union.max())
    axes.plot([0.0, top], [0.0, top], color=drawing.SOFT, linewidth=0.8)
    axes.set(
        xlabel="the expert's distribution d(s, a)", ylabel="what is cloned", title="Weighted, the union is the expert"
    )
    axes.legend()
    return figure


def check_demodice_bias(rng: np.random.Generator, scale: float, solve: Solver = demodice) -> Finding:
    """DemoDICE's d* is not the expert's distribution where the expert is stochastic, and is it where not.

    That d* differs is certified by its objective, which is below the one of the expert's distribution, and by the
    flow equation, which it satisfies. With a deterministic expert the only distribution of finite divergence that
    satisfies the flow equation is the expert's own.
    """
    least, exact, flow, worst = np.inf, 0.0, 0.0, {}
    instances = scaled(600, scale, 10)
    for index in range(instances):
        stochastic = index % 3 > 0
        world = random_discounted(rng, *sizes(rng))
        expert, behaviour = random_pair(rng, world, 0.3, stochastic)
        eta, alpha = float(rng.uniform(0.05, 0.9)), float(np.exp(rng.uniform(-2.0, 2.0)))
        union = eta * expert + (1.0 - eta) * behaviour
        solution = solve(world, expert, union, alpha)
        flow = max(flow, world.flow_error(solution))
        distance = total_variation(solution, expert)
        if not stochastic:
            exact = max(exact, distance)
            continue
        better = regularised_divergence(expert, expert, union, alpha) - regularised_divergence(
            solution, expert, union, alpha
        )
        distance = distance if better > 0.0 else 0.0
        if distance < least:
            least, worst = distance, {"states": len(expert), "eta": eta, "alpha": alpha, "total variation": distance}
    holds = least > BIASED and exact <= UNBIASED and flow <= UNBIASED
    return Finding(
        holds=holds,
        instances=instances,
        slack=least - BIASED if exact <= UNBIASED and flow <= UNBIASED else UNBIASED - max(exact, flow),
        measure="smallest total variation between d* and the expert's distribution, less 1e-6",
        numbers={
            "largest distance with a deterministic expert": exact,
            "largest error of the flow equation": flow,
            **by_alpha(rng, solve),
        },
        counterexample=None if holds else {**worst, "deterministic": exact, "flow": flow},
    )


def by_alpha(rng: np.random.Generator, solve: Solver) -> dict[str, list]:
    """The distance of d* from the expert's distribution in a few worlds, over the strength of the regularisation."""
    alphas = np.logspace(-2.0, 2.0, 17).tolist()
    curves: dict[str, list] = {"alpha": alphas, "stochastic": [], "deterministic": []}
    for kind in ("stochastic", "deterministic"):
        for _ in range(5):
            world = random_discounted(rng, 6, 3)
            expert, behaviour = random_pair(rng, world, 0.3, kind == "stochastic")
            union = 0.3 * expert + 0.7 * behaviour
            curves[kind].append([total_variation(solve(world, expert, union, each), expert) for each in alphas])
    return curves


def draw_demodice_bias(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    numbers = finding.numbers
    for kind, colour in (("stochastic", drawing.COLOURS["demodice"]), ("deterministic", drawing.COLOURS["good"])):
        for index, curve in enumerate(numbers[kind]):
            axes.semilogx(numbers["alpha"], curve, color=colour, label=None if index else f"{kind} expert")
    axes.set(
        xlabel="DemoDICE's alpha",
        ylabel="total variation from the expert",
        title="DemoDICE's d* in ten random worlds",
    )
    axes.legend()
    return figure


def dwbc_mass(expert: Table, supplementary: Table, alpha: float, strength: float, ratio: float) -> Table:
    """What DWBC clones, by the formulas of Remark 1, with the discriminator that is best on these distributions.

    `strength` is its lambda and `ratio` the expert samples per supplementary one. The discriminator's objective is, at
    each (s, a), m d^E (-log c) + (d^S - m d^E) (-log(1 - c)) with m = lambda * ratio, so c = m d^E / d^S as long as
    that is below one; beyond, it has no minimum. log pi as an input tells a table nothing that (s, a) does not.
    """
    scaled_expert = strength * ratio * expert
    assert np.all(scaled_expert < supplementary), "the discriminator's objective has no minimum"
    c = scaled_expert / supplementary
    on_expert = np.divide(strength, c * (1.0 - c), out=np.zeros_like(c), where=c > 0.0)
    return ratio * expert * (alpha - on_expert) + supplementary / (1.0 - c)


def released_dwbc_mass(expert: Table, supplementary: Table, alpha: float, strength: float, ratio: float) -> Table:
    """The same by DWBC's released code: clipped outputs, alpha - 1 - lambda / (c (1 - c)), and c / (1 - c) from 1/2 on.

    It averages over both sets, so their sizes do not matter.
    """
    del ratio
    c = np.clip(strength * expert / supplementary, 0.1, 0.9)
    return expert * (alpha - 1.0 - strength / (c * (1.0 - c))) + supplementary * np.where(c >= 0.5, c / (1.0 - c), 0.0)


Mass = Callable[[Table, Table, float, float, float], Table]


def check_dwbc_bias(rng: np.random.Generator, scale: float, mass: Mass = dwbc_mass) -> Finding:
    """What DWBC clones is not the expert's distribution where the expert never takes some action.

    It puts weight one on each such sample. Where the expert takes every action sometimes the two sums with c in them
    cancel and alpha times the expert's distribution is left, to rounding. The released code's weights are another
    matter: they are biased in both cases.
    """
    least, exact, released, policies, worst, shown = np.inf, 0.0, np.inf, 0.0, {}, []
    instances = scaled(400, scale, 10)
    for index in range(instances):
        stochastic = index % 2 == 1
        world = random_discounted(rng, *sizes(rng))
        share, ratio = float(rng.uniform(0.1, 0.9)), float(rng.uniform(0.05, 1.0))
        expert, supplementary = random_pair(rng, world, share, stochastic)
        strength, alpha = 0.9 * share / max(ratio, 1.0), 7.5
        cloned = _normalised(mass(expert, supplementary, alpha, strength, ratio))
        distance = total_variation(cloned, expert)
        of_code = _normalised(released_dwbc_mass(expert, supplementary, alpha, strength, ratio))
        released = min(released, total_variation(of_code, expert))
        if index < 12 and not stochastic:
            shown += list(zip(expert.flat, cloned.flat, of_code.flat, strict=True))
        if stochastic:
            exact = max(exact, distance)
            continue
        policies = max(policies, float(np.abs(conditional(of_code) - conditional(expert)).max()))
        if distance < least:
            least, worst = (
                distance,
                {"states": len(expert), "share": share, "ratio": ratio, "total variation": distance},
            )
    holds = least > BIASED and exact <= UNBIASED and released > BIASED
    return Finding(
        holds=holds,
        instances=instances,
        slack=least - BIASED if exact <= UNBIASED else UNBIASED - exact,
        measure="smallest total variation between what is cloned and the expert's distribution, less 1e-6",
        numbers={
            "largest distance with a stochastic expert": exact,
            "smallest distance, released code": released,
            "largest difference from a deterministic expert's policy, released code": policies,
            "pairs": np.array(shown).tolist(),
        },
        counterexample=None if holds else {**worst, "stochastic": exact, "released": released},
    )


def _normalised(table: Table) -> Table:
    return table / table.sum()


def draw_dwbc_bias(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    expert, cloned, released = np.array(finding.numbers["pairs"]).T
    axes.plot(expert, cloned, ".", color=drawing.COLOURS["dwbc"], label="as in Remark 1")
    axes.plot(expert, released, ".", color=drawing.COLOURS["bound"], label="as in DWBC's released code")
    top = max(expert.max(), cloned.max(), released.max())
    axes.plot([0.0, top], [0.0, top], color=drawing.SOFT, linewidth=0.8)
    axes.set(
        xlabel="the expert's distribution d(s, a)",
        ylabel="what is cloned, normalised",
        title="Deterministic experts: mass where the expert has none",
    )
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        name="wbcu-unbiased",
        title="WBCU's weights turn the union into the expert",
        cites="Section 5 (before Equation 7) and Remark 1",
        statement="With infinite data the best discriminator is c = d_E / (d_E + d_U), and c / (1 - c) is the ratio of "
        "the two distributions. The union, so weighted, is the expert's distribution exactly: WBCU clones as if the "
        "expert had collected everything.",
        check=check_wbcu_unbiased,
        draw=draw_wbcu_unbiased,
    ),
    Claim(
        name="demodice-bias",
        title="DemoDICE's weights are biased towards the union",
        cites="Remark 1 (Section 5)",
        statement="DemoDICE weights by d* / d_U, where d* minimises KL(d || d_E) + alpha KL(d || d_U) over the "
        "distributions that some policy has. Solved exactly in discounted MDPs, d* is not the expert's: it is pulled "
        "towards the union, in the worlds of the picture the more the larger alpha.",
        check=check_demodice_bias,
        draw=draw_demodice_bias,
        amendment="The remark says so of every expert. With a deterministic one, as the paper assumes throughout, "
        "d* is the expert's distribution for every alpha: any other that a policy has is infinitely far from it. The "
        "flow constraint, which the remark also blames, is satisfied by the expert and biases nothing by itself. So "
        "the bias is checked for stochastic experts, and its absence for deterministic ones.",
    ),
    Claim(
        name="dwbc-bias",
        title="DWBC's weights are biased towards what the expert never does",
        cites="Remark 1 (Section 5)",
        statement="DWBC adds the expert's samples with weight alpha - lambda / (c (1 - c)) and the others with weight "
        "1 / (1 - c). Where the expert never takes an action c is zero, so such a sample is cloned with weight one. "
        "What is cloned differs from the expert's distribution for every deterministic expert.",
        check=check_dwbc_bias,
        draw=draw_dwbc_bias,
        amendment="The remark says that the weights lose their connection with the density ratio because the "
        "discriminator sees log pi. A table learns nothing from it. With an expert that takes every action sometimes, "
        "and lambda small enough for the discriminator's objective to have a minimum, the two sums with c in them "
        "cancel and what is left is alpha times the expert's distribution: no bias. So the bias is checked for "
        "deterministic experts, and its absence for stochastic ones. The released code has other weights: biased for "
        "both, but with a deterministic expert only in how much each state counts, so that a table still learns the "
        "expert's actions.",
    ),
)
