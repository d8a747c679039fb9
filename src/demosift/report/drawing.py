"""How figures look and are written: one style, the page's colours, and the same bytes for the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from demosift.files import atomic_write

# The page's colours, by the number that a method has there.
PALETTE = ("#6b7078", "#ee7733", "#33a5dd", "#0068a8", "#cc3311", "#d62976", "#009988", "#7a5ba8")
PALETTE += ("#117733", "#999933", "#332288", "#882255", "#aa4499", "#b8963e", "#6e4a2f", "#4a7c8c")
STYLE: dict[str, Any] = {
    "svg.hashsalt": "demosift",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def style(**changes: Any) -> Iterator[None]:
    """A context to draw and save in. It starts from matplotlib's defaults, whatever the user's own settings are."""
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE, **changes}
    with mpl.rc_context(settings):
        yield


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    with style():
        yield Figure(figsize=(width, height), layout="constrained")


def save(drawn: Figure, path: Path) -> None:
    """Write `path` as .svg and .png, without a date in either."""
    for suffix in ("svg", "png"):
        with atomic_write(path.with_suffix(f".{suffix}")) as temporary:
            drawn.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
        drawn.set_layout_engine("none")  # one layout for both: it takes as long as drawing
