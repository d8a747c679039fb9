"""The paper's tables beside ours: for every row and environment our number, the paper's, and how they differ.

Returns cannot be compared across versions of the simulator and other experts, so the difference is one of normalised
scores, each by its own random and expert returns. It is marked where it exceeds two standard errors of both together.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from demosift.report import statistics
from demosift.report.groups import METHODS, Panel, Series
from demosift.report.statistics import Interval, Scores
from demosift.results.reading import is_number

BOOTSTRAP_SEED = 0
STANDARD_ERRORS = 2.0
ORDER = ("bc", "demodice", "dwbc", "nbcu", "wbcu")  # the paper's
REFERENCE_ROW = ("bc", None)  # improvement is told over it
PENALISED = ("demodice", "wbcu")


class Key(NamedTuple):
    """A row of the table: a method, with its gradient penalty where the paper has several, or another setting."""

    method: str
    gradient_penalty: float | None = None
    setting: str = ""

    @property
    def title(self) -> str:
        name = METHODS[self.method].name if self.method in METHODS else self.method
        penalty = "" if self.gradient_penalty is None else f" (GP={self.gradient_penalty:g})"
        return name + penalty + (f" ({self.setting})" if self.setting else "")


class Number(NamedTuple):
    """Mean and standard deviation over seeds; NaN for the spread of one."""

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
        """Of the scores, ours minus the paper's; NaN where one is missing."""
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
        """None where there is no spread, or nothing, to judge by."""
        return exceeds(self.difference, self.standard_error)


@dataclass(frozen=True)
class Overall:
    """A row over all environments of the table: what is reported, how sure it is, and the paper's figure."""

    score: float
    interval: Interval
    iqm: float
    iqm_interval: Interval
    last: float
    best: float
    improvement: float  # the probability that a seed beats one of BC's, averaged over environments
    improvement_interval: Interval
    paper: float | None

    @property
    def difference(self) -> float:
        return math.nan if self.paper is None else self.score - self.paper


@dataclass(frozen=True)
class PaperRow:
    key: Key
    entries: Mapping[str, Entry]
    overall: Overall | None  # None where an environment is missing
    paper_overall: float | None
    trained: str  # for how long and in which precision

    @property
    def standard_error(self) -> float:
        return math.hypot(*(entry.standard_error for entry in self.entries.values())) / len(self.entries)

    @property
    def differs(self) -> bool | None:
        return None if self.overall is None else exceeds(self.overall.difference, self.standard_error)


@dataclass(frozen=True)
class PaperTable:
    recipe: str
    envs: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    references: Mapping[str, Mapping[str, float]]  # env -> random and expert return, ours
    iterations: tuple[int, ...]
    trained: str  # as most rows were
    seeds: tuple[int, ...]
    averaged: tuple[int, ...]

    def row(self, method: str, gradient_penalty: float | None = None) -> PaperRow | None:
        return next((row for row in self.rows if row.key == Key(method, gradient_penalty)), None)


def exceeds(difference: float, standard_error: float) -> bool | None:
    if not math.isfinite(difference) or not math.isfinite(standard_error):
        return None
    return abs(difference) > STANDARD_ERRORS * standard_error


def published() -> dict[str, Any]:
    """The paper's numbers, as printed."""
    text = resources.files("demosift.report").joinpath("paper.json").read_text(encoding="utf-8")
    return json.loads(text)


def paper_tables(panels: Sequence[Panel], references: Mapping[str, Mapping[str, float]]) -> list[PaperTable]:
    """A table for each of the paper's two tasks that some panel belongs to."""
    paper = published()
    tables = []
    for recipe in paper["tables"]:
        own = {panel.task.partition("/")[0]: panel for panel in panels if panel.recipe == recipe and panel.task}
        own = {env: panel for env, panel in own.items() if panel.scale == "score" and env in paper["environments"]}
        if own:
            known = {env: references[f"{env}/{recipe}"] for env in own if f"{env}/{recipe}" in references}
            tables.append(paper_table(recipe, own, known, paper))
    return tables


def paper_table(
    recipe: str, panels: Mapping[str, Panel], references: Mapping[str, Mapping[str, float]], paper: Mapping[str, Any]
) -> PaperTable:
    envs = tuple(sorted(panels))
    ours = {env: {key_of(series): series for series in panels[env].series} for env in envs}
    keys = sorted({key for of_env in ours.values() for key in of_env}, key=place)
    printed = {Key(row["method"], row["gradient_penalty"]): row for row in paper["tables"][recipe]}
    rows = tuple(paper_row(key, envs, ours, printed.get(key), paper) for key in keys)
    every = [series for of_env in ours.values() for series in of_env.values()]
    return PaperTable(
        recipe=recipe,
        envs=envs,
        rows=rows,
        references=references,
        iterations=tuple(sorted({last_iteration(series) for series in every})),
        trained=max((row.trained for row in rows), key=[row.trained for row in rows].count),
        seeds=tuple(sorted({len(series.members) for series in every})),
        averaged=tuple(sorted({series.num_averaged() for series in every})),
    )


def key_of(series: Series) -> Key:
    penalty = series.identity.get("gradient_penalty")
    if series.method in PENALISED and penalty is not None and is_number(penalty):
        rest = [part for part in series.setting.split(", ") if part and not part.startswith("gradient penalty ")]
        return Key(series.method, float(penalty), ", ".join(rest))
    return Key(series.method, None, series.setting)


def place(key: Key) -> tuple[int, str, float, str]:
    """The paper's order, then other methods, the oracle last."""
    known = {method: number for number, method in enumerate(ORDER)} | {"oracle": len(ORDER) + 1}
    return known.get(key.method, len(ORDER)), key.method, key.gradient_penalty or 0.0, key.setting


def paper_row(
    key: Key,
    envs: Sequence[str],
    ours: Mapping[str, Mapping[Key, Series]],
    printed: Mapping[str, Any] | None,
    paper: Mapping[str, Any],
) -> PaperRow:
    entries = {env: entry(ours[env].get(key), env, printed, paper) for env in envs}
    complete = all(key in ours[env] for env in envs)
    # The paper's average is over its four environments; over fewer, ours is compared with the same ones.
    scores = [entry.paper_score.mean for entry in entries.values() if entry.paper_score is not None]
    paper_overall = None
    if printed is not None:
        whole = len(envs) == len(paper["environments"])
        paper_overall = printed["score"] / 100 if whole else float(np.mean(scores))
    averages = overall(key, envs, ours, paper_overall) if complete else None
    return PaperRow(
        key, entries, averages, paper_overall, trained([ours[env][key] for env in envs if key in ours[env]])
    )


def last_iteration(series: Series) -> int:
    return int(series.members[0].iteration[-1])


def trained(row: Sequence[Series]) -> str:
    """For how long and how: `500,000 iterations in bfloat16`."""
    lengths = sorted({last_iteration(series) for series in row})
    precisions = sorted({str(series.identity["precision"]) for series in row})
    return f"{' and '.join(f'{length:,}' for length in lengths)} iterations in {' and '.join(precisions)}"


def entry(series: Series | None, env: str, printed: Mapping[str, Any] | None, paper: Mapping[str, Any]) -> Entry:
    returns = score = paper_returns = paper_score = None
    if series is not None:
        returns, score = (summary(series.final(scale)) for scale in ("return", "score"))
    if printed is not None:
        mean, std = printed["returns"][env]
        span = paper["expert"][env] - paper["random"][env]
        paper_returns = Number(mean, std, paper["seeds"])
        paper_score = Number((mean - paper["random"][env]) / span, std / span, paper["seeds"])
    return Entry(returns, score, paper_returns, paper_score)


def summary(values: Scores) -> Number:
    return Number(float(values.mean()), statistics.sample_std(values), len(values))


def overall(
    key: Key, envs: Sequence[str], ours: Mapping[str, Mapping[Key, Series]], paper_overall: float | None
) -> Overall:
    """Every environment counts alike, however many seeds it has; intervals resample seeds within environments."""
    series = [ours[env][key] for env in envs]
    strata = [each.final("score") for each in series]
    measured = [each.measured("score") for each in series]
    several = all(len(scores) > 1 for scores in strata)
    base = [ours[env].get(Key(*REFERENCE_ROW)) for env in envs]
    improvement, improvement_interval = math.nan, (math.nan, math.nan)
    if all(each is not None for each in base) and key != Key(*REFERENCE_ROW):
        others = [each.final("score") for each in base if each is not None]
        improvement = statistics.probability_of_improvement(strata, others)
        if several and all(len(scores) > 1 for scores in others):
            generator = np.random.default_rng(BOOTSTRAP_SEED)
            improvement_interval = statistics.improvement_interval(strata, others, generator)
    interval, iqm_interval = (math.nan, math.nan), (math.nan, math.nan)
    if several:
        # A generator of its own for every number: adding a method or a column does not move the digits of another.
        generator = np.random.default_rng(BOOTSTRAP_SEED)
        interval = statistics.mean_of_strata_interval(strata, generator)
        generator = np.random.default_rng(BOOTSTRAP_SEED)
        iqm_interval = statistics.bootstrap_interval(strata, statistics.interquartile_mean, generator)
    return Overall(
        score=float(np.mean([scores.mean() for scores in strata])),
        interval=interval,
        iqm=float(statistics.interquartile_mean(np.concatenate(strata))),
        iqm_interval=iqm_interval,
        last=float(np.mean([scores[:, -1].mean() for scores in measured])),
        best=float(np.mean([scores.max(axis=1).mean() for scores in measured])),
        improvement=improvement,
        improvement_interval=improvement_interval,
        paper=paper_overall,
    )
