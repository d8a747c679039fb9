"""The paper's tables as Markdown, LaTeX and JSON, as files with their figures, and as a section of the page.

tables/RECIPE.md .tex .json          ours, the paper's, the difference; and how sure
figures/summary                      every method's averaged score, task by task
figures/gradient-penalty-METHOD      WBCU and DemoDICE over the penalty
figures/curves-RECIPE[-METHOD]       training curves with 95% bands
figures/coverage  sac-curves/sac-curves
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from demosift.files import atomic_write, write_json
from demosift.report import numbers
from demosift.report.chart import percent
from demosift.report.document import cell, scrolled_table
from demosift.report.groups import Methods, colours
from demosift.report.paper import (
    STANDARD_ERRORS,
    Entry,
    Number,
    PaperRow,
    PaperTable,
    chosen_tables,
    environments,
    published,
    read_tables,
)
from demosift.report.table import escape_markdown, span
from demosift.results.cell import COVERAGE, SAC_CURVES, read_coverage
from demosift.results.folder import Results, files_in, read_each

UP, DOWN, SAME = "\N{BLACK UP-POINTING TRIANGLE}", "\N{BLACK DOWN-POINTING TRIANGLE}", "\N{ALMOST EQUAL TO}"
NAMES = {"noisy-expert": "Noisy expert", "full-replay": "Full replay"}
FULL_SCALE = 1.1  # the bar's right end, so that a score above the expert's still shows

Cells = list[str]


def environment_name(env: str) -> str:
    return environments()[env].removesuffix("-v2")


def returns_text(value: Number | None) -> str:
    if value is None:
        return numbers.MISSING
    spread = f" ± {numbers.number(value.std, 0)}" if math.isfinite(value.std) else ""
    return numbers.number(value.mean, 0) + spread


def score_text(score: float | None) -> str:
    return numbers.MISSING if score is None else numbers.number(100 * score, 0) + "%"


def points(difference: float) -> str:
    """A difference of scores in percentage points, with its sign."""
    if not math.isfinite(difference):
        return numbers.MISSING
    text = numbers.number(100 * difference, 0)
    return text if text.startswith(numbers.MINUS) or text == "0" else f"+{text}"


def marked(compared: Entry | PaperRow) -> str:
    """The difference from the paper and, where it can be judged, whether it is more than chance."""
    text = points(compared.difference)
    if compared.differs is None:
        return text
    return f"{text} {(UP if compared.difference > 0 else DOWN) if compared.differs else SAME}"


def lines_of(table: PaperTable) -> list[tuple[str, str, Cells]]:
    """(row, whose, cells): three lines for a row that the paper has, else one. References come first."""
    paper = published()
    lines = []
    for who in ("random", "expert"):
        known = {env: numbers.number(values[who], 0) for env, values in table.references.items()}
        ours = [known.get(env, numbers.MISSING) for env in table.envs]
        theirs = [numbers.number(paper[who][env], 0) for env in table.envs]
        percent = "0%" if who == "random" else "100%"
        lines += [(who.capitalize(), "ours", [*ours, percent]), ("", "paper", [*theirs, percent])]
    for row in table.rows:
        entries = [row.entries[env] for env in table.envs]
        ours = None if row.overall is None else row.overall.score
        lines.append((row.key.title, "ours", [*(returns_text(each.returns) for each in entries), score_text(ours)]))
        if row.paper_overall is not None:
            theirs = [returns_text(each.paper_returns) for each in entries]
            lines.append(("", "paper", [*theirs, score_text(row.paper_overall)]))
            lines.append(("", "difference", [*map(marked, entries), marked(row)]))
    return lines


def explained(table: PaperTable) -> str:
    """What the numbers are, and what the marks mean."""
    others = [f"{row.key.title}: {row.trained}" for row in table.rows if row.trained != table.trained]
    after = f"{table.trained} ({'; '.join(others)})" if others else table.trained
    return (
        f"Mean return ± standard deviation over {span(table.seeds)} seeds of each seed's last {span(table.averaged)} "
        f"evaluations, after {after}. The last column is the normalised score, 0% random "
        f"and 100% the expert, averaged over {'the environment' if len(table.envs) == 1 else 'the environments'}. "
        "Differences are ours minus the paper's in points of normalised score, each by its own random and expert "
        f"returns: {UP} and {DOWN} exceed {STANDARD_ERRORS:g} standard errors of both together, {SAME} does not."
    )


def markdown(table: PaperTable) -> str:
    heads = ["", "", *map(environment_name, table.envs), "Score"]
    body = [heads, ["---", "---", *["---:"] * (len(heads) - 2)]]
    for title, whose, cells in lines_of(table):
        body.append([f"**{escape_markdown(title)}**" if title else "", whose, *cells])
    sure = [["", *STATISTICS], ["---", *["---:"] * len(STATISTICS)]]
    sure += [[escape_markdown(title), *cells] for title, cells in statistics_lines(table)]
    return (
        f"# {NAMES[table.recipe]}\n\n{markdown_lines(body)}\n\n{explained(table)}\n\n{cited()}\n\n"
        f"## How sure\n\n{markdown_lines(sure)}\n\n{STATISTICS_NOTE}\n"
    )


def markdown_lines(lines: list[Cells]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cited() -> str:
    return f"The paper's numbers: {published()['citation']}."


STATISTICS = ("Score", "95% interval", "IQM", "95% interval", "Better than BC", "95% interval", "Last", "Best")


def statistics_lines(table: PaperTable) -> list[tuple[str, Cells]]:
    lines = []
    for row in table.rows:
        cells = [numbers.MISSING] * len(STATISTICS)
        if (o := row.overall) is not None:
            low, high = o.improvement_interval
            cells = [
                numbers.measured(o.score, "score"),
                numbers.interval(*o.interval, "score"),
                numbers.measured(o.iqm, "score"),
                numbers.interval(*o.iqm_interval, "score"),
                numbers.number(o.improvement, 2),
                f"{low:.2f} to {high:.2f}" if math.isfinite(low) else numbers.MISSING,
                numbers.measured(o.last, "score"),
                numbers.measured(o.best, "score"),
            ]
        lines.append((row.key.title, cells))
    return lines


STATISTICS_NOTE = (
    "Normalised scores in percent over all environments. IQM is the interquartile mean of all seeds; intervals are "
    "stratified bootstraps over seeds. *Better than BC* is the probability that a seed beats one of BC's, averaged "
    "over environments. *Last* is the final evaluation alone; *best* each seed's luckiest, which is not a result."
)


TO_LATEX = {
    numbers.MINUS: "$-$",
    numbers.MISSING: "--",
    "±": r"$\pm$",
    "%": r"\%",
    UP: r"$\uparrow$",
    DOWN: r"$\downarrow$",
    SAME: r"$\approx$",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def escape_latex(text: str) -> str:
    return "".join(TO_LATEX.get(character, character) for character in text)


def latex(table: PaperTable) -> str:
    """A table for `booktabs`, in the paper's form, ours above the paper's."""
    columns = "ll|" + "r" * len(table.envs) + "|r"
    rows = []
    for title, whose, cells in lines_of(table):
        rule = "\\midrule\n" if title and rows else ""
        rows.append(rule + " & ".join(map(escape_latex, [title, whose, *cells])) + r" \\")
    heads = " & ".join(["", "", *map(environment_name, table.envs), "Normalised score"])
    caption = escape_latex(f"{NAMES[table.recipe]} task. {explained(table)}")
    body = "\n".join(rows)
    return (
        f"% {escape_latex(cited())}\n\\begin{{table}}[htbp]\n\\centering\n\\caption{{{caption}}}\n"
        f"\\label{{tab:{table.recipe}}}\n\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{heads} \\\\ \\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def as_json(table: PaperTable) -> dict[str, Any]:
    """Plain values at full precision; null where there is none."""

    def of_row(row: PaperRow) -> dict[str, Any]:
        o = row.overall
        return {
            "method": row.key.method,
            "gradient_penalty": row.key.gradient_penalty,
            "setting": row.key.setting,
            "title": row.key.title,
            "environments": {
                env: {
                    **{field.name: as_number(getattr(each, field.name)) for field in dataclasses.fields(each)},
                    "difference": finite(each.difference),
                    "differs": each.differs,
                }
                for env, each in row.entries.items()
            },
            "score": o and o.score,
            "interval": o and list(map(finite, o.interval)),
            "iqm": o and o.iqm,
            "iqm_interval": o and list(map(finite, o.iqm_interval)),
            "better_than_bc": o and finite(o.improvement),
            "better_than_bc_interval": o and list(map(finite, o.improvement_interval)),
            "last": o and o.last,
            "best": o and o.best,
            "paper_score": row.paper_overall,
            "differs": row.differs,
        }

    return {
        "recipe": table.recipe,
        "environments": list(table.envs),
        "iterations": list(table.iterations),
        "seeds": list(table.seeds),
        "evaluations_averaged": list(table.averaged),
        "references": {env: dict(values) for env, values in table.references.items()},
        "citation": published()["citation"],
        "rows": list(map(of_row, table.rows)),
    }


def as_number(value: Number | None) -> dict[str, Any] | None:
    return value and {"mean": value.mean, "std": finite(value.std), "seeds": value.seeds}


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def paper_section(table: PaperTable, colours: Mapping[str, int]) -> str:
    heads = ["Method", *map(environment_name, table.envs), "Score", "Tick: the paper's"]
    head = "".join(f'<th scope="col"{"" if i == 0 else " class=n"}>{escape(text)}</th>' for i, text in enumerate(heads))
    body = (row_of(row, table, colours) for row in table.rows)
    return (
        f"<section><h2>{escape(NAMES[table.recipe])}: ours and the paper's</h2>"
        f"{scrolled_table('results paper', head, body)}"
        f'<p class="note">{escape(explained(table))}</p>'
        f'<p class="note">{escape(cited(), quote=False)}</p>'
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
        cells.append(stacked(environment_name(env), returns_text(entry.returns), theirs, marked(entry)))
    ours = None if row.overall is None else row.overall.score
    theirs = None if row.paper_overall is None else score_text(row.paper_overall)
    cells.append(stacked("Score", score_text(ours), theirs, marked(row), "n score"))
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
    head = '<th scope="col">Method</th>' + "".join(f'<th scope="col" class="n">{escape(n)}</th>' for n in STATISTICS)
    body = []
    for title, texts in statistics_lines(table):
        cells = "".join(cell(name, text) for name, text in zip(STATISTICS, texts, strict=True))
        body.append(f'<tr><th scope="row">{escape(title)}</th>{cells}</tr>')
    return scrolled_table("results", head, body)


def write_grid_files(folder: Path, results: Results, methods: Methods) -> list[str]:
    """Write tables and figures; returns a line for each file that could not be read for them."""
    grids = read_tables(results, methods)
    tables = chosen_tables(grids)
    for table in tables:
        for suffix, text in (("md", markdown(table)), ("tex", latex(table))):
            with atomic_write(folder / "tables" / f"{table.recipe}.{suffix}") as temporary:
                temporary.write_text(text, encoding="utf-8")
        write_json(folder / "tables" / f"{table.recipe}.json", as_json(table))
    if tables:
        from demosift.report import figures

        used = {str(run.config["algorithm"]) for runs in results.cells.values() for run in runs}
        # The preset of the penalty's figures has a grid of its own; where it was not run, the tables have them too.
        penalties = grids.get("gradient-penalty") or tables
        figures.draw_tables(folder / "figures", tables, penalties, methods, colours(used, methods))
    coverage, problems = read_each(folder / COVERAGE, partial(read_coverage, known=environments()))
    if coverage:
        from demosift.report import figures

        figures.coverage(coverage, folder / "figures" / "coverage")
    if files_in(folder / SAC_CURVES):
        from demosift.report import sac

        sac.draw(folder / SAC_CURVES)
    return problems
