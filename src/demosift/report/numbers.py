"""Numbers for readers: the same decimals throughout a column, a true minus sign, thousands separated."""

import math
from collections.abc import Sequence
from itertools import pairwise

from demosift.report.groups import Scale

MINUS, MISSING = "\N{MINUS SIGN}", "\N{EN DASH}"


def number(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return MISSING
    text = f"{value:,.{decimals}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.lstrip("-")


def ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Axis labels with as many decimals as the step between them needs, and no more."""
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    largest = max((abs(value) for value in values), default=0.0)
    if step < 1e-4 or largest >= 1e6:
        return [(value, rounded(value)) for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(value, number(value, decimals)) for value in values]


def power_of_ten(exponent: float) -> str:
    """10 to the exponent, in plain digits where they are few."""
    if -4 < exponent < 5:
        value = 10**exponent
        return (
            number(value, max(0, min(6, 1 - math.floor(exponent + 1e-9)))).rstrip("0").rstrip(".")
            if value < 10
            else number(value, 0)
        )
    whole = math.floor(exponent + 1e-9)
    factor = 10 ** (exponent - whole)
    superscript = str(whole).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{superscript}" if abs(factor - 1) < 1e-6 else f"{factor:.1f} \N{MULTIPLICATION SIGN} 10{superscript}"


def rounded(value: float) -> str:
    """Three significant figures, for axes and losses of any size."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("-", MINUS)
    return number(value, max(0, 2 - math.floor(math.log10(abs(value)))))


def measured(value: float, scale: Scale, decimals: int | None = None) -> str:
    """A score in percent of the way from a random policy to the expert, or a plain return."""
    decimals = decimals_of(value, scale) if decimals is None else decimals
    return number(100 * value if scale == "score" else value, decimals)


def decimals_of(value: float, scale: Scale) -> int:
    """One for a score; for a return, enough to show three figures."""
    return 1 if scale == "score" else 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def with_spread(centre: float, spread: float, scale: Scale) -> str:
    decimals = decimals_of(centre, scale)
    text = measured(centre, scale, decimals)
    return f"{text} ± {measured(spread, scale, decimals)}" if math.isfinite(spread) else text


def interval(low: float, high: float, scale: Scale) -> str:
    if not math.isfinite(low):
        return MISSING
    decimals = decimals_of(max(abs(low), abs(high)), scale)
    return f"{measured(low, scale, decimals)} to {measured(high, scale, decimals)}"


def count_of(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def compact(value: int) -> str:
    """Iterations on an axis: 25k, 1M."""
    for size, suffix in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return str(value)
