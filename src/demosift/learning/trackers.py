"""Trackers: callbacks that send metrics to TensorBoard or Weights & Biases, each an optional extra."""

import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demosift.data.checks import one_line
from demosift.files import own_folder
from demosift.learning.runner import Callback, HostMetrics, Row, metric_rows
from demosift.results.checkpoint import Note
from demosift.types import InputError


def scalars(row: Row) -> dict[str, float]:
    """The plain numbers of a metrics row; the returns of an evaluation become their mean."""
    values = {key: value for key, value in row.items() if isinstance(value, float)}
    if row.get("returns"):
        values["return"] = sum(row["returns"]) / len(row["returns"])
    return values


class Tracker(Callback):
    """Logs the rows of a run's metrics as they are measured."""

    def log(self, rows: list[Row]) -> None:
        raise NotImplementedError

    def on_log(self, position: int, metrics: HostMetrics) -> None:
        self.log(metric_rows(position, metrics))

    def on_evaluation(self, position: int, rows: list[Row]) -> None:
        self.log(rows)


class TensorBoard(Tracker):
    """A folder of event files, one run per member."""

    def __init__(self, folder: str | Path) -> None:
        try:
            # Not `SummaryWriter`: it writes from a thread, which loses the last rows of a process that ends.
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]
            from tensorboardX.summary import scalar
        except ImportError as error:
            raise InputError("TensorBoard output needs the extra: pip install 'demosift[tensorboard]'") from error
        self._folder, self._open, self._event, self._scalar = Path(folder), EventsWriter, Event, scalar
        with own_folder(self._folder):  # it can be written to, which is better known before training
            pass
        self._writers: dict[int, Any] = {}
        weakref.finalize(self, close_all, self._writers)

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            member = row["member"]
            if member not in self._writers:
                place = self._folder / f"member-{member}"
                place.mkdir(parents=True, exist_ok=True)
                self._writers[member] = self._open(str(place / "events"))
            for key, value in scalars(row).items():
                summary = self._scalar(key, value)
                event = self._event(wall_time=time.time(), step=row["iteration"], summary=summary)
                self._writers[member].write_event(event)
        for writer in self._writers.values():
            writer.flush()


def close_all(writers: Mapping[int, Any]) -> None:
    for writer in writers.values():
        writer.close()


class WandB(Tracker):
    """One W&B run per training run, metrics named `member/metric`. It is made when training starts."""

    def __init__(self, project: str, config: Mapping[str, Any] | None = None) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise InputError("W&B output needs the extra: pip install 'demosift[wandb]'") from error
        self._wandb, self._project, self._config = wandb, project, dict(config or {})
        self._run: Any = None

    def on_start(self, position: int, note: Note) -> None:
        try:
            self._run = self._wandb.init(project=self._project, config=self._config)
        except Exception as error:  # nobody is logged in, or the server cannot be reached
            raise InputError(f"W&B: cannot start a run: {type(error).__name__}: {one_line(error)}") from error

    def log(self, rows: list[Row]) -> None:
        by_iteration: dict[int, dict[str, float]] = {}
        for row in rows:
            values = {f"{row['member']}/{key}": value for key, value in scalars(row).items()}
            by_iteration.setdefault(row["iteration"], {}).update(values)
        for iteration, values in by_iteration.items():
            self._run.log({"iteration": iteration, **values})
