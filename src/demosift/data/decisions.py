"""Which episodes a person decided to keep and to drop: the file that the page of scores downloads.

    {"demosift": "decisions", "dataset": DIGEST, "keep": [0, 3], "drop": [7]}

`dataset` is the fingerprint of the data that the page was about; decisions about other data are refused.
"""

import os
from pathlib import Path
from typing import Any, Literal

from demosift.data.episodes import Episodes
from demosift.data.formats import Source, digest_source
from demosift.files import read_json
from demosift.types import InputError

KIND = "decisions"
MOST_BYTES = 1 << 24

Choice = Literal["keep", "drop"]


def read_episodes(dataset: Source, text: str, choice: Choice) -> Episodes:
    """Numbers of episodes as in 0,3,7-12; or a file of numbers, or of decisions, of which one kind is taken."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or not one
        is_file = False
    if not is_file:
        try:
            return Episodes.parse(text)
        except InputError as error:
            raise InputError(f"{error}, and no file of that name is here") from None
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: too large for a list of episodes")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: not a text file") from None
    if content.lstrip().startswith("{"):
        numbers = read_decisions(dataset, path)[choice]
        if not numbers:
            raise InputError(f"{path}: decides to {choice} no episode")
        return Episodes.of(numbers)
    try:
        return Episodes.parse(",".join(content.replace(",", " ").split()))
    except InputError:  # which would show what the file holds
        raise InputError(f"{path}: neither decisions nor numbers of episodes, as in 0,3,7-12") from None


def read_decisions(dataset: Source, path: str | os.PathLike[str]) -> dict[Choice, list[int]]:
    content: Any = read_json(Path(path))
    if not isinstance(content, dict) or content.get("demosift") != KIND:
        raise InputError(f"{path}: not a file of decisions")
    found: dict[Choice, list[int]] = {}
    for choice in ("keep", "drop"):
        numbers = content.get(choice)
        if not isinstance(numbers, list) or not all(type(one) is int and 0 <= one < 10**12 for one in numbers):
            raise InputError(f"{path}: {choice}: not a list of episode numbers")
        found[choice] = numbers
    both = set(found["keep"]) & set(found["drop"])
    if both:
        raise InputError(f"{path}: episode {min(both)} is both kept and dropped")
    if not found["keep"] and not found["drop"]:
        raise InputError(f"{path}: decides about no episode")
    if content.get("dataset") != digest_source(dataset):
        raise InputError(f"{path}: decisions about other data than {os.fspath(dataset)}, or changed since")
    return found
