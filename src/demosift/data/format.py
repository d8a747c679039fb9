"""What a format is: how its sources are recognised, read, written and filtered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from demosift.data.recording import Recording
from demosift.types import Dataset

Part = Callable[[], Recording]


@runtime_checkable
class EpisodicPart(Protocol):
    """A part that can read some of its episodes without the others. Their numbers are `Recording.number`."""

    def __call__(self) -> Recording: ...

    def only(self, numbers: Sequence[int]) -> Recording: ...


@dataclass(frozen=True)
class Format:
    """A format of data files: how its sources are recognised, read, written and filtered.

    Only the first three are needed to read. A place may begin with the prefix `NAME:`.
    """

    name: str
    reads: Callable[[str], bool]  # is this place, which may not exist, of this format?
    parts: Callable[..., Sequence[Part]]  # of a place and its options, in order; reads little before a part is called
    write: Callable[[Dataset, str], None] | None = None  # None: it is only read
    files: Callable[[str], Sequence[Path]] | None = None  # what the data consist of; None: the place is a file
    # Place, target, `Selection`, options: copies the kept part and all that belongs to it. None: what a `Dataset` holds
    # is written anew.
    keep: Callable[..., None] | None = None
    facts: Callable[[str, str], Mapping[int, Any]] | None = None  # of episodes, by number: a place and a fact's name
    fact_names: Callable[[str], Iterable[str]] | None = None  # which facts a place tells, for whoever asks for another
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()  # of the files it writes, where a target needs no prefix
    tasks: Callable[[str], Mapping[int, str]] | None = None  # of episodes, by number, where a place has several tasks

    def files_of(self, place: str) -> Sequence[Path]:
        """The files that the data at this place consist of."""
        return [Path(place.removeprefix(f"{self.name}:"))] if self.files is None else self.files(place)
