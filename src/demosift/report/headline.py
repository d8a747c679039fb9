"""The result in words: which method is best, by how much, and how sure that is. Computed, never written by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demosift.report import numbers, statistics
from demosift.report.groups import LAST_EVALUATIONS, Panel, Scale
from demosift.report.statistics import Scores
from demosift.report.table import BOOTSTRAP_SEED

ORACLE = "oracle"
FEW_SEEDS = 5  # below this, bootstrap intervals are markedly too narrow


@dataclass(frozen=True)
class Contender:
    title: str
    strata: tuple[Scores, ...]  # the reported number of each seed, an array per environment

    @property
    def mean(self) -> float:
        return float(np.concatenate(self.strata).mean())

    @property
    def seeds(self) -> int:
        return min(len(scores) for scores in self.strata)

    @property
    def std(self) -> float:
        """The mean over environments of the standard deviation over seeds."""
        return float(np.mean([statistics.sample_std(scores) for scores in self.strata]))


def contenders(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> list[Contender]:
    """Methods that every panel has, best first. Returns of different environments have no common mean: scores only.

    The oracle knows what no method may know, so it is no contender.
    """
    scale = panels[0].scale
    if len(panels) > 1 and any(panel.scale == "return" for panel in panels):
        return []
    finals = [
        {series.title: series.final(scale, last) for series in panel.series if series.method != ORACLE}
        for panel in panels
    ]
    shared = [title for title in finals[0] if all(title in final for final in finals)]
    found = [Contender(title, tuple(final[title] for final in finals)) for title in shared]
    return sorted(found, key=lambda contender: -contender.mean)


def headline(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> tuple[str, str]:
    """The result in one sentence, and how sure it is in another; where tasks differ in kind, the best of each kind, and
    then the sentences."""
    if not panels:
        return "No result could be read.", "The files that could not be used are named below."
    kinds = list(dict.fromkeys(panel.recipe for panel in panels))
    if len(kinds) == 1:
        return sentences(panels, last)
    best, sure = [], []
    for kind in kinds:
        own = [panel for panel in panels if panel.recipe == kind]
        on = f"On {kind}" if kind else "Elsewhere"
        ranked = [f"{each.title} {short(each.mean, own[0].scale)}" for each in contenders(own, last)[:2]]
        best.append(f"{on} {' and '.join(ranked)}" if ranked else f"{on} no method is everywhere")
        sure.append(f"{on}: {' '.join(filter(None, sentences(own, last)))}")
    return "Best: " + "; ".join(each[0].lower() + each[1:] for each in best) + ".", " ".join(sure)


def sentences(panels: Sequence[Panel], last: int) -> tuple[str, str]:
    ranked, scale = contenders(panels, last), panels[0].scale
    if not ranked:
        return f"{numbers.count_of(len(panels), 'environment')}, no method on all of them with a score.", ""
    over = f" averaged over {len(panels)} environments" if len(panels) > 1 else ""
    first = ranked[0]
    if len(ranked) == 1:
        return f"{first.title} reaches {amount(first.mean, scale)}{over}.", spread(first, scale)
    second = ranked[1]
    gap = first.mean - second.mean
    lead = f"{amount(first.mean, scale)}{over}, against {short(second.mean, scale)} for {second.title}, the next best"
    if min(first.seeds, second.seeds) < 2:
        return (
            f"{first.title} leads with {lead}.",
            "With one seed there is no spread to judge this by: it is an observation, not yet a result.",
        )
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    low, high = statistics.difference_interval(first.strata, second.strata, statistics.mean, generator)
    improvement = statistics.probability_of_improvement(first.strata, second.strata)
    sureness = (
        f"The difference is {numbers.measured(gap, scale)}{' points' if scale == 'score' else ''}, 95% interval "
        f"{numbers.interval(low, high, scale)}; a seed of {first.title} beats a seed of {second.title} with "
        f"probability {numbers.number(improvement, 2)}."
    )
    if min(first.seeds, second.seeds) < FEW_SEEDS:
        sureness += f" With fewer than {FEW_SEEDS} seeds such intervals are too narrow."
    return (f"{first.title} is best: {lead}." if low > 0 else f"No clear winner: {first.title} has {lead}."), sureness


def amount(value: float, scale: Scale) -> str:
    return f"{short(value, scale)} of the expert's score" if scale == "score" else f"a return of {short(value, scale)}"


def short(value: float, scale: Scale) -> str:
    return numbers.measured(value, scale, 0) + "%" if scale == "score" else numbers.measured(value, scale)


def spread(contender: Contender, scale: Scale) -> str:
    if contender.seeds < 2:
        return "One seed: there is no spread to judge this by."
    return f"The standard deviation over {contender.seeds} seeds is {numbers.measured(contender.std, scale)}."
