"""LeRobot datasets, without LeRobot. Nothing here imports Parquet's library, which only reading the data needs."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from demosift.data.format import Format
from demosift.files import expanded

PREFIX = "lerobot:"


def locate(place: str) -> Path:
    return expanded(place.removeprefix(PREFIX))


def is_lerobot(place: str) -> bool:
    return place.startswith(PREFIX) or Path(place, "meta", "info.json").is_file()


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called: a machine that only trains may lack Parquet's library."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f"demosift.data.formats.lerobot.{module}"), name)(*arguments, **options)

    return call


FORMAT = Format(
    "lerobot",
    is_lerobot,
    _later("reading", "lerobot_parts"),
    _later("writing", "write_lerobot"),
    _later("reading", "lerobot_files"),
    _later("selection", "keep_lerobot"),
    _later("reading", "lerobot_facts"),
    _later("reading", "lerobot_fact_names"),
    options=("obs",),
    tasks=_later("tasks", "lerobot_tasks"),
)
