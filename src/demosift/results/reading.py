"""Reading a results folder: every run below it, and by name every file that cannot be used.

A run is used whole or not at all. Whatever is damaged or unfinished is told in one line that names the file, so that
nothing is silently averaged.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.types import InputError

LARGEST = 1e100  # beyond this a number is damage, and would overflow the arithmetic of the report
RUN_FILES = ("config.json", "metrics.jsonl", "policy.safetensors")
TOP_FILES = ("weights.json", "report.html")

Row = dict[str, Any]


class Unusable(Exception):
    """A file of a run cannot be used. The message names the file, relative to the results folder."""


@dataclass(frozen=True)
class Curve:
    """One quantity over training. NaN where it was not measured."""

    iteration: Int[np.ndarray, "points"]
    value: Float[np.ndarray, "points"]


@dataclass(frozen=True)
class Member:
    """What was measured of one seed of one setting. `score` is None where no reference return is known."""

    settings: Mapping[str, Any]
    iteration: Int[np.ndarray, "evaluations"]
    returns: Float[np.ndarray, "evaluations"]
    score: Float[np.ndarray, "evaluations"] | None
    episodes: Int[np.ndarray, "evaluations"]
    diagnostics: Mapping[str, Curve]


@dataclass(frozen=True)
class Run:
    name: str  # the folder, relative to the results folder
    config: Mapping[str, Any]
    members: tuple[Member, ...]

    @property
    def evaluated(self) -> bool:
        return len(self.members[0].iteration) > 0


@dataclass(frozen=True)
class Results:
    """`cells` are runs of one member each, by the name of their grid; a cell may be in several."""

    runs: tuple[Run, ...]
    weights: Mapping[str, Any]  # method -> histogram, see `demosift.report.weights`
    problems: tuple[str, ...]
    unread: tuple[str, ...]  # files that are no results and were not read
    cells: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)

    @property
    def every_run(self) -> tuple[Run, ...]:
        cells = {run.name: run for of_grid in self.cells.values() for run in of_grid}
        return (*self.runs, *cells.values())


def read_results(folder: str | os.PathLike[str], skip: Collection[str] = (), required: bool = True) -> Results:
    """Every run below the folder, in the order of their names. `skip` are folders in it that hold something else."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    runs, problems, unread, weights = [], [], [], {}
    for path, files in walk(folder, skip):
        name = path.relative_to(folder).as_posix()
        is_run = "config.json" in files or "metrics.jsonl" in files
        if is_run:
            try:
                runs.append(read_run(path, name))
            except Unusable as error:
                problems.append(str(error))
        if path == folder and "weights.json" in files:
            try:
                weights = read_weights(path / "weights.json")
            except Unusable as error:
                problems.append(str(error))
        known = (RUN_FILES if is_run else ()) + (TOP_FILES if path == folder else ())
        unread += [label(name, file) for file in files if file not in known and path.name != "checkpoint"]
    if required and not runs and not problems:
        raise InputError(f"{folder}: no run here (a run folder holds config.json and metrics.jsonl)")
    problems += [f"{label(run.name)}: no evaluations, so no score" for run in runs if not run.evaluated]
    return Results(tuple(runs), weights, tuple(problems), tuple(unread))


def walk(folder: Path, skip: Collection[str] = ()) -> list[tuple[Path, list[str]]]:
    """Folders and their files in a fixed order; what is hidden is left out, as are files half written."""
    found = []
    for path, folders, files in os.walk(folder):
        here = skip if Path(path) == folder else ()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in here)
        found.append((Path(path), sorted(name for name in files if not name.startswith("."))))
    return sorted(found)


def label(folder: str, file: str = "") -> str:
    """A file's name for the reader, without the place of the results folder on this machine."""
    parts = [part for part in (folder, file) if part not in ("", ".")]
    return "/".join(parts) or "this folder"


def read_run(path: Path, name: str) -> Run:
    config = read_config(path / "config.json", label(name, "config.json"))
    where = label(name, "metrics.jsonl")
    rows = read_rows(path / "metrics.jsonl", where, len(config["members"]))
    members = tuple(read_member(index, config, rows, where) for index in range(len(config["members"])))
    schedules = {tuple(member.iteration.tolist()) for member in members}
    if len(schedules) > 1:
        raise Unusable(f"{where}: the members were not evaluated at the same iterations; the run is not finished")
    last = max((row["iteration"] for row in rows), default=0)
    evaluated_last = members[0].iteration[-1] if len(members[0].iteration) else last
    if last < config["iterations"] or evaluated_last < last:
        reached = min(last, int(evaluated_last))
        raise Unusable(f"{where}: the run is not finished ({reached:,} of {config['iterations']:,} iterations)")
    return Run(name, config, members)


def read_text(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Unusable(f"{where}: missing") from None
    except UnicodeDecodeError:
        raise Unusable(f"{where}: not text in UTF-8") from None
    except OSError as error:
        raise Unusable(f"{where}: not readable ({error.strerror})") from None


def parse(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Unusable(f"{where}: not JSON, or cut short") from None


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_config(path: Path, where: str) -> Row:
    config = parse(read_text(path, where), where)
    if not isinstance(config, dict):
        raise Unusable(f"{where}: not the config of a run")
    members, environment = config.get("members"), config.get("environment")
    checks = {
        "algorithm": isinstance(config.get("algorithm"), str),
        "iterations": is_count(config.get("iterations")),
        "members": isinstance(members, list) and bool(members) and all(map(is_member, members)),
        "environment": environment is None
        or (isinstance(environment, dict) and isinstance(environment.get("id"), str)),
        "task": isinstance(config.get("task"), str | None),
    }
    for key, good in checks.items():
        if not good:
            raise Unusable(f"{where}: not the config of a run ({key} is missing or of the wrong type)")
    return config


def is_member(settings: Any) -> bool:
    return isinstance(settings, dict) and is_count(settings.get("seed")) and isinstance(settings.get("algorithm"), str)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST  # false for NaN, and safe for integers beyond floats


def read_rows(path: Path, where: str, num_members: int) -> list[Row]:
    rows, seen = [], set()
    for number, line in enumerate(read_text(path, where).splitlines(), start=1):
        here = f"{where}, line {number}"
        row = parse(line, here)
        if not isinstance(row, dict) or not is_count(row.get("iteration")) or not is_count(row.get("member")):
            raise Unusable(f"{here}: not a row of metrics (iteration or member is missing or of the wrong type)")
        if row["member"] >= num_members:
            raise Unusable(f"{here}: member {row['member']} of a run that has {num_members}")
        if "returns" in row:
            check_evaluation(row, here)
        key = (row["iteration"], row["member"], "returns" in row)
        if key in seen:
            raise Unusable(f"{here}: iteration {row['iteration']} of member {row['member']} is there twice")
        seen.add(key)
        rows.append(row)
    return rows


def check_evaluation(row: Row, here: str) -> None:
    returns, score = row["returns"], row.get("score")
    if not isinstance(returns, list) or not returns or not all(map(is_number, returns)):
        raise Unusable(f"{here}: returns must be a list of numbers, one an episode")
    if score is not None and not is_number(score):
        raise Unusable(f"{here}: score must be a number or null")


def read_member(index: int, config: Row, rows: list[Row], where: str) -> Member:
    own = sorted((row for row in rows if row["member"] == index), key=lambda row: row["iteration"])
    evaluations = [row for row in own if "returns" in row]
    scores = [row.get("score") for row in evaluations]
    if None in scores and any(score is not None for score in scores):
        raise Unusable(f"{where}: member {index} has a score in some evaluations and none in others")
    return Member(
        settings=config["members"][index],
        iteration=np.array([row["iteration"] for row in evaluations], np.int64),
        returns=np.array([np.mean(row["returns"]) for row in evaluations], np.float64),
        score=np.array(scores, np.float64) if scores and None not in scores else None,
        episodes=np.array([len(row["returns"]) for row in evaluations], np.int64),
        diagnostics=read_diagnostics([row for row in own if "returns" not in row]),
    )


def read_diagnostics(rows: list[Row]) -> dict[str, Curve]:
    """Losses and the like: every numeric column; null, which stands for NaN in the file, is a gap."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("iteration", "member"))
    iteration = np.array([row["iteration"] for row in rows], np.int64)
    curves = {
        name: np.array([row[name] if is_number(row.get(name)) else np.nan for row in rows], np.float64)
        for name in names
    }
    return {name: Curve(iteration, value) for name, value in curves.items() if not np.isnan(value).all()}


def read_weights(path: Path) -> Row:
    """The histograms that `demosift.report.weights.write_weights` wrote."""
    where = path.name
    content = parse(read_text(path, where), where)
    if not isinstance(content, dict) or not content or not all(map(is_histogram, content.values())):
        raise Unusable(f"{where}: not histograms of weights")
    return content


def is_histogram(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("origins"), list) or not value["origins"]:
        return False
    edges, separation = value.get("edges"), value.get("separation")
    if not isinstance(edges, list) or len(edges) < 2 or not all(map(is_number, edges)) or edges != sorted(set(edges)):
        return False
    if separation is not None and not (
        isinstance(separation, dict)
        and is_number(separation.get("auc"))
        and all(isinstance(separation.get(key), str) for key in ("better", "worse"))
    ):
        return False
    return all(is_origin(origin, len(edges) - 1) for origin in value["origins"])


def is_origin(value: Any, bins: int) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("counts"), list)
        and len(value["counts"]) == bins
        and all(map(is_count, value["counts"]))
        and is_count(value.get("rows"))
        and is_count(value.get("zero"))
        and value["rows"] == value["zero"] + sum(value["counts"])
        and is_number(value.get("weight_share"))
    )
