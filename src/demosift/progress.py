"""How far long work is: lines with a bar on a terminal, and how long its stages took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Line:
    """One line of the display: what is done, how much of it, and a few words."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: int = 1) -> None:
        self._bars.advance(self._task, amount)
        self.update()

    def update(self, completed: float | None = None, text: str | None = None, total: float | None = None) -> None:
        self._bars.update(self._task, completed=completed, total=total)
        task = next(each for each in self._bars.tasks if each.id == self._task)
        if text is not None:
            task.fields["text"] = text
        task.fields["count"] = "" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f}"

    def remove(self) -> None:
        self._bars.remove_task(self._task)


class Progress:
    """A display on stderr. `show`: None shows it on a terminal only."""

    def __init__(self, show: bool | None = None, console: Console | None = None, transient: bool = False) -> None:
        self.console = console or Console(stderr=True)
        self.shown = self.console.is_terminal if show is None else show
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bars = Bars(*columns, console=self.console, disable=not self.shown, transient=transient)

    def line(self, what: str, total: float | None = None, completed: float = 0, text: str = "") -> Line:
        """A new line; without a total its end is not known."""
        line = Line(self._bars, self._bars.add_task(what, total=total, completed=int(completed), text=text, count=""))
        line.update()
        return line

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A line with a clock on a terminal, for work whose end is not known."""
    with Progress(transient=True) as display:
        display.line(what)
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


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
