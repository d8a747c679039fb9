"""LeRobot datasets, without LeRobot. What is here is known without Parquet's library, which only their data needs."""

from pathlib import Path

PREFIX = "lerobot:"


def locate(place: str) -> Path:
    return Path(place.removeprefix(PREFIX)).expanduser()


def is_lerobot(place: str) -> bool:
    return place.startswith(PREFIX) or Path(place, "meta", "info.json").is_file()
