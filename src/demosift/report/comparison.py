"""The grid of `successors` as tables: every method as published and with the robust cloner, pile by pile.

A table has a row for each method and setting, a column for each environment, and what all environments say together,
as rliable defines it. The first table is over all piles that every contender was run on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from demosift.learning.about import ROBUST
from demosift.report import statistics
from demosift.report.groups import Methods, Panel, Series, group
from demosift.report.paper import SUCCESSORS, Number, Overall, overall, summary, trained
from demosift.report.statistics import UNKNOWN, Interval
from demosift.results.folder import Results

LIMITS = np.linspace(0.0, 1.2, 61)  # of a performance profile
BASES = ("bc", "nbcu")  # improvement is measured over the first that is everywhere

RowKey = tuple[str, str]  # method and setting


@dataclass(frozen=True)
class Profile:
    """The share of seeds above each of `LIMITS`, and its 95% interval; NaN for a single seed."""

    share: Float[np.ndarray, "limits"]
    low: Float[np.ndarray, "limits"]
    high: Float[np.ndarray, "limits"]


@dataclass(frozen=True)
class ComparisonRow:
    key: RowKey
    series: Series  # one of them: they share the method and how it is shown
    entries: dict[str, Number]  # by column
    overall: Overall | None  # None where a task is missing
    profile: Profile | None
    over_published: float  # the probability that a seed of a robust row beats one of the published row; else NaN
    over_published_interval: Interval

    @property
    def title(self) -> str:
        return self.series.title

    @property
    def robust(self) -> bool:
        return self.key[0].endswith(ROBUST)


@dataclass(frozen=True)
class ComparisonTable:
    name: str  # of the pile; empty where it is over all of them
    columns: tuple[str, ...]  # environments, or piles
    rows: tuple[ComparisonRow, ...]
    base: str | None  # the method that improvement is measured over, as it is shown
    num_tasks: int
    seeds: tuple[int, ...]
    averaged: tuple[int, ...]
    trained: tuple[str, ...]


def comparison_tables(results: Results, methods: Methods) -> list[ComparisonTable]:
    """The table over all piles, where there are several, then one for each pile; none where the grid was not run."""
    panels = [
        panel
        for panel in group(results.cells.get(SUCCESSORS, ()), methods)[0]
        if panel.scale == "score" and panel.task is not None
    ]
    piles = sorted({str(panel.recipe) for panel in panels})
    tables = [make_table(pile, [panel for panel in panels if panel.recipe == pile]) for pile in piles]
    shared = everywhere(panels)
    return ([make_table("", shared)] if len({panel.recipe for panel in shared}) > 1 else []) + tables


def everywhere(panels: Sequence[Panel]) -> list[Panel]:
    """The tasks that every contender was run on."""
    contenders = {key_of(series) for panel in panels for series in panel.series if series.about.contender}
    return [panel for panel in panels if contenders <= {key_of(series) for series in panel.series}]


def key_of(series: Series) -> RowKey:
    return series.method, series.setting


def column_of(panel: Panel, over_all: bool) -> str:
    return str(panel.recipe) if over_all else str(panel.task).partition("/")[0]


def make_table(name: str, panels: Sequence[Panel]) -> ComparisonTable:
    """`panels`: the tasks of one pile, or of all, where the name is empty."""
    columns = tuple(dict.fromkeys(column_of(panel, not name) for panel in panels))
    order = {key_of(series): None for panel in panels for series in panel.series}
    series = {key: [{key_of(one): one for one in panel.series}.get(key) for panel in panels] for key in order}
    base = next((key for method in BASES for key in order if key == (method, "") and None not in series[key]), None)
    rows = [make_row(key, series, panels, columns, base, not name) for key in order]
    every = [one for panel in panels for one in panel.series]
    return ComparisonTable(
        name=name,
        columns=columns,
        rows=tuple(sorted(rows, key=lambda row: not row.series.about.contender)),
        base=None if base is None else next(one.title for one in series[base] if one is not None),
        num_tasks=len(panels),
        seeds=tuple(sorted({len(one.members) for one in every})),
        averaged=tuple(sorted({one.num_averaged() for one in every})),
        trained=tuple(sorted({trained([one]) for one in every})),
    )


def make_row(
    key: RowKey,
    series: dict[RowKey, list[Series | None]],
    panels: Sequence[Panel],
    columns: Sequence[str],
    base: RowKey | None,
    over_all: bool,
) -> ComparisonRow:
    own = series[key]
    entries = {}
    for column in columns:
        here = [one for one, panel in zip(own, panels, strict=True) if column_of(panel, over_all) == column]
        if None not in here:
            entries[column] = average([one for one in here if one is not None])
    whole = [one for one in own if one is not None]
    averages, profile, better, better_interval = None, None, np.nan, UNKNOWN
    if len(whole) == len(panels):
        against = [one for one in series[base] if one is not None] if base not in (None, key) else None
        averages = overall(whole, against)
        profile = make_profile(whole)
        published = series.get((key[0].removesuffix(ROBUST), key[1]))
        if key[0].endswith(ROBUST) and published is not None and None not in published:
            averaged = overall(whole, [one for one in published if one is not None])
            better, better_interval = averaged.improvement, averaged.improvement_interval
    return ComparisonRow(key, whole[0], entries, averages, profile, better, better_interval)


def average(series: Sequence[Series]) -> Number:
    """The mean of one method's environments, seed by seed where each has the same seeds."""
    finals = [one.final("score") for one in series]
    of_seeds = [
        {int(member.settings["seed"]): value for member, value in zip(one.members, final, strict=True)}
        for one, final in zip(series, finals, strict=True)
    ]
    seeds = sorted(of_seeds[0])  # members come in the order of their files
    if all(sorted(own) == seeds and len(final) == len(seeds) for own, final in zip(of_seeds, finals, strict=True)):
        return summary(np.mean([[own[seed] for seed in seeds] for own in of_seeds], axis=0))
    # The deviation of the same mean, where an environment's seeds have nothing to do with another's.
    std = float(np.hypot.reduce([statistics.sample_std(final) for final in finals])) / len(finals)
    return Number(float(statistics.mean_of_strata(finals)), std, min(map(len, finals)))


def make_profile(series: Sequence[Series]) -> Profile:
    strata = [one.final("score") for one in series]
    share = statistics.performance_profile(strata, LIMITS)
    if any(len(scores) < 2 for scores in strata):
        unknown = np.full(len(LIMITS), np.nan)
        return Profile(share, unknown, unknown)
    return Profile(share, *statistics.profile_interval(strata, LIMITS))
