"""A cell's result file, `cells/ID.json`: how it is sealed, checked and read.

The file holds what was run (`config`), a digest of the data it was run on, every evaluation with all episode returns,
and where and how it was made. Its name is the hash of the config and the data, and a digest covers every digit: a file
that was edited, damaged or misplaced is refused by name.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demosift.results.reading import (
    Curve,
    Member,
    Row,
    Run,
    Unusable,
    check_evaluation,
    is_count,
    is_number,
    parse,
    read_text,
)

FORMAT = "demosift cell 1"
CELLS, FAILURES, GRIDS, UNFINISHED = "cells", "failures", "grids", "unfinished"


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


def cell_id(config: Mapping[str, Any], data_sha256: str) -> str:
    """What a cell is: its config and the data it trains on. Sixteen hexadecimal digits."""
    return hashlib.sha256(canonical([config, data_sha256]).encode()).hexdigest()[:16]


def seal(content: Mapping[str, Any]) -> Row:
    """The content with its own digest."""
    bare = {key: value for key, value in content.items() if key != "digest"}
    return {**bare, "digest": hashlib.sha256(canonical(bare).encode()).hexdigest()}


def read_cell(path: Path, where: str) -> Row:
    """A cell's file, whole and as it was written, or `Unusable`."""
    content = parse(read_text(path, where), where)
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
    if cell_id(config, str(data.get("sha256"))) != content.get("id") or path.stem != content.get("id"):
        raise Unusable(f"{where}: the id does not belong to its config and data")
    return content


def cell_run(content: Row, where: str) -> Run:
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
    iteration = np.array([row["iteration"] for row in evaluations], np.int64)
    if (np.diff(iteration) <= 0).any() or iteration[-1] != config["iterations"]:
        raise Unusable(f"{where}: the evaluations do not end at the last iteration")
    returns = np.array([np.mean(row["returns"]) for row in evaluations], np.float64)
    member = Member(
        settings={"algorithm": config["method"], **config["settings"], "seed": config["seed"]},
        iteration=iteration,
        returns=returns,
        score=normalised(returns, content.get("reference"), where),
        episodes=np.array([len(row["returns"]) for row in evaluations], np.int64),
        diagnostics=cell_diagnostics(evaluations, iteration),
    )
    described = {
        "algorithm": config["method"],
        "members": [member.settings],
        "environment": content["environment"],
        "task": config["task"],
        "iterations": config["iterations"],
        "normalise": config.get("normalise"),
        "precision": config.get("precision"),
        "data": [content["data"]],
        "reference": content.get("reference"),
        "versions": content.get("versions"),
    }
    return Run(where, described, (member,))


def normalised(returns: np.ndarray, reference: Any, where: str) -> np.ndarray | None:
    """By the random and expert returns that the cell names; None where it names none."""
    if reference is None:
        return None
    known = reference if isinstance(reference, dict) else {}
    random, expert = (float(known[who]) if is_number(known.get(who)) else np.nan for who in ("random", "expert"))
    if not abs(expert - random) > 0:
        raise Unusable(f"{where}: reference does not name two different returns, random and expert")
    return (returns - random) / (expert - random)


def cell_diagnostics(evaluations: list[Row], iteration: np.ndarray) -> dict[str, Curve]:
    """What training measured just before each evaluation."""
    metrics = [row["metrics"] if isinstance(row.get("metrics"), dict) else {} for row in evaluations]
    names = dict.fromkeys(name for row in metrics for name in row)
    values = {
        name: np.array([row[name] if is_number(row.get(name)) else np.nan for row in metrics], np.float64)
        for name in names
    }
    return {name: Curve(iteration, value) for name, value in values.items() if not np.isnan(value).all()}
