"""A cell: one seed of one setting of one method on one task. A grid is a list of them.

A cell is plain data. Its id hashes all of it together with the data it trains on, so that a finished cell is recognised
wherever it was run, and never mistaken for another.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from demosift.algorithms import Algorithm
from demosift.data.normaliser import NormaliseOver
from demosift.learning.algorithm import describe
from demosift.learning.members import Precision, stated
from demosift.ranges import EPISODES, STEPS
from demosift.results.cell import cell_id, data_digest
from demosift.tasks.recipes import task_label
from demosift.types import InputError

# `task` is the task as it is; `clean` adds the truly clean supplementary rows to the expert set, as only an oracle can.
TrainedOn = Literal["task", "clean"]


@dataclass(frozen=True)
class Schedule:
    """When a cell is evaluated, and on how many episodes: more for the evaluations that are reported."""

    every: int = 10_000
    episodes: int = 10
    early_episodes: int = 2
    reported: int = 10
    seed: int = 0

    def episodes_at(self, iteration: int, iterations: int) -> int:
        """The reported evaluations are the last ten, but never any of the first half of training."""
        evaluations = iterations // self.every
        reported = max(1, min(self.reported, evaluations // 2))
        return self.episodes if iteration > iterations - reported * self.every else self.early_episodes

    def check(self, iterations: int) -> None:
        STEPS.check("reproduce: iterations", iterations)
        STEPS.check("reproduce: evaluate-every", self.every)
        EPISODES.check("reproduce: episodes", self.episodes, self.early_episodes)
        if iterations % self.every:
            raise InputError(f"reproduce: {iterations} iterations must be a multiple of evaluate-every ({self.every})")


@dataclass(frozen=True)
class DataKey:
    """Which data a cell trains on.

    `replay` is a folder that `collect` wrote, for recipes that use one; `files` one with D4RL's, whose names tell which
    file the recipe `d4rl-NAME` means. `experts` None: as many expert trajectories as is usual for the recipe.
    """

    env: str
    recipe: str
    seed: int
    trained_on: TrainedOn = "task"
    pool: int = 20
    disjoint: bool = False
    replay: str | None = None
    expert_actions: bool = True  # False: of the expert, only observations are known
    experts: int | None = None
    files: str | None = None

    @property
    def task(self) -> str:
        """What a report groups seeds by."""
        return task_label(f"{self.env}/{self.recipe}", self.experts, self.expert_actions)


@dataclass(frozen=True)
class Cell:
    data: DataKey
    method: str  # the row's name: the algorithm's or `oracle`, perhaps with `+robust`
    algorithm: Algorithm
    iterations: int
    schedule: Schedule
    normalise: NormaliseOver = "supplementary"
    precision: Precision = "float32"
    ensemble: int = 1

    @property
    def seed(self) -> int:
        return self.data.seed

    def config(self) -> dict[str, Any]:
        """Everything except the data that decides the result, as plain JSON."""
        described = describe(self.algorithm)
        return {
            "method": self.method,
            "algorithm": described.pop("algorithm"),
            "settings": described,
            "environment": self.data.env,
            "task": self.data.task,
            "trained_on": self.data.trained_on,
            "normalise": self.normalise,
            "seed": self.seed,
            "iterations": self.iterations,
            "evaluation": dataclasses.asdict(self.schedule),
            **stated(self.precision),
            **({} if self.ensemble == 1 else {"ensemble": self.ensemble}),
            **({} if self.data.expert_actions else {"expert_actions": False}),
        }

    def id(self, data: Mapping[str, Any]) -> str:
        """`data` is the description by `describe_data` of what the cell trains on."""
        return cell_id(self.config(), data_digest(data))
