"""Published numbers on D4RL's files, and ours above them.

`anchors.json` has the numbers that two papers agree on, or that one paper alone reports, each with its source, and a
word on those that are left out. Papers differ in what the expert is and in the simulator, so a number is a mark to come
near to, not a target to hit.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from demosift.report import numbers
from demosift.report.document import asset
from demosift.report.groups import Methods, about, group
from demosift.report.paper import D4RL, Number, summary
from demosift.results.folder import Results

PREFIX = "d4rl-"  # of the recipe, before the dataset's name
TOTAL = "sum of nine"
NINE = tuple(
    f"{env}/{dataset}"
    for dataset in ("medium", "medium-replay", "medium-expert")
    for env in ("halfcheetah", "hopper", "walker2d")
)


@functools.cache
def published() -> dict[str, Any]:
    return json.loads(asset("anchors.json"))


def anchored_methods() -> tuple[str, ...]:
    """The methods that have a published number, in its order."""
    return tuple(dict.fromkeys(row["method"] for key in ("numbers", "totals") for row in published()[key]))


@dataclass(frozen=True)
class AnchorRow:
    method: str
    title: str
    ours: Mapping[str, Number]  # by dataset, ENV/NAME; normalised scores in percent
    theirs: Mapping[str, Mapping[str, str]]  # by paper, then by column


@dataclass(frozen=True)
class AnchorTable:
    datasets: tuple[str, ...]
    rows: tuple[AnchorRow, ...]
    experts: tuple[str, ...]  # how the tasks say how many expert trajectories there are, where that is not one

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.datasets, TOTAL)


def anchor_table(results: Results, methods: Methods) -> AnchorTable | None:
    """None where the grid was not run."""
    panels = [panel for panel in group(results.cells.get(D4RL, ()), methods)[0] if panel.scale == "score"]
    ours: dict[tuple[str, str], dict[str, Number]] = {}
    experts: set[str] = set()
    for panel in panels:
        env, _, rest = str(panel.task).partition("/")
        recipe, _, changes = rest.partition(", ")
        experts |= {changes} - {""}
        for series in panel.series:
            setting = ", ".join(filter(None, (series.setting, changes)))
            own = ours.setdefault((series.method, setting), {})
            own[f"{env}/{recipe.removeprefix(PREFIX)}"] = summary(100 * series.final("score"))
    if not ours:
        return None
    found = {dataset for own in ours.values() for dataset in own}
    datasets = [name for name in NINE if name in found] + sorted(found - set(NINE))
    order = list(methods)
    rows = [
        AnchorRow(method, titled(about(method, methods).name, setting), own, published_for(method))
        for (method, setting), own in sorted(
            ours.items(), key=lambda item: (order.index(item[0][0]) if item[0][0] in order else len(order), item[0])
        )
    ]
    return AnchorTable(tuple(datasets), tuple(rows), tuple(sorted(experts)))


def titled(name: str, setting: str) -> str:
    return f"{name} ({setting})" if setting else name


def published_for(method: str) -> dict[str, dict[str, str]]:
    """A method's published numbers, by paper and column."""
    found: dict[str, dict[str, str]] = {}
    for row in published()["numbers"]:
        if row["method"] == method:
            found.setdefault(row["paper"], {})[row["dataset"]] = numbers.number(row["score"], 1)
    for row in published()["totals"]:
        if row["method"] == method:
            low, high = (numbers.number(row[end], 1) for end in ("low", "high"))
            found.setdefault(row["paper"], {})[TOTAL] = low if low == high else f"{low} to {high}"
    return found


def total_of(row: AnchorRow) -> float | None:
    """The sum over the nine datasets; None where one is missing."""
    return float(np.sum([row.ours[name].mean for name in NINE])) if set(NINE) <= set(row.ours) else None


def lines_of(table: AnchorTable) -> list[tuple[str, str, list[str]]]:
    """(row, whose, cells): ours, then a line for each paper that has the method."""
    lines = []
    for row in table.rows:
        total = total_of(row)
        cells = [
            numbers.with_spread(row.ours[name].mean / 100, row.ours[name].std / 100, "score")
            if name in row.ours
            else numbers.MISSING
            for name in table.datasets
        ]
        lines.append((row.title, "ours", [*cells, numbers.MISSING if total is None else numbers.number(total, 1)]))
        for paper, theirs in row.theirs.items():
            name = published()["papers"][paper]["name"]
            lines.append(("", name, [theirs.get(column, numbers.MISSING) for column in table.columns]))
    return lines


def anchors_note(table: AnchorTable) -> str:
    papers = published()["papers"].values()
    cited = "; ".join(f"{paper['name']}: {paper['citation']} (expert: {paper['expert']})" for paper in papers)
    many = f" ({'; '.join(table.experts)})" if table.experts else ""
    return (
        "Ours: normalised scores by D4RL's constants, mean ± standard deviation over seeds, on the same files. The "
        f"expert is the best trajectory of the file itself{many}. Policies are evaluated in Gymnasium's v5 "
        f"environments; the papers used v2. {cited}. Left out: {'; '.join(published()['left_out'])}."
    )


def as_plain(table: AnchorTable) -> dict[str, Any]:
    """For JSON."""
    return {
        "datasets": list(table.datasets),
        "published": published(),
        "rows": [
            {
                "method": row.method,
                "title": row.title,
                "ours": {
                    name: {"mean": each.mean, "std": None if np.isnan(each.std) else each.std, "seeds": each.seeds}
                    for name, each in row.ours.items()
                },
                "total": total_of(row),
            }
            for row in table.rows
        ],
    }
