"""What the report makes of a grid: the paper's tables and figures, from result files only.

tables/RECIPE.md .tex .json          ours, the paper's, the difference; and how sure
figures/summary                      every method's averaged score, task by task
figures/gradient-penalty-METHOD      WBCU and DemoDICE over the penalty
figures/curves-RECIPE[-METHOD]       training curves with 95% bands
figures/coverage  figures/sac-curves
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demosift.files import atomic_write, write_json
from demosift.report import paper_forms
from demosift.report.groups import Panel, colours, group_runs
from demosift.report.paper import PENALISED, PaperTable, paper_tables, published
from demosift.results.folder import files_in
from demosift.results.reading import Results, Run, Unusable, is_number, parse, read_text

TABLE_GRIDS = ("noisy-expert", "full-replay")


@dataclass(frozen=True)
class Grid:
    """A grid's panels and the paper's tables made of them."""

    name: str
    panels: tuple[Panel, ...]
    tables: tuple[PaperTable, ...]


def read_grids(results: Results) -> list[Grid]:
    grids = []
    for name, runs in results.cells.items():
        panels, _ = group_runs(runs)
        if panels:
            grids.append(Grid(name, tuple(panels), tuple(paper_tables(panels, references(runs)))))
    return grids


def references(runs: tuple[Run, ...]) -> dict[str, Mapping[str, float]]:
    """Each task's random and expert return, as its cells tell; they agree, or the cells were refused."""
    found = {}
    for run in runs:
        reference = run.config.get("reference")
        if isinstance(reference, dict) and all(is_number(reference.get(who)) for who in ("random", "expert")):
            found[run.config["task"]] = reference
    return found


def chosen_tables(grids: list[Grid]) -> list[PaperTable]:
    """The table of each task: of the grid named after it, or else of any that has one."""
    found: dict[str, PaperTable] = {}
    for grid in sorted(grids, key=lambda grid: grid.name not in TABLE_GRIDS):
        for table in grid.tables:
            found.setdefault(table.recipe, table)
    return [found[recipe] for recipe in TABLE_GRIDS if recipe in found]


def write_grid_files(folder: Path, results: Results) -> tuple[list[str], list[str]]:
    """Write tables and figures; what was written, relative to the folder, and what could not be read for it."""
    grids = read_grids(results)
    tables = chosen_tables(grids)
    written = []
    for table in tables:
        for suffix, form in paper_forms.FORMS.items():
            path = folder / "tables" / f"{table.recipe}.{suffix}"
            with atomic_write(path) as temporary:
                temporary.write_text(form(table), encoding="utf-8")
            written.append(path)
        write_json(folder / "tables" / f"{table.recipe}.json", paper_forms.as_json(table))
        written.append(folder / "tables" / f"{table.recipe}.json")
    written += draw_grids(folder / "figures", grids, tables)
    points, problems = read_coverage(folder / "coverage")
    if points:
        from demosift.report import figures

        figures.coverage(points, folder / "figures" / "coverage")
        written.append(folder / "figures" / "coverage.svg")
    if files_in(folder / "sac-curves"):
        from demosift.report import sac

        written.append(sac.draw(folder / "sac-curves"))
    return [path.relative_to(folder).as_posix() for path in written], problems


def draw_grids(folder: Path, grids: list[Grid], tables: list[PaperTable]) -> list[Path]:
    if not tables:
        return []
    from demosift.report import figures

    of_method = colours([panel for grid in grids for panel in grid.panels])
    figures.summary(tables, of_method, folder / "summary")
    written = [folder / "summary.svg"]
    # The preset of the penalty's figures has them from a grid of its own, if it was run.
    own = [table for grid in grids if grid.name == "gradient-penalty" for table in grid.tables] or tables
    for method in PENALISED:
        if figures.gradient_penalty(method, own, folder / f"gradient-penalty-{method}"):
            written.append(folder / f"gradient-penalty-{method}.svg")
    for table in tables:
        panels = panels_of(table, grids)
        rows = {table.recipe: [row.key for row in figures.chosen(table)]}
        for method in PENALISED:
            rows[f"{table.recipe}-{method}"] = [row.key for row in table.rows if row.key.method == method]
        for name, keys in rows.items():
            if keys and figures.curves(panels, keys, of_method, folder / f"curves-{name}"):
                written.append(folder / f"curves-{name}.svg")
    return written


def panels_of(table: PaperTable, grids: list[Grid]) -> dict[str, Panel]:
    grid = next(grid for grid in grids if table in grid.tables)
    found = {
        panel.task.partition("/")[0]: panel for panel in grid.panels if panel.recipe == table.recipe and panel.task
    }
    return {env: found[env] for env in table.envs}


def read_coverage(folder: Path) -> tuple[dict[str, Any], list[str]]:
    known = published()["environments"]
    points, problems = {}, []
    for path in files_in(folder):
        where = f"coverage/{path.name}"
        try:
            content = parse(read_text(path, where), where)
            if path.stem not in known or not is_coverage(content):
                raise Unusable(f"{where}: not the state coverage of an environment")
            points[path.stem] = content
        except Unusable as error:
            problems.append(str(error))
    return points, problems


def is_coverage(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and is_number(content.get("mixing"))
        and all(isinstance(content.get(kind), list) and content[kind] for kind in ("good", "noisy"))
        and all(
            isinstance(point, list) and len(point) == 2 and all(map(is_number, point))
            for kind in ("good", "noisy")
            for point in content[kind]
        )
    )
