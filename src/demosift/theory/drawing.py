"""How the claims' pictures look: one style, the report's colours, and the same SVG for the same numbers."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#1c1e21"
SOFT = "#5c636b"
RULE = "#e3e5e8"
# As on the report's page, where a method has the same colour everywhere.
PALETTE = ("#6b7078", "#ee7733", "#33a5dd", "#0068a8", "#cc3311", "#d62976", "#009988", "#7a5ba8")
COLOURS = {
    "bc": PALETTE[0],
    "nbcu": PALETTE[1],
    "wbcu": PALETTE[2],
    "wbcu-linear": PALETTE[3],
    "demodice": PALETTE[4],
    "dwbc": PALETTE[5],
    "good": PALETTE[6],
    "bound": PALETTE[7],
    "expert": INK,
}
WIDTH, HEIGHT = 6.4, 3.6  # inches


@contextmanager
def style(name: str) -> Iterator[None]:
    """Draw and save within this: `name` makes the identifiers inside an SVG its own, so that a page can hold many."""
    settings: dict[Any, Any] = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8.0,
        "lines.linewidth": 1.6,
        "lines.markersize": 4.0,
    }
    inked = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with mpl.rc_context({**mpl.rcParamsDefault, **settings, **dict.fromkeys(inked, INK)}):
        yield


def panels(columns: int = 1, rows: int = 1, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure with its axes in reading order."""
    figure = Figure(figsize=(WIDTH if columns < 3 else 1.3 * WIDTH, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def to_files(figure: Figure, name: str) -> dict[str, bytes]:
    """The picture as SVG and as PNG. No clock in either."""
    files = {}
    with style(name):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now; again for each file would take most of the time
        for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
            files[suffix] = buffer.getvalue()
    return files


def inline(svg: str, name: str) -> str:
    """An SVG file as a part of a page: no background, identifiers of its own, the page's colours, light or dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\1{name}-", svg)
    for index, colour in enumerate(PALETTE):
        svg = svg.replace(colour, f"var(--c{index})")
    for colour, of_page in ((INK, "currentColor"), (SOFT, "var(--soft)"), (RULE, "var(--rule)"), ("#ffffff", "none")):
        svg = svg.replace(colour, of_page)
    return svg
