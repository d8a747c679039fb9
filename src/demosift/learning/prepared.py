"""What is worked out once, before training, from the data and a few settings: kept in memory and in a run's folder.

Cells of a grid that share their data, and settings that differ only in how the policy is cloned, find it here.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demosift.files import digest as digest_arrays
from demosift.results.checkpoint import Arrays
from demosift.results.prepared import Key, read_prepared, write_prepared
from demosift.types import Dataset, Demonstrations

KNOWN: dict[Key, Arrays] = {}
"""What this process has prepared."""


def key_of(data: Demonstrations, *settings: Any) -> Key:
    """What decides a preparation: these settings, the rows, and where sets and episodes end."""
    parts = (data.expert, *(() if data.supplementary is None else (data.supplementary,)))
    return (*map(str, settings), *map(digest, parts))


def digest(data: Dataset) -> str:
    rows = data.transitions
    arrays = {"obs": rows.obs, "action": rows.action, "next_obs": rows.next_obs, "ends": data.episode_ends}
    return digest_arrays(arrays)


def remember(key: Key, make: Callable[[], Arrays]) -> Arrays:
    """What `make` gives, which is called once in a process."""
    if key not in KNOWN:
        KNOWN[key] = make()
    return KNOWN[key]


def prepared(key: Key, folder: Path | None, rows: Mapping[str, int], make: Callable[[Path | None], Arrays]) -> Arrays:
    """As `remember`; with a folder, from the file there, which is written if there is none.

    `rows` says which arrays there are, and how long they are. `make` is given a place for its checkpoints, which goes
    when the file is written.
    """
    if folder is None:
        return remember(key, lambda: make(None))
    found, workshop = read_prepared(folder, key, rows), folder / "checkpoint"
    if found is None:
        found = remember(key, lambda: make(workshop))
        write_prepared(folder, key, found)
    shutil.rmtree(workshop, ignore_errors=True)
    return found
