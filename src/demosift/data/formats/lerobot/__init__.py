"""LeRobot datasets, without LeRobot. Nothing here imports Parquet's library, which only reading the data needs."""

from pathlib import Path

PREFIX = "lerobot:"


def locate(place: str) -> Path:
    return Path(place.removeprefix(PREFIX)).expanduser()


def is_lerobot(place: str) -> bool:
    return place.startswith(PREFIX) or Path(place, "meta", "info.json").is_file()
