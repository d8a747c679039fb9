"""The progress of a grid: cells done, running and failed, and the time left."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console

from demosift.experiments.program import Planned
from demosift.experiments.settling import Settled
from demosift.progress import Line, Progress, duration

SILENCE_SECONDS = 60.0


def title(program: Sequence[Planned]) -> str:
    """What a program trains, in a few words: `hopper, ant: wbcu x 30`."""
    envs = ", ".join(dict.fromkeys(each.cell.data.env for each in program))
    methods = ", ".join(dict.fromkeys(each.cell.method for each in program))
    return f"{envs}: {methods} \N{MULTIPLICATION SIGN} {len(program)}"


def work(program: Sequence[Planned]) -> float:
    """The FLOPs of a program's matrix products, to estimate the time left."""
    cell = program[0].cell
    flops = sum(part.flops for part in cell.algorithm.work())
    return max(1.0, flops) * cell.iterations * len(program)


@dataclass
class Running:
    """A program that is running."""

    title: str
    iterations: int
    work: float
    members: int
    line: Line
    position: int = 0
    start: int = 0
    began: float = 0.0

    @property
    def speed(self) -> str:
        seconds = time.monotonic() - self.began
        if self.position <= self.start:
            return "compiling"
        return f"{(self.position - self.start) * self.members / seconds:,.0f} it/s"


class View:
    """Counts, and shows them: live on a terminal, else a line when a program starts or ends, and one a minute."""

    def __init__(self, total: int, done: int, console: Console | None = None) -> None:
        self.display = Progress(console=console, transient=True)
        self.console = self.display.console
        self.total, self.done, self.failed = total, done, 0
        self.began = self.said = time.monotonic()
        self.running: dict[int, Running] = {}
        self.left = 0.0  # work of the programs that have not started
        self.spent = 0.0  # work done since the start
        self.cells = self.display.line("cells", total, done)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.__exit__()

    def queue(self, program: Sequence[Planned]) -> None:
        with self._lock:
            self.left += work(program)

    def start(self, number: int, program: Sequence[Planned]) -> Callable[[int], None]:
        """A program starts; call what is returned with each position that it reaches."""
        iterations = program[0].cell.iterations
        line = self.display.line(title(program), iterations, text="compiling")
        row = Running(title(program), iterations, work(program), len(program), line, began=time.monotonic())
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
                row.line.update(position, row.speed)
                self.cells.update(self.done, self.summary())
            if time.monotonic() - self.said > SILENCE_SECONDS:
                self.say(f"{row.title}: {position:,} of {row.iterations:,} iterations; {self.summary()}")

        return advanced

    def end(self, number: int, settled: Settled) -> None:
        with self._lock:
            row = self.running.pop(number)
            row.line.remove()
            self.done += settled.finished
            self.failed += settled.failed
            if not settled.ended:
                self.left += row.work * (1 - row.position / row.iterations)
        state = f"{settled.finished} cells finished" + (f", {settled.failed} failed" if settled.failed else "")
        if settled.halves:
            state = "failed as a whole; trying its halves"
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
        """Estimated from the rate since the start."""
        if not self.spent:
            return None
        rate = self.spent / (time.monotonic() - self.began)
        under_way = sum(row.work * (1 - row.position / row.iterations) for row in self.running.values())
        return (self.left + under_way) / rate
