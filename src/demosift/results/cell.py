"""The files that `demosift reproduce` writes for a grid: how each is written, checked and read.

cells/ID.json       a finished cell: what was run (`config`), a digest of its data, every evaluation with all episode
                    returns, and where and how it was made
failures/ID.json    a cell that failed, with the traceback
grids/NAME.json     the ids of the cells that a preset asked for
coverage/ENV.json   where the good and the noisy states of a task lie

A cell's name is the hash of its config and data, and a digest covers every digit: a file that was edited, damaged or
misplaced is refused by name.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demosift.files import Unusable, atomic_write, canonical, mismatch, read_json, write_json
from demosift.results.measured import (
    MeasuredRun,
    Row,
    check_evaluation,
    is_count,
    is_number,
    make_curves,
    make_member,
)

FORMAT = "demosift cell 1"
CELLS, FAILURES, GRIDS, UNFINISHED = "cells", "failures", "grids", "unfinished"
COVERAGE, SAC_CURVES = "coverage", "sac-curves"
FAILURE = {
    "config": {"method": str, "task": str, "seed": is_count},
    "failure": lambda text: isinstance(text, str) and bool(text.strip()),
}


class Failure(NamedTuple):
    cell: str  # in words
    reason: str  # the last line of the traceback


def cell_id(config: Mapping[str, Any], data_sha256: str) -> str:
    """A hash of a cell's config and the data it trains on: sixteen hexadecimal digits."""
    return hashlib.sha256(canonical([config, data_sha256]).encode()).hexdigest()[:16]


def data_digest(description: Mapping[str, Any]) -> str:
    """The part of the data's description that an id hashes. Earlier results lack where sets and episodes end."""
    rows, ends = description.get("sha256"), description.get("ends_sha256")
    return str(rows) if ends is None else canonical([rows, ends])


def seal(content: Mapping[str, Any]) -> Row:
    """The content with its own digest."""
    bare = {key: value for key, value in content.items() if key != "digest"}
    return {**bare, "digest": hashlib.sha256(canonical(bare).encode()).hexdigest()}


def write_cell(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(lines_of(seal({"format": FORMAT, **content})), encoding="utf-8")


def lines_of(content: Mapping[str, Any]) -> str:
    """JSON with a line for every key and every evaluation: small, with readable diffs."""
    lines = []
    for key in sorted(content):
        value = content[key]
        if key == "evaluations":
            text = "[\n  " + ",\n  ".join(canonical(row) for row in value) + "\n ]"
        else:
            text = canonical(value)
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_cell(path: Path, where: str) -> Row:
    """A cell's file, whole and as it was written, or `Unusable`."""
    content = read_json(path, where)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Unusable(f"{where}: not the result of a cell")
    try:
        whole = seal(content)["digest"] == content.get("digest")
    except ValueError:
        whole = False
    if not whole:
        raise Unusable(f"{where}: damaged: its content does not match its digest")
    config, data = content.get("config"), content.get("data")
    if not isinstance(config, dict) or not isinstance(data, dict):
        raise Unusable(f"{where}: not the result of a cell (config or data is missing)")
    if cell_id(config, data_digest(data)) != content.get("id") or path.stem != content.get("id"):
        raise Unusable(f"{where}: the id does not belong to its config and data")
    return content


def write_failure(path: Path, content: Mapping[str, Any]) -> None:
    write_json(path, dict(content))


def read_failure(path: Path, where: str) -> Failure:
    content = read_json(path, where)
    if mismatch(content, FAILURE) is not None:
        raise Unusable(f"{where}: not the record of a failure")
    config, reason = content["config"], content["failure"].strip().splitlines()[-1]
    return Failure(f"{config['method']} on {config['task']}, seed {config['seed']}", reason)


def write_grid(path: Path, ids: Iterable[str]) -> None:
    """Record which cells a grid's tables show. The file is named after the grid."""
    write_json(path, {"grid": path.stem, "cells": sorted(set(ids))})


def read_grid(path: Path, where: str) -> list[str]:
    content = read_json(path, where)
    ids = content.get("cells") if isinstance(content, dict) and content.get("grid") == path.stem else None
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids) or len(set(ids)) != len(ids):
        raise Unusable(f"{where}: not the list of a grid's cells")
    return ids


def write_coverage(path: Path, content: Mapping[str, Any]) -> None:
    """Points (x, y) of the good and the noisy states, and how far the two mix."""
    write_json(path, dict(content))


def read_coverage(path: Path, where: str, known: Container[str]) -> Row:
    content = read_json(path, where)
    points = (content.get("good"), content.get("noisy")) if isinstance(content, dict) else ()
    if path.stem in known and points and is_number(content.get("mixing")) and all(map(are_points, points)):
        return content
    raise Unusable(f"{where}: not the state coverage of an environment")


def are_points(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(point, list) and len(point) == 2 and all(map(is_number, point)) for point in value)
    )


def cell_run(content: Row, where: str) -> MeasuredRun:
    """A cell as a run of one member, for the page and the tables."""
    config = content["config"]
    evaluations = content.get("evaluations")
    checks = {
        "iterations": is_count(config.get("iterations")),
        "seed": is_count(config.get("seed")),
        "method": isinstance(config.get("method"), str),
        "task": isinstance(config.get("task"), str),
        "settings": isinstance(config.get("settings"), dict),
        "environment": isinstance(content.get("environment"), dict)
        and isinstance(content["environment"].get("id"), str),
        "evaluations": isinstance(evaluations, list) and bool(evaluations),
    }
    for key, good in checks.items():
        if not good:
            raise Unusable(f"{where}: {key} is missing or of the wrong type")
    assert isinstance(evaluations, list)
    for number, row in enumerate(evaluations):
        here = f"{where}, evaluation {number}"
        if not isinstance(row, dict) or not is_count(row.get("iteration")) or "returns" not in row:
            raise Unusable(f"{here}: not an evaluation")
        check_evaluation(row, here)
    iteration = [row["iteration"] for row in evaluations]
    if (np.diff(iteration) <= 0).any() or iteration[-1] != config["iterations"]:
        raise Unusable(f"{where}: the evaluations do not end at the last iteration")
    # What training measured just before each evaluation.
    metrics = [row["metrics"] if isinstance(row.get("metrics"), dict) else {} for row in evaluations]
    settings = {"algorithm": config["method"], **config["settings"], "seed": config["seed"]}
    member = make_member(settings, evaluations, make_curves(iteration, metrics))
    member = replace(member, score=normalised(member.returns, content.get("reference"), where))
    described = {
        "algorithm": config["method"],
        "members": [member.settings],
        "environment": content["environment"],
        "task": config["task"],
        "iterations": config["iterations"],
        "normalise": config.get("normalise"),
        "precision": config.get("precision"),
        "ensemble": config.get("ensemble", 1),
        "expert_actions": config.get("expert_actions", True),
        "data": [content["data"]],
        "reference": content.get("reference"),
        "versions": content.get("versions"),
    }
    return MeasuredRun(where, described, (member,))


def normalised(returns: np.ndarray, reference: Any, where: str) -> np.ndarray | None:
    """Scores by the random and expert returns that the cell states; None where it states none."""
    if reference is None:
        return None
    known = reference if isinstance(reference, dict) else {}
    random, expert = (float(known[who]) if is_number(known.get(who)) else np.nan for who in ("random", "expert"))
    if not abs(expert - random) > 0:
        raise Unusable(f"{where}: reference does not name two different returns, random and expert")
    return (returns - random) / (expert - random)
