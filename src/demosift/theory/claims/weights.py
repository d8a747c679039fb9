"""What weights do: with infinite data to the union's distribution, and to WBCU if the discriminator is a table.

WBCU, DemoDICE and DWBC all clone a weighted union. With infinite data the weighted distribution should be the expert's.
"""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.discounted import (
    Discounted,
    Table,
    demodice,
    random_discounted,
    random_pair,
    regularised_divergence,
    total_variation,
)
from demosift.theory.drawing import COLOURS, SOFT
from demosift.theory.gap import EXACT, described, scaled
from demosift.theory.instances import random_instance, standard_imitation
from demosift.theory.learners import Learner, bc, nbcu, wbcu
from demosift.theory.mdp import conditional, values
from demosift.theory.sampling import collect

BIASED = 1e-6  # a total variation above this is more than rounding
UNBIASED = 1e-10  # and one below this is only rounding

Weighting = Callable[[Table, Table], Table]
Solver = Callable[[Discounted, Table, Table, float], Table]


def random_world(rng: np.random.Generator) -> Discounted:
    return random_discounted(rng, int(rng.integers(2, 9)), int(rng.integers(2, 5)))


def density_ratio(expert: Table, union: Table) -> Table:
    """WBCU's weight c / (1 - c), with the discriminator that is best on these distributions (Equations 8 and 9)."""
    c = expert / (expert + union)
    return c / (1.0 - c)


def check_wbcu_unbiased(rng: np.random.Generator, scale: float, weight: Weighting = density_ratio) -> Finding:
    """The union's distribution times WBCU's weight is the expert's distribution, to rounding."""
    tightest, shown, instances = Tightest(), [], scaled(400, scale, 10)
    for index in range(instances):
        world = random_world(rng)
        expert, behaviour = random_pair(rng, world, float(rng.random()), stochastic=index % 2 == 0)
        eta = float(rng.uniform(0.01, 1.0))
        union = eta * expert + (1.0 - eta) * behaviour
        weighted = union * weight(expert, union)
        error = float(np.abs(weighted - expert).max())
        if index < 10:
            shown += list(zip(expert.flat, union.flat, weighted.flat, strict=True))
        tightest.see(EXACT - error, states=len(expert), eta=eta, error=error)
    measure = "1e-12 - largest difference from the expert's distribution"
    return tightest.finding(instances, measure, {"pairs": np.array(shown).tolist()})


def draw_wbcu_unbiased(numbers: Numbers, axes: Axes) -> None:
    expert, union, weighted = np.array(numbers["pairs"]).T
    axes.plot(expert, union, ".", color=COLOURS["nbcu"], label="union, as NBCU clones it")
    axes.plot(expert, weighted, ".", color=COLOURS["wbcu"], label="union times WBCU's weight")
    top = max(expert.max(), union.max())
    axes.plot([0.0, top], [0.0, top], color=SOFT, linewidth=0.8)
    axes.set(xlabel="the expert's distribution d(s, a)", ylabel="what is cloned")
    axes.set(title="Weighted, the union is the expert")
    axes.legend()


def check_demodice_bias(rng: np.random.Generator, scale: float, solve: Solver = demodice) -> Finding:
    """DemoDICE's d* differs from the expert's distribution if the expert is stochastic, and only then.

    That d* differs is certified by its objective, which is below the one of the expert's distribution, and by the
    flow equation, which it satisfies. With a deterministic expert the only distribution of finite divergence that
    satisfies the flow equation is the expert's own.
    """
    tightest, exact, flow, instances = Tightest(), 0.0, 0.0, scaled(600, scale, 10)
    for index in range(instances):
        stochastic = index % 3 > 0
        world = random_world(rng)
        expert, behaviour = random_pair(rng, world, 0.3, stochastic)
        eta, alpha = float(rng.uniform(0.05, 0.9)), float(np.exp(rng.uniform(-2.0, 2.0)))
        union = eta * expert + (1.0 - eta) * behaviour
        solution = solve(world, expert, union, alpha)
        flow = max(flow, world.flow_error(solution))
        distance = total_variation(solution, expert)
        if stochastic:
            of_expert, of_solution = (regularised_divergence(d, expert, union, alpha) for d in (expert, solution))
            distance = distance if of_solution < of_expert else 0.0
            case = {"states": len(expert), "eta": eta, "alpha": alpha, "total variation": distance}
            tightest.see(distance - BIASED, **case)
        else:
            exact = max(exact, distance)
    curves = by_alpha(rng, solve)
    numbers = {"largest distance with a deterministic expert": exact, "largest error of the flow equation": flow}
    tightest.instance |= {"deterministic": exact, "flow": flow}
    measure = "smallest total variation between d* and the expert's distribution, less 1e-6"
    wrong = UNBIASED - max(exact, flow) if max(exact, flow) > UNBIASED else None
    return tightest.finding(instances, measure, {**numbers, **curves}, wrong)


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


def draw_demodice_bias(numbers: Numbers, axes: Axes) -> None:
    for kind, colour in (("stochastic", COLOURS["demodice"]), ("deterministic", COLOURS["good"])):
        for index, curve in enumerate(numbers[kind]):
            axes.semilogx(numbers["alpha"], curve, color=colour, label=None if index else f"{kind} expert")
    axes.set(xlabel="DemoDICE's alpha", ylabel="total variation from the expert")
    axes.set(title="DemoDICE's d* in ten random worlds")
    axes.legend()


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
    """The same for DWBC's released code, which clips c.

    Its weights are alpha - 1 - lambda / (c (1 - c)), and c / (1 - c) for c >= 1/2. It averages over both sets, so their
    sizes do not matter.
    """
    del ratio
    c = np.clip(strength * expert / supplementary, 0.1, 0.9)
    return expert * (alpha - 1.0 - strength / (c * (1.0 - c))) + supplementary * np.where(c >= 0.5, c / (1.0 - c), 0.0)


Mass = Callable[[Table, Table, float, float, float], Table]


def check_dwbc_bias(rng: np.random.Generator, scale: float, mass: Mass = dwbc_mass) -> Finding:
    """What DWBC clones is not the expert's distribution where the expert never takes some action.

    It gives weight one to each sample of such an action. Where the expert takes every action sometimes, the two sums
    with c in them cancel and alpha times the expert's distribution is left, to rounding. The released code has other
    weights, which are biased in both cases.
    """
    tightest, exact, released, policies, shown = Tightest(), 0.0, np.inf, 0.0, []
    instances = scaled(400, scale, 10)
    for index in range(instances):
        stochastic = index % 2 == 1
        world = random_world(rng)
        share, ratio = float(rng.uniform(0.1, 0.9)), float(rng.uniform(0.05, 1.0))
        expert, supplementary = random_pair(rng, world, share, stochastic)
        strength, alpha = 0.9 * share / max(ratio, 1.0), 7.5
        masses = (each(expert, supplementary, alpha, strength, ratio) for each in (mass, released_dwbc_mass))
        cloned, of_code = (table / table.sum() for table in masses)
        distance = total_variation(cloned, expert)
        released = min(released, total_variation(of_code, expert))
        if stochastic:
            exact = max(exact, distance)
            continue
        if index < 12:
            shown += list(zip(expert.flat, cloned.flat, of_code.flat, strict=True))
        policies = max(policies, float(np.abs(conditional(of_code) - conditional(expert)).max()))
        case = {"states": len(expert), "share": share, "ratio": ratio, "total variation": distance}
        tightest.see(distance - BIASED, **case)
    if released <= BIASED:
        tightest.see(released - BIASED)
    tightest.instance |= {"stochastic": exact, "released": released}
    numbers = {
        "largest distance with a stochastic expert": exact,
        "smallest distance, released code": released,
        "largest difference from a deterministic expert's policy, released code": policies,
        "pairs": np.array(shown).tolist(),
    }
    measure = "smallest total variation between what is cloned and the expert's distribution, less 1e-6"
    return tightest.finding(instances, measure, numbers, UNBIASED - exact if exact > UNBIASED else None)


def draw_dwbc_bias(numbers: Numbers, axes: Axes) -> None:
    expert, cloned, released = np.array(numbers["pairs"]).T
    axes.plot(expert, cloned, ".", color=COLOURS["dwbc"], label="as in Remark 1")
    axes.plot(expert, released, ".", color=COLOURS["bound"], label="as in DWBC's released code")
    top = max(expert.max(), cloned.max(), released.max())
    axes.plot([0.0, top], [0.0, top], color=SOFT, linewidth=0.8)
    axes.set(xlabel="the expert's distribution d(s, a)", ylabel="what is cloned, normalised")
    axes.set(title="Deterministic experts: mass where the expert has none")
    axes.legend()


def check_tabular_wbcu(rng: np.random.Generator, scale: float, learner: Learner = wbcu) -> Finding:
    """Proposition 2: with delta = 0 WBCU and BC are equal on every state, even if there is no expert data.

    They are equal bit for bit with a deterministic expert, where only one action per state has weight, otherwise to
    1e-12.
    """
    tightest, policies, empty = Tightest(), 0, 0
    for index in range(scaled(150, scale, 6)):
        stochastic = index % 2 == 1
        sizes = int(rng.integers(1, 11)), int(rng.integers(2, 6)), int(rng.integers(1, 8))
        instance = random_instance(rng, *sizes, stochastic=stochastic)
        eta, total = float(rng.choice([0.0, 0.1, 0.5, 0.9])), int(np.exp(rng.uniform(0.0, 9.0)))
        data = collect(rng, instance, eta, total, scaled(100, scale, 20))
        difference = float(np.abs(learner(data) - bc(data)).max())
        room = EXACT - difference if stochastic or difference == 0.0 else -difference
        policies += len(data.expert)
        empty += int(np.sum(data.num_expert == 0))
        case = {"eta": eta, "total": total, "stochastic": stochastic, "difference": difference}
        tightest.see(room, **described(instance), **case)
    numbers = {"of them with an empty expert set": empty, **against_supplementary(rng, scale, learner)}
    return tightest.finding(policies, "1e-12 - largest difference between the policies", numbers)


def against_supplementary(rng: np.random.Generator, scale: float, learner: Learner) -> dict[str, list[float]]:
    """The gaps on Standard Imitation with about ten expert trajectories and ever more supplementary ones."""
    instance, shown = standard_imitation(20, 2, 1), [1, 3, 10, 30, 100, 300, 1000]
    methods = {"bc": bc, "nbcu": nbcu, "wbcu": learner}
    gaps: dict[str, list[float]] = {name: [] for name in methods}
    for extra in shown:
        data = collect(rng, instance, 10.0 / (10.0 + extra), 10 + extra, scaled(1000, scale, 100))
        for name, each in methods.items():
            gaps[name].append(float(instance.expert_value - values(instance.mdp, each(data)).mean()))
    return {"supplementary": [float(extra) for extra in shown], **gaps}


def draw_tabular_wbcu(numbers: Numbers, axes: Axes) -> None:
    for method, line, width in (("nbcu", "o-", 1.6), ("bc", "o-", 4.0), ("wbcu", "s--", 1.6)):
        look = {"color": COLOURS[method], "linewidth": width, "label": method.upper()}
        axes.semilogx(numbers["supplementary"], numbers[method], line, **look)
    axes.set(xlabel="supplementary trajectories", ylabel="imitation gap / H", ylim=(0.0, 1.0))
    axes.set(title="Standard Imitation, ten expert trajectories: tabular WBCU is BC")
    axes.legend()


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
        amendment="The remark says so of every expert. With a deterministic one, as the paper assumes throughout, d* "
        "is the expert's distribution for every alpha: any other that a policy has is infinitely far from it. The flow "
        "constraint, which the remark also blames, is satisfied by the expert and biases nothing by itself. So the "
        "bias is checked for stochastic experts, and its absence for deterministic ones.",
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
    Claim(
        name="tabular-wbcu",
        title="With a table for a discriminator, WBCU is BC",
        cites="Proposition 2 (Section 5.1), proof in Appendix B.1",
        statement="A tabular discriminator treats every sample on its own: one that the expert's data does not hold "
        "gets weight zero, however good it is. What is left of the weighted objective is the expert's data, so WBCU "
        "learns the very policy of BC and the supplementary data is wasted. A state without any weight is uniform, as "
        "for BC.",
        check=check_tabular_wbcu,
        draw=draw_tabular_wbcu,
    ),
)
