"""The result table: a row per environment, method and setting, for the terminal, Markdown, JSON and the page.

The result is the mean of each seed's last evaluations, then mean and standard deviation over seeds. The last evaluation
alone and the best one stand beside it, told apart: the best of many noisy evaluations is no result.
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
from demosift.report.groups import LAST_EVALUATIONS, Panel, Scale, Series, group, num_averaged
from demosift.results.folder import read_folder

BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class TableRow:
    """Scores are fractions: 0 is a random policy, 1 the expert; or, by `scale`, returns where no reference is known."""

    environment: str
    method: str
    setting: str
    scale: Scale
    seeds: int
    iterations: int
    evaluations: int  # in all
    averaged: int  # of them, the last ones, make the result
    episodes: int  # behind the result, all seeds together
    mean: float
    std: float  # NaN for one seed
    iqm: float
    iqm_low: float  # the 95% interval; NaN for one seed
    iqm_high: float
    return_mean: float
    return_std: float
    last: float  # of the last evaluation alone, mean over seeds
    best: float  # of each seed's best evaluation, mean over seeds: not a result

    @property
    def title(self) -> str:
        return f"{self.method} ({self.setting})" if self.setting else self.method


def result_table(folder: str | os.PathLike[str], last: int = LAST_EVALUATIONS) -> list[TableRow]:
    """The table of every run and cell below the folder."""
    panels, _ = group(read_folder(folder))
    return tabulate(panels, last)


def tabulate(panels: Sequence[Panel], last: int = LAST_EVALUATIONS) -> list[TableRow]:
    return [summarise(panel, series, last) for panel in panels for series in panel.series]


def summarise(panel: Panel, series: Series, last: int) -> TableRow:
    scale = panel.scale
    final, returns, all_measured = series.final(scale, last), series.final("return", last), series.measured(scale)
    averaged = num_averaged(all_measured.shape[1], last)
    low, high = math.nan, math.nan
    if len(final) > 1:
        # A generator of its own for every row: adding a method does not move the digits of another.
        generator = np.random.default_rng(BOOTSTRAP_SEED)
        low, high = statistics.bootstrap_interval([final], statistics.interquartile_mean, generator)
    return TableRow(
        environment=panel.name,
        method=series.name,
        setting=series.setting,
        scale=scale,
        seeds=len(final),
        iterations=int(series.members[0].iteration[-1]),
        evaluations=all_measured.shape[1],
        averaged=averaged,
        episodes=int(sum(member.episodes[-averaged:].sum() for member in series.members)),
        mean=float(final.mean()),
        std=statistics.sample_std(final),
        iqm=float(statistics.interquartile_mean(final)),
        iqm_low=low,
        iqm_high=high,
        return_mean=float(returns.mean()),
        return_std=statistics.sample_std(returns),
        last=float(all_measured[:, -1].mean()),
        best=float(all_measured.max(axis=1).mean()),
    )


COLUMNS = ("Method", "Setting", "Seeds", "Score", "IQM (95% interval)", "Return", "Last", "Best")

BEST_NOTE = "Best is each seed's luckiest evaluation, for comparison only: it is not a result."


def cells(row: TableRow) -> tuple[str, ...]:
    """One row as text, in the order of `COLUMNS`."""
    return (
        row.method,
        row.setting or numbers.MISSING,
        str(row.seeds),
        numbers.with_spread(row.mean, row.std, row.scale),
        iqm_with_interval(row),
        numbers.with_spread(row.return_mean, row.return_std, "return"),
        numbers.measured(row.last, row.scale),
        numbers.measured(row.best, row.scale),
    )


def iqm_with_interval(row: TableRow) -> str:
    text = numbers.measured(row.iqm, row.scale)
    return f"{text} ({numbers.interval(row.iqm_low, row.iqm_high, row.scale)})" if row.seeds > 1 else text


def kept_columns(rows: Sequence[TableRow]) -> list[int]:
    """All, but the setting where no method has more than one."""
    return [i for i, name in enumerate(COLUMNS) if name != "Setting" or any(row.setting for row in rows)]


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
    """A table per environment for `rich.print`. Names are plain text there, never markup."""
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
        kept = kept_columns(own)
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
