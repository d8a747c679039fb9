"""What is worked out once, before training, from the data and a few settings: kept in memory or in a folder.

Cells of a grid that share their data, and settings that differ only in how the policy is cloned, find it here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from demosift.files import digest as digest_arrays
from demosift.results.checkpoint import Arrays
from demosift.results.prepared import Key, read_prepared, read_shelved, write_prepared, write_shelved
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


@runtime_checkable  # tests check types while they run
class Kept(Protocol):
    """Where what was prepared is looked for, and left for whoever needs it next."""

    @property
    def workshop(self) -> Path | None:
        """A place for the checkpoints of what is being prepared."""
        ...

    def read(self, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        """Arrays of these names and lengths, if they are there."""
        ...

    def write(self, key: Key, arrays: Arrays) -> None: ...


class InMemory:
    """As long as this process lives."""

    workshop = None

    def read(self, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        return KNOWN.get(key)

    def write(self, key: Key, arrays: Arrays) -> None:
        KNOWN[key] = arrays


class InFolder:
    """In the folder of a run, which has one preparation and refuses another's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workshop = folder, folder / "checkpoint"

    def read(self, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        found = read_prepared(self.folder, key, rows)
        if found is None and key in KNOWN:
            found = KNOWN[key]
            write_prepared(self.folder, key, found)
        return found

    def write(self, key: Key, arrays: Arrays) -> None:
        KNOWN[key] = arrays
        write_prepared(self.folder, key, arrays)


class OnShelf:
    """In the folder of a grid, which has many, each under a name made of its key. Memory keeps none of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workshop = folder, folder / "checkpoint"

    def read(self, key: Key, rows: Mapping[str, int]) -> Arrays | None:
        return read_shelved(self.folder, key, rows) or KNOWN.get(key)

    def write(self, key: Key, arrays: Arrays) -> None:
        write_shelved(self.folder, key, arrays)


def kept_in(folder: Path | None) -> Kept:
    return InMemory() if folder is None else InFolder(folder)


def prepared(key: Key, kept: Kept, rows: Mapping[str, int], make: Callable[[], Arrays]) -> Arrays:
    """What is kept under the key, or else what `make` gives.

    `rows` says which arrays there are, and how long they are.
    """
    found = kept.read(key, rows)
    if found is None:
        found = make()
        kept.write(key, found)
    return found
