"""WBCU with a table for a discriminator: it is behavioural cloning, however much supplementary data there is."""

import numpy as np
from matplotlib.figure import Figure

from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding
from demosift.theory.gap import EXACT, described, scaled
from demosift.theory.instances import random_instance, standard_imitation
from demosift.theory.learners import Learner, bc, nbcu, wbcu
from demosift.theory.mdp import values
from demosift.theory.sampling import collect


def check_tabular_wbcu(rng: np.random.Generator, scale: float, learner: Learner = wbcu) -> Finding:
    """Proposition 2: with delta = 0 the policies of WBCU and BC are equal on every state, also on an empty expert set.

    Bit for bit with a deterministic expert, where only one action of a state has weight; otherwise to 1e-12.
    """
    room, worst, policies, empty = np.inf, {}, 0, 0
    for index in range(scaled(150, scale, 6)):
        stochastic = index % 2 == 1
        sizes = int(rng.integers(1, 11)), int(rng.integers(2, 6)), int(rng.integers(1, 8))
        instance = random_instance(rng, *sizes, stochastic=stochastic)
        eta, total = float(rng.choice([0.0, 0.1, 0.5, 0.9])), int(np.exp(rng.uniform(0.0, 9.0)))
        data = collect(rng, instance, eta, total, scaled(100, scale, 20))
        difference = float(np.abs(learner(data) - bc(data)).max())
        here = EXACT - difference if stochastic else (EXACT if difference == 0.0 else -difference)
        policies += len(data.expert)
        empty += int(np.sum(data.num_expert == 0))
        if here < room:
            room, worst = here, described(instance, eta=eta, total=total, stochastic=stochastic, difference=difference)
    return Finding(
        holds=room >= 0.0,
        instances=policies,
        slack=float(room),
        measure="1e-12 - largest difference between the policies",
        numbers={"of them with an empty expert set": empty, **against_supplementary(rng, scale, learner)},
        counterexample=worst if room < 0.0 else None,
    )


def against_supplementary(rng: np.random.Generator, scale: float, learner: Learner) -> dict[str, list[float]]:
    """The gaps on Standard Imitation with about ten expert trajectories and ever more supplementary ones."""
    instance, shown = standard_imitation(20, 2, 1), [1, 3, 10, 30, 100, 300, 1000]
    gaps: dict[str, list[float]] = {
        "supplementary": [float(extra) for extra in shown],
        "bc": [],
        "nbcu": [],
        "wbcu": [],
    }
    for extra in shown:
        data = collect(rng, instance, 10.0 / (10.0 + extra), 10 + extra, scaled(1000, scale, 100))
        for name, each in (("bc", bc), ("nbcu", nbcu), ("wbcu", learner)):
            gaps[name].append(float(instance.expert_value - values(instance.mdp, each(data)).mean()))
    return gaps


def draw_tabular_wbcu(finding: Finding) -> Figure:
    figure, (axes,) = drawing.panels()
    numbers = finding.numbers
    for method, line, width in (("nbcu", "o-", 1.6), ("bc", "o-", 4.0), ("wbcu", "s--", 1.6)):
        axes.semilogx(
            numbers["supplementary"],
            numbers[method],
            line,
            color=drawing.COLOURS[method],
            linewidth=width,
            label=method.upper(),
        )
    axes.set(
        xlabel="supplementary trajectories",
        ylabel="imitation gap / H",
        ylim=(0.0, 1.0),
        title="Standard Imitation, ten expert trajectories: tabular WBCU is BC",
    )
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        name="tabular-wbcu",
        title="With a table for a discriminator, WBCU is BC",
        cites="Proposition 2 (Section 5.1), proof in Appendix B.1",
        statement="A tabular discriminator treats every sample on its own: one that the expert's data does not hold "
        "gets weight zero, however good it is. What is left of the weighted objective is the expert's data, so WBCU "
        "learns the very policy of BC and the supplementary data is wasted. A state without any weight is uniform, "
        "as for BC.",
        check=check_tabular_wbcu,
        draw=draw_tabular_wbcu,
    ),
)
