"""The page's section of a paper's table: ours, the paper's and the difference, and a bar for each averaged score."""

from collections.abc import Mapping
from html import escape

from demosift.report import numbers
from demosift.report.chart import percent
from demosift.report.paper import PaperRow, PaperTable, published
from demosift.report.paper_forms import (
    NAMES,
    STATISTICS,
    STATISTICS_NOTE,
    environment_name,
    explained,
    mark,
    points,
    returns_text,
    score_text,
    statistics_lines,
)

FULL_SCALE = 1.1  # the bar's right end, so that a score above the expert's still shows


def paper_section(table: PaperTable, colours: Mapping[str, int]) -> str:
    heads = ["Method", *map(environment_name, table.envs), "Score", "Tick: the paper's"]
    head = "".join(f'<th scope="col"{"" if i == 0 else " class=n"}>{escape(text)}</th>' for i, text in enumerate(heads))
    body = "".join(row_of(row, table, colours) for row in table.rows)
    return (
        f"<section><h2>{escape(NAMES[table.recipe])}: ours and the paper's</h2>"
        f'<div class="scroll"><table class="results paper"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<p class="note">{escape(explained(table))}</p>'
        f'<p class="note">The paper\'s numbers: {escape(published()["citation"])}.</p>'
        f"<h3>How sure</h3>{statistics_table(table)}"
        f'<p class="note">{escape(STATISTICS_NOTE.replace("*", ""))}</p></section>'
    )


def row_of(row: PaperRow, table: PaperTable, colours: Mapping[str, int]) -> str:
    style = f"c{colours[row.key.method]} d0"
    title = f'<th scope="row"><div><i class="dot {style}"></i><span>{escape(row.key.title)}</span></div></th>'
    cells = []
    for env in table.envs:
        entry = row.entries[env]
        theirs = None if entry.paper_returns is None else returns_text(entry.paper_returns)
        difference = f"{points(entry.difference)} {mark(entry.difference, entry.differs)}"
        cells.append(stacked(environment_name(env), returns_text(entry.returns), theirs, difference))
    ours = None if row.overall is None else row.overall.score
    theirs = None if row.paper_overall is None else score_text(row.paper_overall)
    gap = numbers.MISSING
    if row.overall is not None:
        gap = f"{points(row.overall.difference)} {mark(row.overall.difference, row.differs)}"
    cells.append(stacked("Score", score_text(ours), theirs, gap, "n score"))
    drawn = bar(ours, row.paper_overall, style)
    return f'<tr>{title}{"".join(cells)}<td class="strip" data-label="Score">{drawn}</td></tr>'


def stacked(heading: str, ours: str, theirs: str | None, difference: str, kind: str = "n") -> str:
    """Our number; below it, small, the paper's and the difference."""
    small = "" if theirs is None else f"<small>paper {escape(theirs)}<br>{escape(difference)}</small>"
    return f'<td class="{kind}" data-label="{escape(heading)}"><span>{escape(ours)}{small}</span></td>'


def bar(ours: float | None, theirs: float | None, style: str) -> str:
    def place(value: float) -> str:
        return percent(min(max(value / FULL_SCALE, 0.0), 1.0))

    filled = "" if ours is None else f'<em style="width:{place(ours)}"></em>'
    tick = "" if theirs is None else f'<b style="left:{place(theirs)}"></b>'
    return f'<span class="track bar {style}">{filled}{tick}</span>'


def statistics_table(table: PaperTable) -> str:
    head = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in STATISTICS)
    body = "".join(
        f'<tr><th scope="row">{escape(title)}</th>'
        + "".join(
            f'<td class="n" data-label="{escape(name)}">{escape(text)}</td>'
            for name, text in zip(STATISTICS, cells, strict=True)
        )
        + "</tr>"
        for title, cells in statistics_lines(table)
    )
    return (
        f'<div class="scroll"><table class="results"><thead><tr><th scope="col">Method</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
