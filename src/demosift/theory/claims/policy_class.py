"""Cloning without a table: maximum likelihood over a finite class of policies."""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
from matplotlib.axes import Axes

from demosift.theory.claim import Claim, Finding, Numbers, Tightest
from demosift.theory.drawing import COLOURS
from demosift.theory.gap import BELOW, EXACT, described, log_slope, measured, scaled
from demosift.theory.instances import Instance, random_instance, random_policy, rare_start, reset_cliff
from demosift.theory.learners import most_likely
from demosift.theory.mdp import Policy, deterministic, values
from demosift.theory.sampling import Counts, collect


def class_bound(num_policies: int, horizon: int, num_expert: float) -> float:
    """min(H, 4 sqrt(2) H^2 sqrt(log(4 |Pi| H N_E) / N_E)): Theorem 7 with the constants of its proof."""
    inside = log(4.0 * num_policies * horizon * num_expert) / num_expert
    return min(float(horizon), 4.0 * sqrt(2.0 * inside) * horizon**2)


def one_mistake_each(instance: Instance) -> Policy:
    """The expert, and for each rare state of Reset Cliff a policy that is wrong there only: hard to tell apart."""
    expert = instance.expert.argmax(-1)
    wrong = np.repeat(expert[None], instance.mdp.num_states - 2, 0)
    wrong[np.arange(len(wrong)), :, np.arange(len(wrong))] = 1
    return deterministic(np.concatenate([wrong, expert[None]]), instance.mdp.num_actions)


def check_policy_class(
    rng: np.random.Generator,
    scale: float,
    choose: Callable[[Counts, Policy], np.ndarray] = most_likely,
    bound: Callable[[int, int, float], float] = class_bound,
) -> Finding:
    """Theorem 7: maximum likelihood over a finite class that holds the expert. Ties go to the worst policy."""
    tightest, rows = Tightest(), []
    cases: list[tuple[str, Instance, Policy, float, int]] = []
    for _ in range(scaled(300, scale, 3)):
        states, actions, horizon = int(rng.integers(2, 9)), int(rng.integers(2, 5)), int(rng.integers(1, 5))
        instance = random_instance(rng, states, actions, horizon)
        others = int(rng.integers(1, 64))
        spread = float(rng.choice([0.1, 1.0]))
        near = rng.random((others, horizon, states, 1)) < rng.random((others, 1, 1, 1))  # where they act as the expert
        policies = np.stack([random_policy(rng, horizon, states, actions, spread) for _ in range(others)])
        policies = np.concatenate([np.where(near, instance.expert, policies), instance.expert[None]])
        cases.append(("random", instance, policies, float(rng.uniform(0.1, 1.0)), int(10 ** rng.uniform(0.5, 6.0))))
    for total in (100, 1_000, 10_000, 100_000, 1_000_000):
        instance = reset_cliff(12, 2, 4, rare_start(12, 1.0 / (total + 1)))
        cases.append(("Reset Cliff", instance, one_mistake_each(instance), 1.0, total))
    for kind, instance, policies, eta, total in cases:
        worth = values(instance.mdp, policies)
        policies = policies[worth.argsort(kind="stable")]
        data = collect(rng, instance, eta, total, scaled(500, scale, 100))
        gap = measured(instance.expert_value - np.sort(worth)[choose(data.expert, policies)])
        limit = bound(len(policies), instance.mdp.horizon, eta * total)
        rows.append({"kind": kind, "expert": eta * total, "gap": gap.mean, "share": gap.mean / limit, "bound": limit})
        case = {"policies": len(policies), "eta": eta, "total": total, **rows[-1], "room": gap.below(limit)}
        tightest.see(gap.below(limit), **described(instance), **case)
    hard = [row for row in rows if row["kind"] == "Reset Cliff" and row["gap"] > 0.0]
    slope = log_slope([row["expert"] for row in hard], [row["gap"] for row in hard]) if len(hard) > 1 else None
    return tightest.finding(len(rows), BELOW, {"rows": rows, "slope on Reset Cliff": slope})


def draw_policy_class(numbers: Numbers, axes: Axes) -> None:
    for kind, colour, marker in (("random", COLOURS["wbcu"], "o"), ("Reset Cliff", COLOURS["nbcu"], "D")):
        chosen = sorted((row["expert"], row["gap"], row["bound"]) for row in numbers["rows"] if row["kind"] == kind)
        seen = [(expert, gap) for expert, gap, _ in chosen if gap > EXACT]
        axes.loglog(*np.reshape(seen, (-1, 2)).T, marker, color=colour, label=f"gap, {kind}", linestyle="none")
        if kind == "Reset Cliff":
            experts, _, bounds = zip(*chosen, strict=True)
            axes.loglog(experts, bounds, color=COLOURS["bound"], label="bound (slope -1/2)")
    slope = numbers["slope on Reset Cliff"]
    shown = "" if slope is None else f"; measured on Reset Cliff {slope:.2f}"
    axes.set(xlabel="expert trajectories", ylabel="imitation gap", title=f"Rate of the bound -1/2{shown}")
    axes.legend()


CLAIMS = (
    Claim(
        name="policy-class",
        title="Cloning with a finite class of policies",
        cites="Theorem 7 (Appendix C)",
        statement="Without a table, cloning picks the most likely policy of a class. If the class is finite and holds "
        "the expert, the expected loss is at most the smaller of H and 4 √2 H² √(log(4 |Pi| H N_E) / N_E), with the "
        "constants of the proof. Measured losses fall faster, like 1/N_E: the proof does not use that the expert is "
        "deterministic.",
        check=check_policy_class,
        draw=draw_policy_class,
    ),
)
