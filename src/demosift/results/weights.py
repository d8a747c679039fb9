"""`weights.json` at the top of a results folder: how weights are distributed over samples of known origin.

It maps a method's registered name to a histogram that `demosift.report.weights.weight_histogram` made.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demosift.files import Unusable, read_json, write_json
from demosift.results.measured import Row, is_count, is_number

WEIGHTS = "weights.json"


def write_weights(folder: str | os.PathLike[str], histograms: Mapping[str, Mapping[str, Any]]) -> Path:
    path = Path(folder) / WEIGHTS
    write_json(path, dict(histograms))
    return path


def read_weights(folder: Path) -> Row:
    content = read_json(folder / WEIGHTS, WEIGHTS)
    if not isinstance(content, dict) or not content or not all(map(is_histogram, content.values())):
        raise Unusable(f"{WEIGHTS}: not histograms of weights")
    return content


def is_histogram(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("origins"), list) or not value["origins"]:
        return False
    if "separation" not in value:
        return False
    edges, separation = value.get("edges"), value["separation"]
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
