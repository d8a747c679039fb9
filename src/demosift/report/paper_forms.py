"""The paper's tables as Markdown, LaTeX and JSON."""

import math
from collections.abc import Callable
from typing import Any

from demosift.report import numbers
from demosift.report.paper import STANDARD_ERRORS, Entry, Number, PaperRow, PaperTable, published
from demosift.report.table import escape_markdown, span

UP, DOWN, SAME = "\N{BLACK UP-POINTING TRIANGLE}", "\N{BLACK DOWN-POINTING TRIANGLE}", "\N{ALMOST EQUAL TO}"
NAMES = {"noisy-expert": "Noisy expert", "full-replay": "Full replay"}

Cells = list[str]


def environment_name(env: str) -> str:
    return published()["environments"][env].removesuffix("-v2")


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


def mark(difference: float, differs: bool | None) -> str:
    if differs is None:
        return ""
    return (UP if difference > 0 else DOWN) if differs else SAME


def marked(entry: Entry) -> str:
    return f"{points(entry.difference)} {mark(entry.difference, entry.differs)}".strip()


def marked_overall(row: PaperRow) -> str:
    if row.overall is None:
        return numbers.MISSING
    return f"{points(row.overall.difference)} {mark(row.overall.difference, row.differs)}".strip()


def lines_of(table: PaperTable) -> list[tuple[str, str, Cells]]:
    """(row, whose, cells): three lines for a row that the paper has, else one. References come first."""
    paper = published()
    lines = []
    for who in ("random", "expert"):
        ours = [
            numbers.number(table.references[env][who], 0) if env in table.references else numbers.MISSING
            for env in table.envs
        ]
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
            lines.append(("", "difference", [*map(marked, entries), marked_overall(row)]))
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
        shown = [f"**{escape_markdown(title)}**" if title else "", whose, *cells]
        body.append(shown)
    text = "\n".join("| " + " | ".join(line) + " |" for line in body)
    cited = published()["citation"]
    return (
        f"# {NAMES[table.recipe]}\n\n{text}\n\n{explained(table)}\n\nThe paper's numbers: {cited}.\n\n"
        f"## How sure\n\n{statistics_markdown(table)}"
    )


STATISTICS = ("Score", "95% interval", "IQM", "95% interval", "Better than BC", "95% interval", "Last", "Best")


def statistics_lines(table: PaperTable) -> list[tuple[str, Cells]]:
    lines = []
    for row in table.rows:
        if row.overall is None:
            lines.append((row.key.title, [numbers.MISSING] * len(STATISTICS)))
            continue
        o = row.overall
        low, high = o.improvement_interval
        interval = f"{low:.2f} to {high:.2f}" if math.isfinite(low) else numbers.MISSING
        lines.append(
            (
                row.key.title,
                [
                    numbers.measured(o.score, "score"),
                    numbers.interval(*o.interval, "score"),
                    numbers.measured(o.iqm, "score"),
                    numbers.interval(*o.iqm_interval, "score"),
                    numbers.number(o.improvement, 2),
                    interval,
                    numbers.measured(o.last, "score"),
                    numbers.measured(o.best, "score"),
                ],
            )
        )
    return lines


STATISTICS_NOTE = (
    "Normalised scores in percent over all environments. IQM is the interquartile mean of all seeds; intervals are "
    "stratified bootstraps over seeds. *Better than BC* is the probability that a seed beats one of BC's, averaged "
    "over environments. *Last* is the final evaluation alone; *best* each seed's luckiest, which is not a result."
)


def statistics_markdown(table: PaperTable) -> str:
    body: list[Cells] = [["", *STATISTICS], ["---", *["---:"] * len(STATISTICS)]]
    body += [[escape_markdown(title), *cells] for title, cells in statistics_lines(table)]
    return "\n".join("| " + " | ".join(line) + " |" for line in body) + f"\n\n{STATISTICS_NOTE}\n"


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
    cited = escape_latex(f"The paper's numbers: {published()['citation']}.")
    body = "\n".join(rows)
    return (
        f"% {cited}\n\\begin{{table}}[htbp]\n\\centering\n\\caption{{{caption}}}\n"
        f"\\label{{tab:{table.recipe}}}\n\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{heads} \\\\ \\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def as_json(table: PaperTable) -> dict[str, Any]:
    """Plain values at full precision; null where there is none."""

    def number(value: Number | None) -> dict[str, Any] | None:
        return None if value is None else {"mean": value.mean, "std": finite(value.std), "seeds": value.seeds}

    def of_row(row: PaperRow) -> dict[str, Any]:
        o = row.overall
        return {
            "method": row.key.method,
            "gradient_penalty": row.key.gradient_penalty,
            "setting": row.key.setting,
            "title": row.key.title,
            "environments": {
                env: {
                    "returns": number(each.returns),
                    "score": number(each.score),
                    "paper_returns": number(each.paper_returns),
                    "paper_score": number(each.paper_score),
                    "difference": finite(each.difference),
                    "differs": each.differs,
                }
                for env, each in row.entries.items()
            },
            "score": None if o is None else o.score,
            "interval": None if o is None else list(map(finite, o.interval)),
            "iqm": None if o is None else o.iqm,
            "iqm_interval": None if o is None else list(map(finite, o.iqm_interval)),
            "better_than_bc": None if o is None else finite(o.improvement),
            "better_than_bc_interval": None if o is None else list(map(finite, o.improvement_interval)),
            "last": None if o is None else o.last,
            "best": None if o is None else o.best,
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


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


FORMS: dict[str, Callable[[PaperTable], str]] = {"md": markdown, "tex": latex}
