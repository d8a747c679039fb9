"""NBCU where the data's coverage is kind: the behaviour is the expert, or never meets an expert state."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.gap import ERRORS, described, imitation_gap, log_slope, measured, reset_cliff_gap, scaled
from demosift.theory.instances import (
    Instance,
    behaviour_is_expert,
    no_overlap,
    random_instance,
    rare_start,
    reset_cliff,
)
from demosift.theory.learners import Learner, bc, nbcu
from demosift.theory.mdp import values
from demosift.theory.sampling import collect


def check_expert_behaviour(
    rng: np.random.Generator, scale: float, learner: Learner = nbcu, constant: float = 4.0 / 9.0
) -> Finding:
    """Theorem 3: if the behaviour is the expert, NBCU's gap is at most min(H, 4/9 S H^2 / N_tot), and of that rate.

    On the Reset Cliff that is hard for N trajectories its gap is BC's exact one with all N of them, whatever eta is.
    """
    rows, worst = [], {"room": np.inf}
    for _ in range(scaled(200, scale, 3)):
        sizes = int(rng.integers(2, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 9))
        instance = behaviour_is_expert(random_instance(rng, *sizes))
        eta, total = float(rng.random()), int(np.exp(rng.uniform(0.0, 7.0)))
        gap = imitation_gap(rng, instance, learner, eta, total, scaled(500, scale, 100))
        rate = sizes[0] * sizes[2] ** 2 / total
        bound = min(float(sizes[2]), constant * rate)
        rows.append({"kind": "random", "gap": gap.mean, "rate": rate, "share": gap.mean / rate})
        if 1.0 - gap.upper / bound < worst["room"]:
            worst = described(instance, eta=eta, total=total, gap=gap.mean, bound=bound, room=1.0 - gap.upper / bound)
    furthest, shown = 0.0, {"x": [30, 100, 300, 1_000, 3_000], "nbcu": [], "bc": [], "exact": []}
    for total in shown["x"]:
        initial = rare_start(10, 1.0 / (total + 1))
        world = behaviour_is_expert(reset_cliff(10, 2, 4, initial))
        of_union = imitation_gap(rng, world, learner, 0.1, total, scaled(2000, scale, 200))
        of_expert = imitation_gap(rng, world, bc, 0.1, total, scaled(500, scale, 100))
        exact = reset_cliff_gap(initial, 2, 4, 1.0, total)
        furthest = max(furthest, of_union.off(exact))
        shown["nbcu"].append(of_union.mean)
        shown["bc"].append(of_expert.mean)
        shown["exact"].append(exact)
    agrees = furthest <= ERRORS
    holds = agrees and worst["room"] >= 0.0
    return Finding(
        holds=holds,
        instances=len(rows) + len(shown["x"]),
        slack=worst["room"] if agrees else ERRORS - furthest,
        measure=f"1 - (gap + {ERRORS:g} standard errors) / bound",
        numbers={
            **shown,
            "slope": log_slope(shown["x"], shown["exact"]),
            "standard errors off": furthest,
            "fitting constant": max(row["share"] for row in rows),
        },
        counterexample=None if holds else worst,
    )


def draw_expert_behaviour(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    numbers = finding.numbers
    axes.loglog(numbers["x"], numbers["bc"], "o-", color=drawing.COLOURS["bc"], label="BC, on a tenth of the data")
    axes.loglog(numbers["x"], numbers["nbcu"], "o", color=drawing.COLOURS["nbcu"], label="NBCU, on all of it")
    exact = f"exact, slope {numbers['slope']:.2f}"
    axes.loglog(numbers["x"], numbers["exact"], color=drawing.COLOURS["nbcu"], linewidth=1, label=exact)
    axes.set(xlabel="trajectories in the union", ylabel="imitation gap", title="More of the expert's data, eta = 0.1")
    axes.legend()
    return figure


def common_start(rng: np.random.Generator, states: int, actions: int, horizon: int) -> Instance:
    """As `no_overlap`, but with the one initial distribution that Section 3 gives to both policies."""
    apart = no_overlap(rng, states, actions, horizon)
    return Instance(apart.mdp, apart.expert, apart.behaviour)


def check_no_overlap(
    rng: np.random.Generator,
    scale: float,
    learner: Learner = nbcu,
    constant: float = 2.0,
    make: Callable[[np.random.Generator, int, int, int], Instance] = no_overlap,
) -> Finding:
    """Theorem 4: where the behaviour never meets an expert state, NBCU is BC there, and has BC's bound."""
    room, worst, instances, differing = np.inf, {}, scaled(300, scale, 4), 0
    for _ in range(instances):
        sizes = int(rng.integers(4, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 8))
        instance = make(rng, *sizes)
        eta, total = float(rng.uniform(0.05, 1.0)), int(np.exp(rng.uniform(1.0, 7.0)))
        data = collect(rng, instance, eta, total, scaled(400, scale, 100))
        learned = learner(data)
        expert_states = instance.expert_occupancy.sum(-1) > 0.0
        same = bool(np.array_equal(learned[:, expert_states], bc(data)[:, expert_states]))
        differing += not same
        gap = measured(instance.expert_value - values(instance.mdp, learned))
        bound = min(float(sizes[2]), constant * sizes[0] * sizes[2] ** 2 / (eta * total))
        here = 1.0 - gap.upper / bound if same else min(-1.0, 1.0 - gap.upper / bound)
        if here < room:
            room, worst = here, described(instance, eta=eta, total=total, gap=gap.mean, bound=bound, same=same)
    shown: dict[str, Any] = {"x": [10, 30, 100, 300, 1_000, 3_000], "eta": 0.2}
    rare = int(rng.integers(2**32))
    for name, maker in (("apart", no_overlap), ("common", common_start)):
        instance = maker(np.random.default_rng(rare), 10, 3, 6)
        for method, each in (("bc", bc), ("nbcu", nbcu)):
            shown[f"{name} {method}"] = [
                imitation_gap(rng, instance, each, 0.2, n, scaled(500, scale, 100)).mean for n in shown["x"]
            ]
    return Finding(
        holds=room >= 0.0,
        instances=instances,
        slack=float(room),
        measure=f"1 - (gap + {ERRORS:g} standard errors) / bound; -1 where the policies differ",
        numbers={**shown, "instances where NBCU differs from BC on an expert state": differing},
        counterexample=worst if room < 0.0 else None,
    )


def draw_no_overlap(finding: Finding) -> Figure:
    figure, axes = drawing.panels(2)
    numbers = finding.numbers
    titles = {"apart": "Behaviour starts elsewhere", "common": "Both start from rho, as printed"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for method, line in (("bc", "o-"), ("nbcu", "s--")):
            shown = [gap if gap > 0.0 else np.nan for gap in numbers[f"{name} {method}"]]
            ax.loglog(numbers["x"], shown, line, color=drawing.COLOURS[method], label=method.upper())
        ax.set(xlabel="trajectories in the union", title=title)
    axes[0].set(ylabel="imitation gap")
    axes[0].legend()
    axes[1].sharey(axes[0])
    return figure


CLAIMS = (
    Claim(
        name="nbcu-expert-behaviour",
        title="If the behaviour is the expert, all data counts",
        cites="Theorem 3 (Section 4.3), proof in Appendix A.4",
        statement="If the supplementary data is the expert's too, NBCU is cloning with N trajectories instead of "
        "eta N: its loss is at most the smaller of H and (4/9) S H² / N, and falls like 1/N whatever eta is.",
        check=check_expert_behaviour,
        draw=draw_expert_behaviour,
    ),
    Claim(
        name="nbcu-no-overlap",
        title="Bad data on other states does no harm",
        cites="Theorem 4 (Section 4.3), proof in Appendix A.5",
        statement="If the behaviour never visits a state that the expert visits, NBCU takes the same actions as BC "
        "on every expert state, bit for bit, and has BC's bound 2 S H² / N_E. What it learns elsewhere does not "
        "matter.",
        check=check_no_overlap,
        draw=draw_no_overlap,
        amendment="As printed both policies start from rho, so their states meet at the first step and no MDP "
        "satisfies the condition. Here the behaviour has its own initial distribution; the right-hand picture shows "
        "what a common one does.",
    ),
)
