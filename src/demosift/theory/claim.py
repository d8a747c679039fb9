"""What a checked claim is: a statement of the paper, a computation that could refute it, and a picture of it.

A check is a plain function `check(rng, scale, ...) -> Finding`. Its further arguments have defaults: the learner, the
bound or the instances that it is about. A test passes broken ones and sees the verdict turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Finding:
    """What a check found, as JSON can hold it: lists and numbers, no arrays."""

    holds: bool
    instances: int  # how many cases were computed
    slack: float  # the smallest room left over all of them, in the claim's own unit; negative: refuted
    measure: str  # what the slack measures, such as "bound / gap - 1" or "1e-12 - largest difference"
    numbers: Mapping[str, Any] = field(default_factory=dict)  # further numbers, for the table, the page and the figure
    counterexample: Mapping[str, Any] | None = None  # the instance that refutes it, where one was found


Check = Callable[..., Finding]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper. `name` is its key in files and on the command line."""

    name: str  # such as "bc-bound"
    title: str  # such as "Behavioural cloning's imitation gap"
    cites: str  # where the paper says so, such as "Theorem 1 (Section 4.1), proof in Appendix A.1"
    statement: str  # in plain words, for a student; plain text, no markup
    check: Check  # check(rng, scale): `scale` multiplies the number of instances; 1.0 is what `demosift theory` runs
    draw: Callable[[Finding], Figure] | None = None  # the picture, from the finding's numbers alone
    amendment: str = ""  # what of the paper's statement is checked in another form than it is printed, and why
    slow: bool = False  # begun before the others, so that two processes end at about the same time


def generator(seed: int, name: str) -> np.random.Generator:
    """A claim's own random numbers: the same whichever other claims run."""
    return np.random.default_rng([seed, *name.encode()])
