"""The tables of `successors` and of `d4rl` as Markdown, LaTeX and JSON, as files with figures, and on the page.

tables/successors.md .tex .json      over all piles, then pile by pile
figures/profile                      the performance profile: as published, and with the robust cloner
tables/d4rl.md .tex .json            ours above the published numbers
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from demosift.files import atomic_write, write_json
from demosift.report import numbers
from demosift.report.anchors import AnchorTable, anchor_table, anchors_note, as_plain, lines_of
from demosift.report.comparison import LIMITS, ComparisonRow, ComparisonTable, comparison_tables
from demosift.report.document import cell, scrolled_table
from demosift.report.groups import Methods
from demosift.report.paper import D4RL, SUCCESSORS, Number
from demosift.report.paper_forms import escape_latex, finite, markdown_lines
from demosift.report.table import escape_markdown, span
from demosift.results.folder import Results

SHOWN_LIMITS = (0.25, 0.5, 0.75, 0.9)  # of the profile's numbers in tables; the file has all
ALL = "all piles"


def heads_of(table: ComparisonTable) -> list[str]:
    """The columns after the method's name."""
    profile = [f"Above {limit:.0%}" for limit in SHOWN_LIMITS]
    better = [f"Better than {table.base}", "95% interval"] if table.base else []
    sure = ["Mean", "95% interval", "IQM", "95% interval", *better, "Better than as published", "95% interval"]
    return [*table.columns, *sure, *profile]


def cells_of(row: ComparisonRow, table: ComparisonTable) -> list[str]:
    cells = [score_text(row.entries.get(column)) for column in table.columns]
    o = row.overall
    if o is None or row.profile is None:
        return cells + [numbers.MISSING] * (len(heads_of(table)) - len(cells))
    cells += [numbers.measured(o.score, "score"), numbers.interval(*o.interval, "score")]
    cells += [numbers.measured(o.iqm, "score"), numbers.interval(*o.iqm_interval, "score")]
    if table.base:
        cells += [numbers.number(o.improvement, 2), chances(*o.improvement_interval)]
    cells += [numbers.number(row.over_published, 2), chances(*row.over_published_interval)]
    shares = [row.profile.share[abs(LIMITS - limit).argmin()] for limit in SHOWN_LIMITS]
    return cells + [numbers.number(100 * share, 0) for share in shares]


def score_text(value: Number | None) -> str:
    return numbers.MISSING if value is None else numbers.with_spread(value.mean, value.std, "score")


def chances(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}" if math.isfinite(low) else numbers.MISSING


def explained(table: ComparisonTable) -> str:
    over = f"over {numbers.count_of(table.num_tasks, 'task')} that every method was run on" if not table.name else ""
    where = over or f"over {numbers.count_of(len(table.columns), 'environment')}"
    return (
        "Normalised scores in percent, 0 random and 100 the expert: the mean of each seed's last "
        f"{span(table.averaged)} evaluations, then mean ± standard deviation over {span(table.seeds)} seeds, after "
        f"{'; '.join(table.trained)}. Mean, interquartile mean (IQM) and the 95% intervals of a stratified bootstrap "
        f"over seeds are {where}. A probability is that of a seed to beat one of another method, averaged over tasks: "
        f"of {table.base or 'none'}, and for a robust cloner of the same method as published. *Above* is the "
        "performance profile: the percentage of seeds with a larger score."
    )


def markdown(tables: Sequence[ComparisonTable]) -> str:
    parts = ["# Successors"]
    for table in tables:
        heads = heads_of(table)
        body = [["", *map(escape_markdown, heads)], ["---", *["---:"] * len(heads)]]
        body += [[f"**{escape_markdown(row.title)}**", *cells_of(row, table)] for row in table.rows]
        parts.append(f"## {escape_markdown(table.name or ALL)}\n\n{markdown_lines(body)}\n\n{explained(table)}")
    return "\n\n".join(parts) + "\n"


def latex_table(label: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    columns = "l" * left + "r" * (len(heads) - left)
    body = "\n".join(" & ".join(map(escape_latex, row)) + r" \\" for row in rows)
    return (
        f"\\begin{{table}}[htbp]\n\\centering\n\\caption{{{escape_latex(caption)}}}\n\\label{{tab:{label}}}\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{' & '.join(map(escape_latex, heads))} \\\\ "
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def latex(tables: Sequence[ComparisonTable]) -> str:
    parts = []
    for number, table in enumerate(tables):
        rows = [[row.title, *cells_of(row, table)] for row in table.rows]
        caption = f"{(table.name or ALL).capitalize()}. {explained(table).replace('*', '')}"
        parts.append(latex_table(f"successors-{number}", caption, ["", *heads_of(table)], rows))
    return "\n".join(parts)


def as_json(table: ComparisonTable) -> dict[str, Any]:
    """Plain values at full precision; null where there is none."""

    def of_row(row: ComparisonRow) -> dict[str, Any]:
        o, p = row.overall, row.profile
        return {
            "method": row.key[0],
            "setting": row.key[1],
            "title": row.title,
            "scores": {
                column: {"mean": each.mean, "std": finite(each.std), "seeds": each.seeds}
                for column, each in row.entries.items()
            },
            "mean": o and o.score,
            "interval": o and list(map(finite, o.interval)),
            "iqm": o and o.iqm,
            "iqm_interval": o and list(map(finite, o.iqm_interval)),
            "better_than_base": o and finite(o.improvement),
            "better_than_base_interval": o and list(map(finite, o.improvement_interval)),
            "better_than_published": finite(row.over_published),
            "better_than_published_interval": list(map(finite, row.over_published_interval)),
            "profile": p
            and {name: [finite(v) for v in getattr(p, name).tolist()] for name in ("share", "low", "high")},
        }

    return {
        "pile": table.name or None,
        "columns": list(table.columns),
        "base": table.base,
        "tasks": table.num_tasks,
        "seeds": list(table.seeds),
        "evaluations_averaged": list(table.averaged),
        "trained": list(table.trained),
        "rows": list(map(of_row, table.rows)),
    }


def html_table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = '<th scope="col">Method</th>' + "".join(f'<th scope="col" class="n">{escape(text)}</th>' for text in heads)
    body = (f'<tr><th scope="row">{escape(title)}</th>{"".join(map(cell, heads, texts))}</tr>' for title, texts in rows)
    return scrolled_table("results", head, body)


def comparison_sections(results: Results, methods: Methods) -> str:
    """For the page: the tables of `successors`, then that of `d4rl`."""
    parts = []
    for table in comparison_tables(results, methods):
        rows = [(row.title, cells_of(row, table)) for row in table.rows]
        parts.append(
            f"<section><h2>Successors: {escape(table.name or ALL)}</h2>{html_table(heads_of(table), rows)}"
            f'<p class="note">{escape(explained(table).replace("*", ""))}</p></section>'
        )
    if (anchors := anchor_table(results, methods)) is not None:
        rows = [(f"{title} {whose}".strip(), cells) for title, whose, cells in lines_of(anchors)]
        parts.append(
            f"<section><h2>D4RL: ours and published</h2>{html_table(anchors.columns, rows)}"
            f'<p class="note">{escape(anchors_note(anchors), quote=False)}</p></section>'
        )
    return "".join(parts)


def anchor_files(table: AnchorTable) -> dict[str, str]:
    body = [["", "", *table.columns], ["---", "---", *["---:"] * len(table.columns)]]
    body += [
        [f"**{escape_markdown(title)}**" if title else "", whose, *cells] for title, whose, cells in lines_of(table)
    ]
    rows = [[title, whose, *cells] for title, whose, cells in lines_of(table)]
    return {
        "md": f"# D4RL\n\n{markdown_lines(body)}\n\n{anchors_note(table)}\n",
        "tex": latex_table("d4rl", anchors_note(table), ["", "", *table.columns], rows, 2),
    }


def write_comparison_files(folder: Path, results: Results, methods: Methods) -> None:
    """Write the tables and the figure of the grids that were run."""
    texts: dict[str, str] = {}
    if tables := comparison_tables(results, methods):
        from demosift.report import figures

        texts |= {f"{SUCCESSORS}.md": markdown(tables), f"{SUCCESSORS}.tex": latex(tables)}
        content = {"limits": LIMITS.round(4).tolist(), "tables": list(map(as_json, tables))}
        write_json(folder / "tables" / f"{SUCCESSORS}.json", content)
        figures.profiles(tables, folder / "figures" / "profile")
    if (anchors := anchor_table(results, methods)) is not None:
        texts |= {f"{D4RL}.{suffix}": text for suffix, text in anchor_files(anchors).items()}
        write_json(folder / "tables" / f"{D4RL}.json", as_plain(anchors))
    for name, text in texts.items():
        with atomic_write(folder / "tables" / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
