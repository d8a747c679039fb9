"""The paper's tables beside ours: for every row and environment our number, the paper's, and how they differ.

Returns cannot be compared across versions of the simulator and other experts, so normalised scores are compared, each
by its own random and expert returns. A difference is marked where it exceeds two standard errors of both together.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from demosift.learning.about import About
from demosift.report import statistics
from demosift.report.document import asset
from demosift.report.groups import Methods, Panel, Series, group
from demosift.report.statistics import UNKNOWN, Interval, Scores
from demosift.results.folder import Results
from demosift.results.measured import MeasuredRun, is_number

STANDARD_ERRORS = 2.0
TABLE_GRIDS = ("noisy-expert", "full-replay")
SUCCESSORS, D4RL = "successors", "d4rl"  # grids that the paper has no table of


@dataclass(frozen=True)
class Key:
    """A row of the table: a method, with its gradient penalty where the paper has several, or another setting."""

    method: str
    gradient_penalty: float | None = None
    setting: str = ""
    about: About = field(default=About(""), compare=False)

    @property
    def title(self) -> str:
        name = self.about.name or self.method
        penalty = "" if self.gradient_penalty is None else f" (GP={self.gradient_penalty:g})"
        return name + penalty + (f" ({self.setting})" if self.setting else "")


REFERENCE_ROW = Key("bc")  # improvement is measured over it


class Number(NamedTuple):
    """Mean and standard deviation over seeds; the deviation of a single seed is NaN."""

    mean: float
    std: float
    seeds: int


@dataclass(frozen=True)
class Entry:
    """One environment of a row. Scores are fractions of the way from random to expert."""

    returns: Number | None
    score: Number | None
    paper_returns: Number | None
    paper_score: Number | None

    @property
    def difference(self) -> float:
        """Our score minus the paper's; NaN where one is missing."""
        if self.score is None or self.paper_score is None:
            return math.nan
        return self.score.mean - self.paper_score.mean

    @property
    def standard_error(self) -> float:
        if self.score is None or self.paper_score is None:
            return math.nan
        return math.hypot(*(each.std / math.sqrt(each.seeds) for each in (self.score, self.paper_score)))

    @property
    def differs(self) -> bool | None:
        """None where a number or its spread is missing."""
        return exceeds(self.difference, self.standard_error)


@dataclass(frozen=True)
class Overall:
    """A row over all environments of the table: what is reported, and how sure it is."""

    score: float
    interval: Interval
    iqm: float
    iqm_interval: Interval
    last: float
    best: float
    improvement: float  # the probability that a seed beats one of BC's, averaged over environments
    improvement_interval: Interval


@dataclass(frozen=True)
class PaperRow:
    key: Key
    entries: Mapping[str, Entry]
    overall: Overall | None  # None where an environment is missing
    paper_overall: float | None
    trained: str  # for how long and in which precision

    @property
    def difference(self) -> float:
        """Our score minus the paper's; NaN where one is missing."""
        if self.overall is None or self.paper_overall is None:
            return math.nan
        return self.overall.score - self.paper_overall

    @property
    def differs(self) -> bool | None:
        errors = [entry.standard_error for entry in self.entries.values()]
        return exceeds(self.difference, math.hypot(*errors) / len(errors))


@dataclass(frozen=True)
class PaperTable:
    recipe: str
    panels: Mapping[str, Panel]  # by environment
    rows: tuple[PaperRow, ...]
    references: Mapping[str, Mapping[str, float]]  # by environment, our random and expert return
    iterations: tuple[int, ...]
    trained: str  # as most rows were
    seeds: tuple[int, ...]
    averaged: tuple[int, ...]

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(self.panels)

    def row(self, method: str, gradient_penalty: float | None = None) -> PaperRow | None:
        return next((row for row in self.rows if row.key == Key(method, gradient_penalty)), None)


def exceeds(difference: float, standard_error: float) -> bool | None:
    if not math.isfinite(difference) or not math.isfinite(standard_error):
        return None
    return abs(difference) > STANDARD_ERRORS * standard_error


@functools.cache
def published() -> dict[str, Any]:
    """The paper's numbers, as printed."""
    return json.loads(asset("paper.json"))


def read_tables(results: Results, methods: Methods) -> dict[str, list[PaperTable]]:
    """The paper's tables that each grid of the folder fills, by the grid's name."""
    return {
        name: paper_tables(group(runs, methods)[0], references(runs))
        for name, runs in results.cells.items()
        if name not in (SUCCESSORS, D4RL)
    }


def chosen_tables(grids: Mapping[str, Sequence[PaperTable]]) -> list[PaperTable]:
    """A table for each task: that of the grid named after it, or else of the first that has one."""
    found: dict[str, PaperTable] = {}
    for name in sorted(grids, key=lambda name: name not in TABLE_GRIDS):
        for table in grids[name]:
            found.setdefault(table.recipe, table)
    return [found[recipe] for recipe in TABLE_GRIDS if recipe in found]


def references(runs: Sequence[MeasuredRun]) -> dict[str, Mapping[str, float]]:
    """Each task's random and expert return. Its cells agree on them: `read_folder` refuses those that do not."""
    found = {}
    for run in runs:
        reference = run.config.get("reference")
        if isinstance(reference, dict) and all(is_number(reference.get(who)) for who in ("random", "expert")):
            found[run.config["task"]] = reference
    return found


def paper_tables(panels: Sequence[Panel], references: Mapping[str, Mapping[str, float]]) -> list[PaperTable]:
    """A table for each of the paper's two tasks that some panel belongs to."""
    tables = []
    for recipe in published()["tables"]:
        own = {panel.task.partition("/")[0]: panel for panel in panels if panel.recipe == recipe and panel.task}
        scored = {env: own[env] for env in sorted(own) if own[env].scale == "score" and env in environments()}
        if scored:
            known = {env: references[f"{env}/{recipe}"] for env in scored if f"{env}/{recipe}" in references}
            tables.append(paper_table(recipe, scored, known))
    return tables


def environments() -> dict[str, str]:
    """The paper's name of each environment."""
    return published()["environments"]


def paper_table(recipe: str, panels: Mapping[str, Panel], references: Mapping[str, Mapping[str, float]]) -> PaperTable:
    ours = {env: {key_of(series): series for series in panel.series} for env, panel in panels.items()}
    keys = sorted({key for of_env in ours.values() for key in of_env}, key=place)
    printed = {Key(row["method"], row["gradient_penalty"]): row for row in published()["tables"][recipe]}
    rows = tuple(paper_row(key, ours, printed.get(key)) for key in keys)
    every = [series for of_env in ours.values() for series in of_env.values()]
    trainings = [row.trained for row in rows]
    return PaperTable(
        recipe=recipe,
        panels=panels,
        rows=rows,
        references=references,
        iterations=tuple(sorted({series.last_iteration for series in every})),
        trained=max(trainings, key=trainings.count),
        seeds=tuple(sorted({len(series.members) for series in every})),
        averaged=tuple(sorted({series.num_averaged() for series in every})),
    )


def key_of(series: Series) -> Key:
    penalty = series.identity.get("gradient_penalty")
    if series.about.penalised and penalty is not None and is_number(penalty):
        rest = [part for part in series.setting.split(", ") if part and not part.startswith("gradient penalty ")]
        return Key(series.method, float(penalty), ", ".join(rest), series.about)
    return Key(series.method, None, series.setting, series.about)


def place(key: Key) -> tuple[int, str, float, str]:
    """The paper's order, then other methods, and last what is no contender."""
    order = list(dict.fromkeys(row["method"] for rows in published()["tables"].values() for row in rows))
    rank = order.index(key.method) if key.method in order else len(order) + (not key.about.contender)
    return rank, key.method, key.gradient_penalty or 0.0, key.setting


def paper_row(key: Key, ours: Mapping[str, Mapping[Key, Series]], printed: Mapping[str, Any] | None) -> PaperRow:
    entries = {env: entry(of_env.get(key), env, printed) for env, of_env in ours.items()}
    own = [of_env[key] for of_env in ours.values() if key in of_env]
    paper_overall = None
    if printed is not None:
        # The paper's average is over its four environments; over fewer, ours is compared with the same ones.
        scores = [entry.paper_score.mean for entry in entries.values() if entry.paper_score is not None]
        whole = len(ours) == len(environments())
        paper_overall = printed["score"] / 100 if whole else float(np.mean(scores))
    averages = None
    if len(own) == len(ours):
        base = [of_env[REFERENCE_ROW] for of_env in ours.values() if REFERENCE_ROW in of_env]
        comparable = len(base) == len(ours) and key != REFERENCE_ROW
        averages = overall(own, base if comparable else None)
    return PaperRow(key, entries, averages, paper_overall, trained(own))


def trained(row: Sequence[Series]) -> str:
    """For how long and how: `500,000 iterations in bfloat16`."""
    lengths = sorted({series.last_iteration for series in row})
    precisions = sorted({str(series.identity["precision"]) for series in row})
    return f"{' and '.join(f'{length:,}' for length in lengths)} iterations in {' and '.join(precisions)}"


def entry(series: Series | None, env: str, printed: Mapping[str, Any] | None) -> Entry:
    returns = score = paper_returns = paper_score = None
    if series is not None:
        returns, score = (summary(series.final(scale)) for scale in ("return", "score"))
    if printed is not None:
        paper = published()
        mean, std = printed["returns"][env]
        random, span = paper["random"][env], paper["expert"][env] - paper["random"][env]
        paper_returns = Number(mean, std, paper["seeds"])
        paper_score = Number((mean - random) / span, std / span, paper["seeds"])
    return Entry(returns, score, paper_returns, paper_score)


def summary(values: Scores) -> Number:
    return Number(float(values.mean()), float(statistics.sample_std(values)), len(values))


def overall(series: Sequence[Series], base: Sequence[Series] | None) -> Overall:
    """One method on every environment, and the improvement over `base`. Every environment counts alike."""
    strata = [each.final("score") for each in series]
    measured = [each.measured("score") for each in series]
    several = all(len(scores) > 1 for scores in strata)
    improvement, improvement_interval = math.nan, UNKNOWN
    if base is not None:
        others = [each.final("score") for each in base]
        improvement = statistics.probability_of_improvement(strata, others)
        if several and all(len(scores) > 1 for scores in others):
            improvement_interval = statistics.improvement_interval(strata, others)
    interval, iqm_interval = (
        statistics.bootstrap_interval(strata, statistic) if several else UNKNOWN
        for statistic in (statistics.mean_of_strata, statistics.interquartile_mean)
    )
    return Overall(
        score=float(statistics.mean_of_strata(strata)),
        interval=interval,
        iqm=float(statistics.interquartile_mean(strata)),
        iqm_interval=iqm_interval,
        last=float(np.mean([scores[:, -1].mean() for scores in measured])),
        best=float(np.mean([scores.max(axis=1).mean() for scores in measured])),
        improvement=improvement,
        improvement_interval=improvement_interval,
    )
