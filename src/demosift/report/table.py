"""The result as a table, for the terminal, Markdown, JSON and the page, and in words that are computed from it.

A row is an environment, method and setting. Its result is the mean of each seed's last evaluations, then mean and
standard deviation over seeds. The last evaluation alone and the best one stand in columns of their own: the best of
many noisy evaluations is not a result.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from demosift.report import numbers, statistics
from demosift.report.groups import LAST_EVALUATIONS, Methods, Panel, Scale, Series, group
from demosift.report.statistics import Scores
from demosift.results.folder import read_folder

FEW_SEEDS = 5  # below this, bootstrap intervals are markedly too narrow


@dataclass(frozen=True)
class TableRow:
    """Scores are fractions: 0 is a random policy, 1 the expert. Where no reference is known, `scale` is "return"."""

    environment: str
    method: str
    setting: str
    scale: Scale
    seeds: int
    iterations: int
    evaluations: int  # of each seed
    averaged: int  # how many of them, the last ones, make the result
    episodes: int  # behind the result, over all seeds
    mean: float
    std: float  # NaN for one seed
    iqm: float
    iqm_low: float  # the 95% interval; NaN for one seed
    iqm_high: float
    return_mean: float
    return_std: float
    last: float  # the last evaluation alone, mean over seeds
    best: float  # each seed's best evaluation, mean over seeds: not a result

    @property
    def title(self) -> str:
        return f"{self.method} ({self.setting})" if self.setting else self.method


def result_table(folder: str | os.PathLike[str], methods: Methods, last: int = LAST_EVALUATIONS) -> list[TableRow]:
    """The table of every run and cell below the folder."""
    panels, _ = group(read_folder(folder).every_run, methods)
    return tabulate(panels, last)


def tabulate(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> list[TableRow]:
    return [summarise(panel, series, last) for panel in panels for series in panel.series]


def summarise(panel: Panel, series: Series, last: int) -> TableRow:
    scale = panel.scale
    final, returns, all_measured = series.final(scale, last), series.final("return", last), series.measured(scale)
    averaged = series.num_averaged(last)
    low, high = statistics.UNKNOWN
    if len(final) > 1:
        low, high = statistics.bootstrap_interval([final], statistics.interquartile_mean)
    return TableRow(
        environment=panel.name,
        method=series.name,
        setting=series.setting,
        scale=scale,
        seeds=len(final),
        iterations=series.last_iteration,
        evaluations=all_measured.shape[1],
        averaged=averaged,
        episodes=int(sum(member.episodes[-averaged:].sum() for member in series.members)),
        mean=float(final.mean()),
        std=float(statistics.sample_std(final)),
        iqm=float(statistics.interquartile_mean([final])),
        iqm_low=low,
        iqm_high=high,
        return_mean=float(returns.mean()),
        return_std=float(statistics.sample_std(returns)),
        last=float(all_measured[:, -1].mean()),
        best=float(all_measured.max(axis=1).mean()),
    )


COLUMNS = ("Method", "Setting", "Seeds", "Score", "IQM (95% interval)", "Return", "Last", "Best")

BEST_NOTE = "Best is each seed's luckiest evaluation, for comparison only: it is not a result."


def cells(row: TableRow) -> tuple[str, ...]:
    """One row as text, in the order of `COLUMNS`."""
    interval = f" ({numbers.interval(row.iqm_low, row.iqm_high, row.scale)})" if row.seeds > 1 else ""
    return (
        row.method,
        row.setting or numbers.MISSING,
        str(row.seeds),
        numbers.with_spread(row.mean, row.std, row.scale),
        numbers.measured(row.iqm, row.scale) + interval,
        numbers.with_spread(row.return_mean, row.return_std, "return"),
        numbers.measured(row.last, row.scale),
        numbers.measured(row.best, row.scale),
    )


def by_environment(rows: Sequence[TableRow]) -> dict[str, list[TableRow]]:
    return {
        name: [row for row in rows if row.environment == name] for name in dict.fromkeys(r.environment for r in rows)
    }


def explain(rows: Sequence[TableRow]) -> str:
    """What the numbers of these rows are, in a sentence or two."""
    averaged = span([row.averaged for row in rows])
    evaluations = span([row.evaluations for row in rows])
    per_seed = span([round(row.episodes / row.seeds) for row in rows])
    unit = (
        "Scores are in percent of the way from a random policy (0) to the expert (100)"
        if all(row.scale == "score" for row in rows)
        else "Scores are returns, because no reference returns are known for the environment"
    )
    return (
        f"{unit}: the mean of the last {averaged} of {evaluations} evaluations ({per_seed} episodes a seed), "
        "then mean ± standard deviation over seeds."
    )


def span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def rich_tables(rows: Sequence[TableRow]) -> list[Table]:
    """A table per environment for `rich.print`. Names are plain text, never markup."""
    tables = []
    for environment, own in by_environment(rows).items():
        table = Table(
            title=Text(environment),
            caption=Text(f"{explain(own)} {BEST_NOTE}"),
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
        )
        best = max(row.mean for row in own)
        table.add_column("Method", overflow="fold", min_width=14)
        for name in COLUMNS[2:]:
            table.add_column(name, justify="right", no_wrap=True)
        for row in own:
            texts = (row.title, *cells(row)[2:])  # the setting beside the method: a terminal is narrow
            table.add_row(*map(Text, texts), style="bold" if row.mean == best else None)
        tables.append(table)
    return tables


def markdown_table(rows: Sequence[TableRow]) -> str:
    parts = []
    for environment, own in by_environment(rows).items():
        kept = [i for i, name in enumerate(COLUMNS) if name != "Setting" or any(row.setting for row in own)]
        lines = [[COLUMNS[i] for i in kept], ["---" if i < 2 else "---:" for i in kept]]
        lines += [[escape_markdown(cells(row)[i]) for i in kept] for row in own]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"**{escape_markdown(environment)}**\n\n{body}\n\n{explain(own)} {BEST_NOTE}\n")
    return "\n".join(parts)


def escape_markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|!" else c for c in text)


def json_table(rows: Sequence[TableRow]) -> list[dict[str, Any]]:
    """Plain values at full precision; null where there is none."""
    return [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(row).items()}
        for row in rows
    ]


@dataclass(frozen=True)
class Contender:
    title: str
    strata: tuple[Scores, ...]  # the reported number of each seed, an array per environment

    @property
    def mean(self) -> float:
        return float(statistics.mean_of_strata(self.strata))

    @property
    def seeds(self) -> int:
        return min(len(scores) for scores in self.strata)

    @property
    def std(self) -> float:
        """The mean over environments of the standard deviation over seeds."""
        return float(np.mean([statistics.sample_std(scores) for scores in self.strata]))


def contenders(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> list[Contender]:
    """The methods that every panel has, best first; none where environments have returns alone.

    The oracle knows what no method may know, so it is no contender.
    """
    scale = panels[0].scale
    if len(panels) > 1 and any(panel.scale == "return" for panel in panels):
        return []
    finals = [
        {series.title: series.final(scale, last) for series in panel.series if series.about.contender}
        for panel in panels
    ]
    shared = [title for title in finals[0] if all(title in final for final in finals)]
    found = [Contender(title, tuple(final[title] for final in finals)) for title in shared]
    return sorted(found, key=lambda contender: -contender.mean)


def headline(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> tuple[str, str]:
    """The result in one sentence, and how sure it is in another.

    Where there are several kinds of tasks, the best methods of each kind, then the sentences about each.
    """
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
    low, high = statistics.difference_interval(first.strata, second.strata)
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
