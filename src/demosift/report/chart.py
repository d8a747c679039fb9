"""One chart as HTML: an SVG that stretches with the page, and axis labels that do not stretch with it.

Everything is drawn here, so that the page can be read without JavaScript and printed. `page.js` adds the cursor and the
toggles, from a JSON block of formatted numbers beside the drawing.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float

SIZE = 1000  # the drawing's own units; the page stretches them to the space there is
FEWEST_DOTS = 60  # with more points than this, dots would hide the line

Values = Float[np.ndarray, "points"]


@dataclass(frozen=True)
class Line:
    """One line with an optional band. NaN is a gap. `key` is shared by the lines that one legend entry toggles."""

    key: str
    name: str
    style: str  # CSS classes
    x: Values
    y: Values
    title: Sequence[str]  # per stop, what the cursor shows above the values
    value: Sequence[str]  # per stop, what it shows for this line
    low: Values | None = None
    high: Values | None = None
    note: str = ""  # beside the name in the legend
    filled: bool = False
    stops: Values | None = None  # where the cursor stops; None: at every point


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def place(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    references: Sequence[tuple[float, str]] = ()
    window: tuple[float, float] | None = None  # a stretch of x to shade
    small: bool = False

    def across(self, values: Values) -> list[float]:
        """Where values of x lie in the drawing."""
        return [SIZE * self.x.place(value) for value in values.tolist()]

    def down(self, values: Values) -> list[float]:
        """Where values of y lie in the drawing, whose top is zero."""
        return [SIZE * (1 - self.y.place(value)) for value in values.tolist()]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within the range, about `count` of them."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def padded(values: Sequence[float] | Values, share: float = 0.05) -> tuple[float, float]:
    """The range of the finite values with a margin; never empty."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    margin = (high - low) * share or abs(high) * share or 1.0
    return low - margin, high + margin


def embed(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render(chart: Chart) -> str:
    drawing = [*grid(chart), *(draw(chart, line) for line in chart.lines)]
    references = "".join(tick("top", 1 - chart.y.place(value), text) for value, text in chart.references)
    y_ticks = "".join(tick("top", 1 - chart.y.place(value), text) for value, text in chart.y.ticks)
    x_ticks = "".join(tick("left", chart.x.place(value), text) for value, text in chart.x.ticks)
    return (
        f'<figure class="chart{" small" if chart.small else ""}" tabindex="0" aria-label="{escape(chart.title)}">'
        f"<figcaption>{escape(chart.title)}</figcaption>{legend(chart)}"
        f'<div class="frame"><div class="y-ticks">{y_ticks}</div><div class="plot">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" aria-hidden="true">{"".join(drawing)}</svg>'
        '<div class="cursor" hidden></div><div class="tip" hidden></div></div>'
        f'<div class="references">{references}</div>'
        f'<div class="x-ticks">{x_ticks}</div><div class="x-label">{escape(chart.x_label)}</div></div>'
        f'<script type="application/json">{embed(payload(chart))}</script></figure>\n'
    )


def tick(side: str, share: float, text: str) -> str:
    return f'<span style="{side}:{percent(share)}">{escape(text)}</span>'


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def grid(chart: Chart) -> list[str]:
    parts = []
    if chart.window:
        left, right = (SIZE * chart.x.place(value) for value in chart.window)
        parts.append(f'<rect class="window" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{SIZE}"/>')
    marked = [value for value, _ in chart.references]
    levels = [(value, "grid") for value, _ in chart.y.ticks if value not in marked]
    levels += [(value, "reference") for value in marked]
    for value, kind in levels:
        y = SIZE * (1 - chart.y.place(value))
        parts.append(f'<path class="{kind}" d="M0 {y:.1f}H{SIZE}"/>')
    return parts


def draw(chart: Chart, line: Line) -> str:
    x, y = chart.across(line.x), chart.down(line.y)

    def points(run: Iterable[int], heights: Sequence[float]) -> str:
        return " ".join(f"{x[i]:.1f} {heights[i]:.1f}" for i in run)

    parts = []
    if line.low is not None and line.high is not None:
        low, high = chart.down(line.low), chart.down(line.high)
        for run in unbroken(low):
            parts.append(f'<path class="band" d="M{points(run, high)} {points(reversed(run), low)}Z"/>')
    runs = unbroken(y)
    if line.filled:
        floor = f"{SIZE * (1 - chart.y.place(0.0)):.1f}"
        area = [f"M{x[run[0]]:.1f} {floor} {points(run, y)} {x[run[-1]]:.1f} {floor}Z" for run in runs]
        parts.append(f'<path class="band" d="{"".join(area)}"/>')
    path = "".join(f"M{points(run, y)}" for run in runs)
    parts.append(f'<path class="stroke" d="{path}"/>')
    if len(x) <= FEWEST_DOTS and not line.filled:
        dots = "".join(f"M{x[i]:.1f} {y[i]:.1f}h0" for run in runs for i in run)
        parts.append(f'<path class="dots" d="{dots}"/>')
    return f'<g class="{line.style}" data-key="{escape(line.key)}">{"".join(parts)}</g>'


def unbroken(values: Sequence[float]) -> list[list[int]]:
    """The stretches of indices between gaps."""
    runs: list[list[int]] = [[]]
    for index, value in enumerate(values):
        if math.isfinite(value):
            runs[-1].append(index)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def legend(chart: Chart) -> str:
    if chart.small:
        return ""
    keys = "".join(
        f'<button type="button" class="key {line.style}" data-key="{escape(line.key)}" aria-pressed="true">'
        f'<svg class="swatch" viewBox="0 0 22 10" aria-hidden="true"><path class="stroke" d="M1 5H21"/></svg>'
        f"{escape(line.name)}{f' <b>{escape(line.note)}</b>' if line.note else ''}</button>"
        for line in chart.lines
    )
    return f'<div class="legend">{keys}</div>'


def payload(chart: Chart) -> dict[str, Any]:
    """What `page.js` needs of the lines."""
    lines = []
    for line in chart.lines:
        stops = (line.x if line.stops is None else line.stops).tolist()
        places = [round(chart.x.place(value), 4) for value in stops]
        named = {"key": line.key, "name": line.name, "style": line.style}
        lines.append({**named, "x": places, "title": list(line.title), "value": list(line.value)})
    return {"lines": lines}
