"""How the claims' pictures look: the report's style and colours, and the same SVG for the same numbers."""

import io
import re

from matplotlib.figure import Figure

from demosift.report import drawing
from demosift.report.drawing import PALETTE
from demosift.theory.claim import Claim, Numbers

INK = "#1c1e21"
SOFT = "#5c636b"
RULE = "#e3e5e8"
COLOURS = {
    **dict(zip(("bc", "nbcu", "wbcu", "wbcu-linear", "demodice", "dwbc", "good", "bound"), PALETTE, strict=False)),
    "expert": INK,
}
ALARM = PALETTE[4]
WIDTH, HEIGHT = 6.4, 3.6  # inches
# Beyond the report's style: these figures are read beside text, where a grid and the page's ink help.
OWN_STYLE = {
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}


def to_files(claim: Claim, numbers: Numbers) -> dict[str, bytes]:
    """The claim's picture as SVG and as PNG. No clock in either."""
    files = {}
    # With its own salt the identifiers inside an SVG are its own, so that a page can hold many.
    with drawing.style(**OWN_STYLE, **{"svg.hashsalt": claim.name}):
        size = (1.3 * WIDTH, 3.2) if claim.panels == 3 else (WIDTH, HEIGHT)
        figure = Figure(figsize=size, layout="constrained")
        claim.draw(numbers, *figure.subplots(1, claim.panels, squeeze=False).flat)
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
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg\b[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\1{name}-", svg)
    of_page = {colour: f"var(--c{index})" for index, colour in enumerate(PALETTE)}
    of_page |= {INK: "currentColor", SOFT: "var(--soft)", RULE: "var(--rule)", "#ffffff": "none"}
    for colour, replacement in of_page.items():
        svg = svg.replace(colour, replacement)
    return svg
