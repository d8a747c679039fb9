"""The measurements of a run or a cell, as the report reads them, and the checks that their numbers pass first.

A run is used whole or not at all: whatever is damaged or unfinished is refused in one line that names the file, so that
nothing is silently averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.files import Unusable

LARGEST = 1e100  # beyond this a number is damage, and would overflow the arithmetic of the report

Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One quantity over training. NaN where it was not measured."""

    iteration: Int[np.ndarray, "points"]
    value: Float[np.ndarray, "points"]


@dataclass(frozen=True)
class Member:
    """The measurements of one seed of one setting. `score` is None where no reference return is known."""

    settings: Mapping[str, Any]
    iteration: Int[np.ndarray, "evaluations"]
    returns: Float[np.ndarray, "evaluations"]
    score: Float[np.ndarray, "evaluations"] | None
    episodes: Int[np.ndarray, "evaluations"]
    diagnostics: Mapping[str, Curve]


@dataclass(frozen=True)
class MeasuredRun:
    """A cell is a run of one member."""

    name: str  # the folder or file, relative to the results folder
    config: Mapping[str, Any]
    members: tuple[Member, ...]

    @property
    def evaluated(self) -> bool:
        return len(self.members[0].iteration) > 0


def make_member(
    settings: Mapping[str, Any],
    evaluations: Sequence[Row],
    diagnostics: Mapping[str, Curve],
    scores: Sequence[float] | None = None,
) -> Member:
    """From evaluations that passed `check_evaluation`."""
    return Member(
        settings=settings,
        iteration=np.array([row["iteration"] for row in evaluations], np.int64),
        returns=np.array([np.mean(row["returns"]) for row in evaluations], np.float64),
        score=None if scores is None else np.array(scores, np.float64),
        episodes=np.array([len(row["returns"]) for row in evaluations], np.int64),
        diagnostics=diagnostics,
    )


def make_curves(iteration: Sequence[int], rows: Sequence[Row]) -> dict[str, Curve]:
    """Losses and other metrics: every numeric column. A null, which stands for NaN in the file, is a gap."""
    at = np.array(iteration, np.int64)
    names = dict.fromkeys(name for row in rows for name in row if name not in ("iteration", "member"))
    values = {
        name: np.array([row[name] if is_number(row.get(name)) else np.nan for row in rows], np.float64)
        for name in names
    }
    return {name: Curve(at, value) for name, value in values.items() if not np.isnan(value).all()}


def check_evaluation(row: Row, here: str) -> None:
    returns, score = row["returns"], row.get("score")
    if not isinstance(returns, list) or not returns or not all(map(is_number, returns)):
        raise Unusable(f"{here}: returns must be a list of numbers, one per episode")
    if score is not None and not is_number(score):
        raise Unusable(f"{here}: score must be a number or null")


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST  # false for NaN, and safe for integers beyond floats


def label(folder: str, file: str = "") -> str:
    """A file's name for the reader, relative to the results folder."""
    parts = [part for part in (folder, file) if part not in ("", ".")]
    return "/".join(parts) or "this folder"
