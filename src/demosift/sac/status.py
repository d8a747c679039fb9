"""Where a collecting run stands, and the bar that shows it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from demosift.progress import Progress
from demosift.sac.choosing import Row
from demosift.sac.training import Training


@dataclass(frozen=True)
class Status:
    """Where a run stands: what the progress bar shows."""

    step: int
    steps: int
    steps_per_second: float  # of one agent
    simulating: float  # share of the time spent waiting for the simulators
    learning: float  # share of the time spent waiting for the device
    seconds_left: float
    returns: dict[str, float]  # the last evaluation of each environment, the mean over its seeds
    lengths: dict[str, float]
    temperature: float

    def __str__(self) -> str:
        returns = " ".join(f"{name} {value:.0f} ({self.lengths[name]:.0f})" for name, value in self.returns.items())
        return (
            f"step {self.step:,}/{self.steps:,}  {self.steps_per_second:.0f} steps/s  left {self.seconds_left:.0f} s  "
            f"waiting for simulation {self.simulating:.0%}, learning {self.learning:.0%}  "
            f"temperature {self.temperature:.3f}  return (length): {returns or 'none yet'}"
        )


Show = Callable[[Status], None]


def status(training: Training, curve: Sequence[Row], total_rounds: int) -> Status:
    speed = training.speed()
    rate = speed["steps_per_second"]
    left = (total_rounds - training.num_rounds) * training.num_envs
    latest: dict[str, list[Row]] = {}
    for row in curve:
        newest = latest.setdefault(row["environment"], [row])
        if row["step"] > newest[0]["step"]:
            latest[row["environment"]] = [row]
        elif row is not newest[0]:
            newest.append(row)
    temperatures = [row["temperature"] for rows in latest.values() for row in rows if "temperature" in row]
    return Status(
        step=training.num_rounds * training.num_envs,
        steps=total_rounds * training.num_envs,
        steps_per_second=rate,
        simulating=speed["waiting_for_simulation"],
        learning=speed["waiting_for_learning"],
        seconds_left=left / rate if rate else float("inf"),
        returns={name: float(np.mean([row["return_mean"] for row in rows])) for name, rows in latest.items()},
        lengths={name: float(np.mean([row["length_mean"] for row in rows])) for name, rows in latest.items()},
        temperature=float(np.mean(temperatures)) if temperatures else float("nan"),
    )


@contextmanager
def show_status(progress: bool | Show | None) -> Iterator[Show]:
    """The given function, or one that updates a progress bar."""
    if callable(progress):
        yield progress
        return
    with Progress(progress) as display:
        line = display.line("collect", text="compiling")
        yield lambda status: line.update(status.step, str(status), status.steps)
