"""How far a long piece of work is, on a terminal, and how long its stages took."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int], None]
Begin = Callable[[str, int], Advance]


@contextmanager
def progress_bar(show: bool | None) -> Iterator[Begin]:
    """Yields a function that starts a line of the bar and returns what moves it. None shows it on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (console.is_terminal if show is None else show)) as bar:
        lines = {}

        def begin(what: str, total: int) -> Advance:
            if what not in lines:
                lines[what] = bar.add_task(what, total=total)
            return lambda done: bar.advance(lines[what], done)

        yield begin


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A line with a clock on a terminal, for work whose end is not known."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        bar.add_task(what, total=None)
        yield


class Stopwatch:
    """Seconds of consecutive stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.since = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What happened since the last one was this stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.since
        self.since = now
