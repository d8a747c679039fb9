"""What a checked claim is: a statement of the paper, a computation that could refute it, and a picture of it.

A check is a plain function `check(rng, scale, ...) -> Finding`. Its further arguments have defaults: the learner, the
bound or the instances that it is about. A test passes broken ones and sees the verdict turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What a check found, as JSON can hold it: lists and numbers, no arrays."""

    holds: bool
    instances: int  # how many cases were computed
    slack: float  # the smallest room left over all of them, in the claim's own unit; negative: refuted
    measure: str  # what the slack measures, such as "bound / gap - 1" or "1e-12 - largest difference"
    numbers: Numbers = field(default_factory=dict)  # further numbers, for the table, the page and the figure
    counterexample: Numbers | None = None  # the instance that refutes the claim, where one was found


@dataclass
class Tightest:
    """The instance that leaves the least room among those that a check has seen."""

    room: float = np.inf
    instance: dict[str, Any] = field(default_factory=dict)

    def see(self, room: float, /, **instance: Any) -> None:
        if room < self.room:
            self.room, self.instance = room, instance

    def finding(self, instances: int, measure: str, numbers: Numbers, wrong: float | None = None) -> Finding:
        """The claim holds if there is room. `wrong` is the (negative) slack where something else is wrong."""
        slack = float(self.room) if wrong is None else wrong
        return Finding(slack >= 0.0, instances, slack, measure, numbers, self.instance if slack < 0.0 else None)


Check = Callable[..., Finding]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper. `name` is its key in files and on the command line."""

    name: str  # such as "bc-bound"
    title: str  # such as "Behavioural cloning's imitation gap"
    cites: str  # where the paper says so, such as "Theorem 1 (Section 4.1), proof in Appendix A.1"
    statement: str  # in plain words, for a student; plain text, no markup
    check: Check  # check(rng, scale): `scale` multiplies the number of instances; 1.0 is what `demosift theory` runs
    draw: Callable[..., None]  # draw(numbers, *axes): the picture, from the finding's numbers alone
    panels: int = 1  # how many axes the picture has, side by side
    amendment: str = ""  # which part of the printed statement is checked in another form, and why
    slow: bool = False  # starts before the others, so that two processes end at about the same time


def generator(seed: int, name: str) -> np.random.Generator:
    """A claim's own random numbers: the same whichever other claims run."""
    return np.random.default_rng([seed, *name.encode()])
