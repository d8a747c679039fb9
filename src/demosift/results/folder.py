"""Reading a whole results folder: runs, and the cells of the grids that `demosift reproduce` ran there.

A grid's file names its cells. Only those are used, so that two grids in one folder are never mixed; whatever else
stands among the cells, is damaged, or is missing, is told in one line that names it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from demosift.results.cell import CELLS, FAILURES, GRIDS, cell_run, read_cell
from demosift.results.reading import Results, Run, Unusable, parse, read_results, read_text
from demosift.types import InputError

# What `reproduce` and the report write beside the cells: no runs in there.
OWN_FOLDERS = (CELLS, FAILURES, GRIDS, "unfinished", "data", "tables", "figures", "coverage", "sac-curves")
NAMED = 20  # missing cells are counted, failures named up to this many


def is_grid_folder(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in (CELLS, FAILURES, GRIDS, "coverage", "sac-curves"))


def read_folder(folder: str | os.PathLike[str]) -> Results:
    """Every run below the folder and every cell in it."""
    folder = Path(folder)
    if not folder.is_dir() or not is_grid_folder(folder):
        return read_results(folder)
    results = read_results(folder, skip=OWN_FOLDERS, required=False)
    grids, problems = read_grids(folder / GRIDS)
    cells, damaged = read_cells(folder / CELLS, grids)
    problems += damaged + failures(folder / FAILURES) + missing(grids, cells)
    return replace(
        results,
        cells={name: tuple(cells[each] for each in ids if each in cells) for name, ids in grids.items()}
        if grids
        else {"": tuple(cells.values())},
        problems=(*results.problems, *problems),
    )


def read_grids(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    grids, problems = {}, []
    for path in files_in(folder):
        where = f"{GRIDS}/{path.name}"
        try:
            content = parse(read_text(path, where), where)
            if not is_grid(content) or content["grid"] != path.stem:
                raise Unusable(f"{where}: not the list of a grid's cells")
            grids[path.stem] = content["cells"]
        except Unusable as error:
            problems.append(str(error))
    return grids, problems


def is_grid(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("grid"), str)
        and isinstance(content.get("cells"), list)
        and all(isinstance(each, str) for each in content["cells"])
        and len(set(content["cells"])) == len(content["cells"])
    )


def read_cells(folder: Path, grids: dict[str, list[str]]) -> tuple[dict[str, Run], list[str]]:
    """The cells by id. One that no grid asked for is named and left out."""
    wanted = {each for ids in grids.values() for each in ids}
    measured_by: dict[str, tuple[Any, str]] = {}
    cells, problems = {}, []
    for path in files_in(folder):
        where = f"{CELLS}/{path.name}"
        try:
            content = read_cell(path, where)
            if grids and content["id"] not in wanted:
                raise Unusable(f"{where}: belongs to no grid in {GRIDS}/; left out")
            run = cell_run(content, where)
            reference, first = measured_by.setdefault(run.config["task"], (content.get("reference"), where))
            if content.get("reference") != reference:
                raise Unusable(f"{where}: its scores are measured by other reference returns than those of {first}")
            cells[content["id"]] = run
        except Unusable as error:
            problems.append(str(error))
    return cells, problems


def failures(folder: Path) -> list[str]:
    """A line for every cell that failed: what it was, and the last line of why."""
    lines = []
    for path in files_in(folder):
        where = f"{FAILURES}/{path.name}"
        try:
            content = parse(read_text(path, where), where)
            config, reason = content["config"], str(content["failure"]).strip().splitlines()[-1]
            lines.append(f"{where}: {config['method']} on {config['task']}, seed {config['seed']}, failed: {reason}")
        except Unusable as error:
            lines.append(str(error))
        except (KeyError, TypeError, IndexError):
            lines.append(f"{where}: not the record of a failure")
    hidden = len(lines) - NAMED
    return lines[:NAMED] + ([f"{FAILURES}/: {hidden} more"] if hidden > 0 else [])


def missing(grids: dict[str, list[str]], cells: dict[str, Run]) -> list[str]:
    counted = {name: sum(each not in cells for each in ids) for name, ids in grids.items()}
    return [
        f"{GRIDS}/{name}.json: {count} of {len(grids[name])} cells are not finished"
        for name, count in counted.items()
        if count
    ]


def files_in(folder: Path) -> Sequence[Path]:
    """Everything in a folder in a fixed order, but what is hidden or half written."""
    if not folder.is_dir():
        return []
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: not readable ({error.strerror})") from error
