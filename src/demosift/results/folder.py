"""A whole results folder: the runs below it with the scores that they trained on, and the cells of the grids that
`demosift reproduce` ran there.

A grid's file names its cells. Only those are used, so that two grids in one folder are never mixed. Every other file
among the cells, and every damaged or missing one, is named in a line of its own.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from demosift.files import Unusable
from demosift.results.cell import (
    CELLS,
    COVERAGE,
    FAILURES,
    GRIDS,
    SAC_CURVES,
    UNFINISHED,
    cell_run,
    read_cell,
    read_failure,
    read_grid,
)
from demosift.results.measured import MeasuredRun, Row, label
from demosift.results.rewards import REWARDS
from demosift.results.run import RUN_FILES, read_run
from demosift.results.scores import SCORE_FILES, is_score_folder, read_page
from demosift.results.weights import WEIGHTS, read_weights
from demosift.types import InputError

REPORT = "report.html"
# Folders that `reproduce` and the report write beside the cells, which hold no runs.
OWN_FOLDERS = (CELLS, FAILURES, GRIDS, UNFINISHED, "data", "tables", "figures", COVERAGE, SAC_CURVES)
NAMED = 20  # missing cells are counted, failures named up to this many

Content = TypeVar("Content")


@dataclass(frozen=True)
class Results:
    """`cells` are runs of one member each, by the name of their grid; a cell may be in several.

    `scores` are the summary and the page's content of every scores folder that a run has, by its name, draw by draw.
    """

    runs: tuple[MeasuredRun, ...]
    weights: Mapping[str, Any]  # method -> histogram, see `demosift.results.weights`
    problems: tuple[str, ...]
    unread: tuple[str, ...]  # files that are no results and were not read
    cells: Mapping[str, tuple[MeasuredRun, ...]] = field(default_factory=dict)
    scores: Mapping[str, tuple[Row, Row]] = field(default_factory=dict)

    @property
    def every_run(self) -> tuple[MeasuredRun, ...]:
        cells = {run.name: run for of_grid in self.cells.values() for run in of_grid}
        return (*self.runs, *cells.values())


def is_grid_folder(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in (CELLS, FAILURES, GRIDS, COVERAGE, SAC_CURVES))


def read_folder(folder: str | os.PathLike[str]) -> Results:
    """Every run below the folder and every cell in it."""
    folder = Path(folder)
    if not folder.is_dir() or not is_grid_folder(folder):
        return read_results(folder)
    results = read_results(folder, skip=OWN_FOLDERS, required=False)
    grids, problems = read_each(folder / GRIDS, read_grid)
    cells, damaged = read_cells(folder / CELLS, grids)
    problems += damaged + failures(folder / FAILURES) + missing(grids, cells)
    return replace(
        results,
        cells={name: tuple(cells[each] for each in ids if each in cells) for name, ids in grids.items()}
        if grids
        else {"": tuple(cells.values())},
        problems=(*results.problems, *problems),
    )


def read_results(folder: str | os.PathLike[str], skip: Collection[str] = (), required: bool = True) -> Results:
    """Every run below the folder, sorted by name. `skip` names folders in it that hold something else."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    runs, problems, unread, weights, scores = [], [], [], {}, {}
    for path, files in walk(folder, skip):
        name = path.relative_to(folder).as_posix()
        is_run = "config.json" in files or "metrics.jsonl" in files
        if is_run:
            try:
                runs.append(read_run(path, name))
            except Unusable as error:
                problems.append(str(error))
        is_score = (
            path.parent.name == "scores" and (path.parent.parent / RUN_FILES[0]).is_file() and is_score_folder(path)
        )
        if is_score:
            try:
                scores[name] = read_page(path)
            except Unusable as error:
                problems.append(str(error).replace(str(path), name))  # the page is the same wherever the folder is
        if path == folder and WEIGHTS in files:
            try:
                weights = read_weights(folder)
            except Unusable as error:
                problems.append(str(error))
        known = (RUN_FILES if is_run else SCORE_FILES if is_score else (REWARDS,)) + (
            (WEIGHTS, REPORT) if path == folder else ()
        )
        unread += [label(name, file) for file in files if file not in known and path.name != "checkpoint"]
    if required and not runs and not problems:
        raise InputError(f"{folder}: no run here (a run folder holds config.json and metrics.jsonl)")
    problems += [f"{label(run.name)}: no evaluations, so no score" for run in runs if not run.evaluated]
    in_order = sorted(scores.items(), key=lambda item: (Path(item[0]).parent, len(Path(item[0]).name), item[0]))
    return Results(tuple(runs), weights, tuple(problems), tuple(unread), scores=dict(in_order))


def walk(folder: Path, skip: Collection[str] = ()) -> list[tuple[Path, list[str]]]:
    """Folders and their files in a fixed order, without hidden ones and files half written."""
    found = []
    for path, folders, files in os.walk(folder):
        here = skip if Path(path) == folder else ()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in here)
        found.append((Path(path), sorted(name for name in files if not name.startswith("."))))
    return sorted(found)


def read_cells(folder: Path, grids: Mapping[str, list[str]]) -> tuple[dict[str, MeasuredRun], list[str]]:
    """The cells by id. One that no grid asked for is named and left out."""
    wanted = {each for ids in grids.values() for each in ids}
    measured_by: dict[str, tuple[Any, str]] = {}

    def read(path: Path, where: str) -> MeasuredRun:
        content = read_cell(path, where)
        if grids and content["id"] not in wanted:
            raise Unusable(f"{where}: belongs to no grid in {GRIDS}/; left out")
        run = cell_run(content, where)
        reference, first = measured_by.setdefault(run.config["task"], (content.get("reference"), where))
        if content.get("reference") != reference:
            raise Unusable(f"{where}: its reference returns differ from those of {first}")
        return run

    return read_each(folder, read)


def failures(folder: Path) -> list[str]:
    """A line for every cell that failed: what it was, and the last line of its traceback."""

    def in_words(path: Path, where: str) -> str:
        failure = read_failure(path, where)
        return f"{where}: {failure.cell}, failed: {failure.reason}"

    failed, problems = read_each(folder, in_words)
    lines = [*failed.values(), *problems]
    hidden = len(lines) - NAMED
    return lines[:NAMED] + ([f"{FAILURES}/: {hidden} more"] if hidden > 0 else [])


def missing(grids: Mapping[str, list[str]], cells: Mapping[str, MeasuredRun]) -> list[str]:
    counted = {name: sum(each not in cells for each in ids) for name, ids in grids.items()}
    return [
        f"{GRIDS}/{name}.json: {count} of {len(grids[name])} cells are not finished"
        for name, count in counted.items()
        if count
    ]


def read_each(folder: Path, read: Callable[[Path, str], Content]) -> tuple[dict[str, Content], list[str]]:
    """What `read` returns for every file in a folder, by its stem, and a line for every file that it cannot use."""
    found, problems = {}, []
    for path in files_in(folder):
        try:
            found[path.stem] = read(path, f"{folder.name}/{path.name}")
        except Unusable as error:
            problems.append(str(error))
    return found, problems


def files_in(folder: Path) -> Sequence[Path]:
    """Everything in a folder in a fixed order, without what is hidden or half written."""
    if not folder.is_dir():
        return []
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: not readable ({error.strerror})") from error
