"""Table 1: which kinds of samples help NBCU, measured one kind at a time."""

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.gap import ERRORS, EXACT, Gap, measured, scaled
from demosift.theory.instances import Instance, detour
from demosift.theory.learners import Learner, nbcu
from demosift.theory.mdp import values
from demosift.theory.sampling import Data, collect

CELLS = {  # Table 1: state, action
    ("expert state", "expert action"): "helps",
    ("expert state", "other action"): "harms",
    ("other state", "expert action"): "in between",
    ("other state", "other action"): "in between",
}


def check_sample_kinds(rng: np.random.Generator, scale: float, learner: Learner = nbcu, samples: int = 60) -> Finding:
    """Table 1, cell by cell: what happens to NBCU's gap when only samples of one kind are added to the expert's data.

    A sample on an expert state helps or harms by more than its standard errors, as its action says. One elsewhere does
    less than either, and does exactly nothing once the expert's data covers all expert states.
    """
    instance = detour(rng, 12, 3, 8)
    mdp, replicates = instance.mdp, scaled(4000, scale, 400)
    few = collect(rng, instance, 1.0, 6, replicates).expert
    visited = instance.expert_occupancy.sum(-1) > 0.0
    full = np.broadcast_to(np.where(visited[..., None], instance.expert, 0.0).astype(np.int64), few.shape)
    rows, effects, idle = [], {}, 0.0
    for kind in CELLS:
        states = visited if kind[0] == "expert state" else ~visited
        taken = instance.expert if kind[1] == "expert action" else 1.0 - instance.expert
        mass = np.where(states[..., None], taken, 0.0)
        mass = (mass / mass.sum((-2, -1), keepdims=True)).reshape(mdp.horizon, -1)
        added = rng.multinomial(samples, mass, (replicates, mdp.horizon)).reshape(few.shape)
        change = _change(instance, learner, few, added)
        effects[kind] = change
        rows.append({"state": kind[0], "action": kind[1], "change": change.mean, "error": change.error})
        if kind[0] == "other state":
            covered = values(mdp, learner(Data(full, added))) - values(mdp, learner(Data(full, np.zeros_like(added))))
            idle = max(idle, float(np.abs(covered).max()))
    margins = {
        "an expert sample helps": -effects["expert state", "expert action"].upper,
        "a wrong action on an expert state harms": _lower(effects["expert state", "other action"]),
    }
    for action in ("expert action", "other action"):
        change = effects["other state", action]
        margins[f"{action} elsewhere: less help"] = _lower(change) - effects["expert state", "expert action"].upper
        margins[f"{action} elsewhere: less harm"] = _lower(effects["expert state", "other action"]) - change.upper
    margins = {name: margin - EXACT for name, margin in margins.items()}  # no effect at all neither helps nor harms
    margins["no effect once covered"] = EXACT - idle
    tightest = min(margins, key=lambda name: margins[name])
    return Finding(
        holds=margins[tightest] >= 0.0,
        instances=len(CELLS) * replicates,
        slack=min(value for name, value in margins.items() if name != "no effect once covered" or value < 0.0),
        measure=f"distance between the kinds' effects on the gap, less {ERRORS:g} standard errors",
        numbers={"cells": rows, "gap without": _base(instance, learner, few), "effect once covered": idle},
        counterexample={"violated": tightest, "cells": rows} if margins[tightest] < 0.0 else None,
    )


def _change(instance: Instance, learner: Learner, few: np.ndarray, added: np.ndarray) -> Gap:
    """How the gap changes, on the same expert data with and without the samples."""
    without = values(instance.mdp, learner(Data(few, np.zeros_like(added))))
    return measured(without - values(instance.mdp, learner(Data(few, added))))


def _base(instance: Instance, learner: Learner, few: np.ndarray) -> float:
    return float(np.mean(instance.expert_value - values(instance.mdp, learner(Data(few, np.zeros_like(few))))))


def _lower(gap: Gap) -> float:
    return gap.mean - ERRORS * gap.error


def draw_sample_kinds(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    cells = finding.numbers["cells"]
    names = [f"{cell['state']},\n{cell['action']}" for cell in cells]
    verdicts = list(CELLS.values())
    colour = {"helps": drawing.COLOURS["good"], "harms": drawing.COLOURS["demodice"], "in between": drawing.PALETTE[0]}
    places = np.arange(len(cells))
    heights = [cell["change"] for cell in cells]
    axes.bar(
        places, heights, yerr=[ERRORS * cell["error"] for cell in cells], color=[colour[v] for v in verdicts], width=0.6
    )
    axes.axhline(0.0, color=drawing.INK, linewidth=1)
    axes.set_xticks(places, names)
    title = f"Samples of one kind added to data with gap {finding.numbers['gap without']:.2f}"
    axes.set(ylabel="change of NBCU's gap", title=title)
    axes.grid(axis="x", visible=False)
    return figure


CLAIMS = (
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
