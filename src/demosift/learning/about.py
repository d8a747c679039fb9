"""What a method states beside its maths: how it is shown, and what an iteration costs. The report reads it: no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

ROBUST = "+robust"  # ends the name of a row of results whose method clones by the robust recipe


@dataclass(frozen=True)
class About:
    """How a method is shown to people."""

    name: str
    idea: str = ""  # one line
    colour: int | None = None  # its place in the report's palette; None takes one that no method has
    penalised: bool = False  # whether the paper's tables have a row for each gradient penalty
    iterations: int = 100_000  # how many it trains for when nobody says
    ensemble: int = 1  # how many networks act as one policy when nobody says
    contender: bool = True  # False for a row that uses what no method may know


class Work(NamedTuple):
    """The matrix products of one network in an iteration: how many rows it sees at once, and the FLOPs."""

    rows: int
    flops: float


def row_flops(hidden: Sequence[int]) -> int:
    """One row through the hidden-to-hidden products, once. The thin first and last layers are not counted."""
    return sum(2 * inputs * outputs for inputs, outputs in pairwise(hidden))


def forward_work(rows: int, hidden: Sequence[int]) -> Work:
    return Work(rows, rows * row_flops(hidden))


def cloning_work(rows: int, hidden: Sequence[int]) -> Work:
    """A forward pass, the input gradient and the weight gradient; `value_and_slope` costs as much, penalty included."""
    return Work(rows, 3 * rows * row_flops(hidden))
