"""What scoring gives: the weights of a union, and the table of its episodes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from demosift.algorithms import facts
from demosift.files import atomic_folder
from demosift.results.scores import TASK, merit, standing
from demosift.sift.calibration import segment_quantiles
from demosift.sift.diagnosis import in_words

SOURCES = ("expert", "supplementary")  # in the order of the rows
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST_SHOWN = 10  # episodes that a terminal names


@dataclass(frozen=True)
class Scored:
    """The scores of a union, expert rows first."""

    weight: Float[np.ndarray, "rows"]
    spread: Float[np.ndarray, "rows"]
    fold: Int[np.ndarray, "rows"]
    num_expert: int
    episode_ends: Int[np.ndarray, "episodes"]  # rows of the union; the expert's episodes come first
    num_expert_episodes: int
    summary: Mapping[str, Any]
    numbers: Int[np.ndarray, "episodes"] | None = None  # of the episodes, in their files; None: counted from 0
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # more about episodes, where no expert was named
    page: Mapping[str, Any] = field(default_factory=dict)  # what `page.json` holds
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage; in no file, so that bytes can be equal
    workers: Mapping[str, float] = field(default_factory=dict)  # what they used, of a cluster; in no file either

    @property
    def expert(self) -> Float[np.ndarray, "rows"]:
        """The weights of the expert's rows."""
        return self.weight[: self.num_expert]

    @property
    def supplementary(self) -> Float[np.ndarray, "rows"]:
        """The weights of the supplementary rows."""
        return self.weight[self.num_expert :]

    def __str__(self) -> str:
        summary, quality = self.summary, self.summary["held_out"]
        lines = [
            f"supplementary: {summary['kept']:.1%} of {len(self.supplementary):,} transitions weigh at least "
            f"{summary['threshold']:g}",
            f"held out: expert against union AUC {quality['auc']:.3f}, log loss {quality['log_loss']:.3f}",
        ]
        warnings = [f"warning: {warning}" for warning in summary["warnings"]]
        tasks = summary.get("tasks", [])
        by = [sum(task["by"] == kind for task in tasks) for kind in ("the expert", "agreement", "nothing")]
        told = (
            f"{len(tasks)} tasks, each by itself: {by[0]} against its expert, {by[1]} by agreement, {by[2]} not scored"
        )
        shown = self.page.get("episodes", {}).get("supplementary", {}).get("shown", [])
        worst = ", ".join(str(one["episode"]) for one in shown[: -WORST_SHOWN - 1 : -1])
        last = [f"worst episodes: {worst} (the last in rank, the worst first)"] if len(shown) > WORST_SHOWN else []
        return "\n".join([*lines, *([told] if tasks else []), *in_words(summary["diagnosis"]), *last, *warnings])

    def episodes(self) -> dict[str, np.ndarray]:
        """The columns of `episodes.parquet`."""
        return dict(self._episodes)

    @cached_property
    def _episodes(self) -> dict[str, np.ndarray]:
        """Of many rows this takes a while, and both the page and the file need it."""
        starts = np.concatenate([[0], self.episode_ends[:-1]])
        rows = np.diff(self.episode_ends, prepend=0)
        number = np.arange(len(starts))
        number[self.num_expert_episodes :] -= self.num_expert_episodes

        def mean(value: np.ndarray) -> np.ndarray:
            return episode_means(value, self.episode_ends)

        mean_log = mean(np.log(self.weight))
        quantiles = segment_quantiles(self.weight, starts, QUANTILES)
        rank = np.empty(len(starts), np.int64)
        best = merit(mean_log, *(self.columns.get(name) for name in ("finish", "second_look", "support")))
        task = self.columns.get(TASK)
        for part in (slice(self.num_expert_episodes), slice(self.num_expert_episodes, None)):
            own = standing(best[part], None if task is None else task[part])
            rank[part][np.argsort(-own, kind="stable")] = np.arange(1, len(own) + 1)
        return {
            "source": np.repeat(SOURCES, [self.num_expert_episodes, len(starts) - self.num_expert_episodes]),
            "episode": number,
            "rows": rows,
            "mean": mean(self.weight),
            **{f"q{round(100 * q):02d}": values for q, values in zip(QUANTILES, quantiles, strict=True)},
            "kept": mean(self.weight >= self.summary["threshold"]),
            "log_weight": mean_log,
            "rank": rank,
            "number": number if self.numbers is None else self.numbers,
            **self.columns,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder, whole or not at all."""
        with atomic_folder(path) as folder:
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the files into a folder that exists."""
        # Here: a machine that only trains may lack Parquet's library.
        from demosift.report.sift_page import write_sift_page
        from demosift.results.scores import write_episodes, write_rows, write_summary

        write_rows(folder, self.weight, self.spread, self.fold, self.episode_ends, self.num_expert_episodes)
        write_episodes(folder, self.episodes())
        write_summary(folder, self.summary, self.page)
        write_sift_page(folder, facts())


def episode_means(values: np.ndarray, ends: Int[np.ndarray, "episodes"]) -> Float[np.ndarray, "episodes"]:
    length = np.diff(ends, prepend=0)
    return np.add.reduceat(values.astype(np.float64, copy=False), ends - length) / length
