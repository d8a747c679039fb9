"""Which numbers a user may give: one range for a flag, the function behind it and the settings of a method.

Counts have an upper bound where a slip of the keyboard would fill the memory before anything else is checked.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from demosift.errors import InputError

LARGEST = 3e38  # a float32


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; with `above`, `least` is not one of them."""

    least: float
    most: float
    whole: bool = False
    above: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value
        return self.least <= number <= self.most and not (self.above and number == self.least)  # NaN is nowhere

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if (self.least, self.most) == (-LARGEST, LARGEST):
            return f"{kind} that is finite"
        if self.most == LARGEST:
            return f"{kind} above {self.least:g}" if self.above else f"{kind} from {self.least:g} up"
        start = f"above {self.least:g}, at most" if self.above else f"from {self.least:,} to"
        return f"{kind} {start} {self.most:,}"

    def check(self, name: str, *values: Any) -> None:
        for value in values:
            if value not in self:
                raise InputError(f"{name}: {shown(value)} is not {self}")

    def read(self, text: str) -> Any:
        """The number that a text says."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = math.nan
        if value not in self:
            raise InputError(f"{shown(text)} is not {self}")
        return value


def shown(value: Any) -> str:
    """For a message: a value as it is written, as long as that is short."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def check_once(name: str, values: Iterable[Any]) -> None:
    """Refuse a value that is given twice: it would be computed, or counted, twice."""
    seen = []
    for value in values:
        if value in seen:
            raise InputError(f"{name}: {shown(value)} is given twice")
        seen.append(value)


def whole(least: int, most: int) -> Range:
    return Range(least, most, whole=True)


SEED = whole(0, 2**31 - 1)
STEPS = whole(1, 2**31 - 1)
STEPS_OR_NEVER = whole(0, 2**31 - 1)
EPISODES = whole(1, 100_000)
MEMBERS = whole(1, 1_000)  # seeds, networks of an ensemble: what is held in memory at once
MEMBER = whole(0, 999_999)  # the number of one of them
FOLDS = whole(2, 100)
POOL = whole(1, 10_000)
PROCESSES = whole(1, 1_024)
ROWS = whole(1, 10**9)
WIDTH = whole(1, 65_536)
LAYERS = whole(0, 64)  # to compile hundreds takes minutes
BATCH = whole(1, 2**20)

NUMBER = Range(-LARGEST, LARGEST)
NOT_NEGATIVE = Range(0, LARGEST)
POSITIVE = Range(0, LARGEST, above=True)
SHARE = Range(0, 1, above=True)
HALF = Range(0, 0.5, above=True)
UNIT = Range(0, 1)
SECONDS = Range(0, 1e9)
SCALE = Range(0, 1_000, above=True)
