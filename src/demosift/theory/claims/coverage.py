"""NBCU and the data's coverage: a behaviour that is the expert, or never meets an expert state; samples of one kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.drawing import COLOURS, INK
from demosift.theory.gap import (
    BELOW,
    ERRORS,
    EXACT,
    Bounded,
    described,
    imitation_gap,
    log_slope,
    measured,
    reset_cliff_gap,
    scaled,
)
from demosift.theory.instances import (
    Instance,
    behaviour_is_expert,
    detour,
    no_overlap,
    random_instance,
    rare_start,
    reset_cliff,
)
from demosift.theory.learners import Learner, bc, nbcu
from demosift.theory.mdp import values
from demosift.theory.sampling import Data, collect


def check_expert_behaviour(
    rng: np.random.Generator, scale: float, learner: Learner = nbcu, constant: float = 4.0 / 9.0
) -> Finding:
    """Theorem 3: if the behaviour is the expert, NBCU's gap is at most min(H, 4/9 S H^2 / N), and falls at that rate.

    On the Reset Cliff that is hard for N trajectories, its gap is BC's exact gap with all N of them, whatever eta is.
    """
    bounded = Bounded(constant)
    for _ in range(scaled(200, scale, 3)):
        states, actions, horizon = int(rng.integers(2, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 9))
        instance = behaviour_is_expert(random_instance(rng, states, actions, horizon))
        eta, total = float(rng.random()), int(np.exp(rng.uniform(0.0, 7.0)))
        gap = imitation_gap(rng, instance, learner, eta, total, scaled(500, scale, 100))
        bounded.add(gap, states * horizon**2 / total, instance, eta, total)
    furthest, shown = 0.0, {"x": [30, 100, 300, 1_000, 3_000], "nbcu": [], "bc": [], "exact": []}
    for total in shown["x"]:
        initial = rare_start(10, 1.0 / (total + 1))
        world = behaviour_is_expert(reset_cliff(10, 2, 4, initial))
        of_union = imitation_gap(rng, world, learner, 0.1, total, scaled(2000, scale, 200))
        of_expert = imitation_gap(rng, world, bc, 0.1, total, scaled(500, scale, 100))
        exact = reset_cliff_gap(initial, 2, 4, 1.0, total)
        furthest = max(furthest, of_union.off(exact))
        for name, gap in (("nbcu", of_union.mean), ("bc", of_expert.mean), ("exact", exact)):
            shown[name].append(gap)
    numbers = {
        **shown,
        "slope": log_slope(shown["x"], shown["exact"]),
        "standard errors off": furthest,
        "fitting constant": bounded.fitting_constant,
    }
    wrong = ERRORS - furthest if furthest > ERRORS else None
    return bounded.tightest.finding(len(bounded.rows) + len(shown["x"]), BELOW, numbers, wrong)


def draw_expert_behaviour(numbers: Numbers, axes: Axes) -> None:
    axes.loglog(numbers["x"], numbers["bc"], "o-", color=COLOURS["bc"], label="BC, on a tenth of the data")
    axes.loglog(numbers["x"], numbers["nbcu"], "o", color=COLOURS["nbcu"], label="NBCU, on all of it")
    exact = f"exact, slope {numbers['slope']:.2f}"
    axes.loglog(numbers["x"], numbers["exact"], color=COLOURS["nbcu"], linewidth=1, label=exact)
    axes.set(xlabel="trajectories in the union", ylabel="imitation gap", title="More of the expert's data, eta = 0.1")
    axes.legend()


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
    tightest, instances, differing = Tightest(), scaled(300, scale, 4), 0
    for _ in range(instances):
        states, actions, horizon = int(rng.integers(4, 13)), int(rng.integers(2, 6)), int(rng.integers(1, 8))
        instance = make(rng, states, actions, horizon)
        eta, total = float(rng.uniform(0.05, 1.0)), int(np.exp(rng.uniform(1.0, 7.0)))
        data = collect(rng, instance, eta, total, scaled(400, scale, 100))
        learned = learner(data)
        expert_states = instance.expert_occupancy.sum(-1) > 0.0
        same = bool(np.array_equal(learned[:, expert_states], bc(data)[:, expert_states]))
        differing += not same
        gap = measured(instance.expert_value - values(instance.mdp, learned))
        bound = min(float(horizon), constant * states * horizon**2 / (eta * total))
        room = gap.below(bound) if same else min(-1.0, gap.below(bound))
        tightest.see(room, **described(instance), eta=eta, total=total, gap=gap.mean, bound=bound, same=same)
    shown: dict[str, Any] = {"x": [10, 30, 100, 300, 1_000, 3_000], "eta": 0.2}
    seed = int(rng.integers(2**32))  # of both worlds, which then differ in their initial distributions only
    for name, maker in (("apart", no_overlap), ("common", common_start)):
        instance = maker(np.random.default_rng(seed), 10, 3, 6)
        for method, each in (("bc", bc), ("nbcu", nbcu)):
            gaps = [imitation_gap(rng, instance, each, 0.2, n, scaled(500, scale, 100)).mean for n in shown["x"]]
            shown[f"{name} {method}"] = gaps
    numbers = {**shown, "instances where NBCU differs from BC on an expert state": differing}
    return tightest.finding(instances, f"{BELOW}; -1 where the policies differ", numbers)


def draw_no_overlap(numbers: Numbers, *axes: Axes) -> None:
    titles = {"apart": "Behaviour starts elsewhere", "common": "Both start from rho, as printed"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for method, line in (("bc", "o-"), ("nbcu", "s--")):
            shown = [gap if gap > 0.0 else np.nan for gap in numbers[f"{name} {method}"]]
            ax.loglog(numbers["x"], shown, line, color=COLOURS[method], label=method.upper())
        ax.set(xlabel="trajectories in the union", title=title)
    axes[0].set(ylabel="imitation gap")
    axes[0].legend()
    axes[1].sharey(axes[0])


EXPERT_SAMPLE, WRONG_ACTION = ("expert state", "expert action"), ("expert state", "other action")
ELSEWHERE = ("other state", "expert action"), ("other state", "other action")
# Table 1: kinds of samples by state and action, with the colour of what they do: help, harm, or something in between.
CELLS = {EXPERT_SAMPLE: COLOURS["good"], WRONG_ACTION: COLOURS["demodice"], **dict.fromkeys(ELSEWHERE, COLOURS["bc"])}


def check_sample_kinds(rng: np.random.Generator, scale: float, learner: Learner = nbcu, samples: int = 60) -> Finding:
    """Table 1, cell by cell: what happens to NBCU's gap when only samples of one kind are added to the expert's data.

    On an expert state the expert's action helps and any other harms, by more than the standard errors. A sample
    elsewhere does less of either, and has exactly no effect once the expert's data covers all expert states.
    """
    instance = detour(rng, 12, 3, 8)
    mdp, replicates = instance.mdp, scaled(4000, scale, 400)
    few = collect(rng, instance, 1.0, 6, replicates).expert
    visited = instance.expert_occupancy.sum(-1) > 0.0
    full = np.broadcast_to(np.where(visited[..., None], instance.expert, 0.0).astype(np.int64), few.shape)

    def value(expert: np.ndarray, added: np.ndarray) -> np.ndarray:
        return values(mdp, learner(Data(expert, added)))

    without, without_full = (value(expert, np.zeros_like(few)) for expert in (few, full))
    rows, effects, idle = [], {}, 0.0
    for kind in CELLS:
        states = visited if kind[0] == "expert state" else ~visited
        taken = instance.expert if kind[1] == "expert action" else 1.0 - instance.expert
        mass = np.where(states[..., None], taken, 0.0)
        mass = (mass / mass.sum((-2, -1), keepdims=True)).reshape(mdp.horizon, -1)
        added = rng.multinomial(samples, mass, (replicates, mdp.horizon)).reshape(few.shape)
        change = effects[kind] = measured(without - value(few, added))
        rows.append({"state": kind[0], "action": kind[1], "change": change.mean, "error": change.error})
        if kind in ELSEWHERE:
            idle = max(idle, float(np.abs(value(full, added) - without_full).max()))
    helps, harms = effects[EXPERT_SAMPLE], effects[WRONG_ACTION]
    margins = {"an expert sample helps": -helps.upper, "a wrong action on an expert state harms": harms.lower}
    for kind in ELSEWHERE:
        margins[f"{kind[1]} elsewhere: less help"] = effects[kind].lower - helps.upper
        margins[f"{kind[1]} elsewhere: less harm"] = harms.lower - effects[kind].upper
    tightest = Tightest()
    for name, margin in margins.items():
        tightest.see(margin - EXACT, violated=name, cells=rows)  # no effect at all neither helps nor harms
    if idle > EXACT:
        tightest.see(EXACT - idle, violated="no effect once covered", cells=rows)
    measure = f"distance between the kinds' effects on the gap, less {ERRORS:g} standard errors"
    gap = float(np.mean(instance.expert_value - without))
    numbers = {"cells": rows, "gap without": gap, "effect once covered": idle}
    return tightest.finding(len(CELLS) * replicates, measure, numbers)


def draw_sample_kinds(numbers: Numbers, axes: Axes) -> None:
    cells = numbers["cells"]
    places = np.arange(len(cells))
    changes, errors = [cell["change"] for cell in cells], [ERRORS * cell["error"] for cell in cells]
    axes.bar(places, changes, yerr=errors, color=list(CELLS.values()), width=0.6)
    axes.axhline(0.0, color=INK, linewidth=1)
    axes.set_xticks(places, [f"{cell['state']},\n{cell['action']}" for cell in cells])
    title = f"Samples of one kind added to data with gap {numbers['gap without']:.2f}"
    axes.set(ylabel="change of NBCU's gap", title=title)
    axes.grid(axis="x", visible=False)


CLAIMS = (
    Claim(
        name="nbcu-expert-behaviour",
        title="If the behaviour is the expert, all data counts",
        cites="Theorem 3 (Section 4.3), proof in Appendix A.4",
        statement="If the supplementary data is the expert's too, NBCU is cloning with N trajectories instead of eta "
        "N: its loss is at most the smaller of H and (4/9) S H² / N, and falls like 1/N whatever eta is.",
        check=check_expert_behaviour,
        draw=draw_expert_behaviour,
    ),
    Claim(
        name="nbcu-no-overlap",
        title="Bad data on other states does no harm",
        cites="Theorem 4 (Section 4.3), proof in Appendix A.5",
        statement="If the behaviour never visits a state that the expert visits, NBCU takes the same actions as BC on "
        "every expert state, bit for bit, and has BC's bound 2 S H² / N_E. What it learns elsewhere does not matter.",
        check=check_no_overlap,
        draw=draw_no_overlap,
        panels=2,
        amendment="As printed both policies start from rho, so their states meet at the first step and no MDP "
        "satisfies the condition. Here the behaviour has its own initial distribution; the right-hand picture shows "
        "what a common one does.",
    ),
    Claim(
        name="sample-kinds",
        title="Which samples help NBCU",
        cites="Table 1 (Section 4.3)",
        statement="Add samples of one kind to a few expert trajectories and look at NBCU's loss. Expert actions on "
        "expert states help and other actions there harm. Samples on other states do less of either, and nothing at "
        "all once the expert's data covers every expert state.",
        check=check_sample_kinds,
        draw=draw_sample_kinds,
    ),
)
