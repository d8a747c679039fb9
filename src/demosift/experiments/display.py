"""What a grid is doing, for somebody who watches: cells done, running, failed, time left."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demosift.experiments.ledger import Settled
from demosift.experiments.program import Planned

# Work of a member's iteration in matrix products, relative to BC's (benchmarks/README.md): for a first guess.
WORK = {"bc": 1.0, "nbcu": 1.0, "dwbc": 2.7, "wbcu": 5.6, "wbcu-two-stage": 2.0, "demodice": 23.0}
SILENCE_SECONDS = 60.0


def title(program: Sequence[Planned]) -> str:
    """What a program trains, in a few words: `hopper, ant: wbcu x 30`."""
    envs = ", ".join(dict.fromkeys(each.cell.data.env for each in program))
    methods = ", ".join(dict.fromkeys(each.cell.method for each in program))
    return f"{envs}: {methods} \N{MULTIPLICATION SIGN} {len(program)}"


def work(program: Sequence[Planned]) -> float:
    cell = program[0].cell
    return WORK.get(cell.algorithm.name, 5.0) * cell.iterations * len(program)


@dataclass
class Row:
    title: str
    iterations: int
    work: float
    members: int
    position: int = 0
    start: int = 0
    began: float = 0.0


class View:
    """Counts, and shows them: live on a terminal, else a line when a program starts or ends, and one a minute."""

    def __init__(self, total: int, done: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.total, self.done, self.failed = total, done, 0
        self.began = self.said = time.monotonic()
        self.running: dict[int, Row] = {}
        self.left = 0.0  # work of the programs that have not started
        self.spent = 0.0  # work done since the start
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def queue(self, program: Sequence[Planned]) -> None:
        with self._lock:
            self.left += work(program)

    def start(self, number: int, program: Sequence[Planned]) -> Callable[[int], None]:
        """A program starts; tell the returned function how far it is."""
        row = Row(title(program), program[0].cell.iterations, work(program), len(program), began=time.monotonic())
        with self._lock:
            self.left -= row.work
            self.running[number] = row
        self.say(f"{row.title}: started")

        def advanced(position: int) -> None:
            with self._lock:
                if not row.start:
                    row.start, row.began = position, time.monotonic()  # compiling is not training
                else:
                    self.spent += row.work * (position - row.position) / row.iterations
                row.position = position
            if time.monotonic() - self.said > SILENCE_SECONDS:
                self.say(f"{row.title}: {position:,} of {row.iterations:,} iterations; {self.summary()}")

        return advanced

    def end(self, number: int, settled: Settled) -> None:
        with self._lock:
            row = self.running.pop(number)
            self.done += settled.finished
            self.failed += settled.failed
            if not settled.ended:
                self.left += row.work * (1 - row.position / row.iterations)
        state = f"{settled.finished} cells finished" + (f", {settled.failed} failed" if settled.failed else "")
        if settled.halves:
            state = "failed as a whole; its halves are tried"
        elif not settled.ended:
            state = f"stopped at iteration {row.position:,} of {row.iterations:,}"
        self.say(f"{row.title}: {state}; {self.summary()}")

    def say(self, line: str) -> None:
        self.said = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def summary(self) -> str:
        running = sum(row.members for row in self.running.values())
        left = self.seconds_left()
        parts = [f"{self.done} of {self.total} cells done", f"{running} running", f"{self.failed} failed"]
        return ", ".join(parts + ([] if left is None else [f"about {duration(left)} left"]))

    def seconds_left(self) -> float | None:
        """From the rate since the start."""
        if not self.spent:
            return None
        rate = self.spent / (time.monotonic() - self.began)
        under_way = sum(row.work * (1 - row.position / row.iterations) for row in self.running.values())
        return (self.left + under_way) / rate

    def render(self) -> RenderableType:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            for row in self.running.values():
                seconds = time.monotonic() - row.began
                rate = (row.position - row.start) * row.members / seconds if row.position > row.start else 0.0
                table.add_row(
                    Text(row.title),
                    ProgressBar(total=row.iterations, completed=row.position, width=30),
                    Text(f"{row.position:,}/{row.iterations:,}"),
                    Text(f"{rate:,.0f} it/s" if rate else "compiling"),
                )
            return Group(table, Text(self.summary()))


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
