"""What a killed `collect` continues from: agents, simulators, the replay in pieces, the policies that were evaluated.

A checkpoint is used only if every piece of the replay that it names is undamaged; otherwise the one before it is used.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from demosift.files import mismatch
from demosift.results.checkpoint import (
    Arrays,
    Checkpoint,
    CheckpointFolder,
    DamagedFile,
    read_arrays,
    read_slice,
    stored_digest,
)
from demosift.results.measured import is_count, is_number
from demosift.types import InputError

ROWS, POLICIES = "rows", "policies"
SIMULATOR, OBS = "simulator/", "obs"  # the state of each environment by its place, and what the agents act on next
NOTE = {
    "identity": dict,
    "segments?": [lambda pair: isinstance(pair, list) and list(map(type, pair)) == [int, str] and is_count(pair[0])],
    "curve": [
        {
            "environment": str,
            "step": is_count,
            "setting": is_count,
            "seed": is_count,
            **dict.fromkeys(("return_mean", "return_std", "return_min"), is_number),
        }
    ],
    "cuts": [is_count],
    "wall_seconds": is_number,
}


class ReplayCheckpoints:
    """A folder of checkpoints whose position counts rounds. Each adds the `rows` since the one before."""

    def __init__(self, path: Path):
        self.folder = CheckpointFolder(path)
        self.segments: list[tuple[int, str]] = []  # first round and digest of each piece of the replay, oldest first
        self._found: Checkpoint | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="policies")
        self._written: list[Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()

    def read(self) -> Checkpoint | None:
        """The newest checkpoint that is undamaged with all its pieces; None if there never was one. Read only once."""
        if self._found is None:
            self._found = self.folder.read(self._is_whole)
            if self._found is not None:
                self.segments = [(first, digest) for first, digest in self._found.note["segments"]]
            elif self.folder.states():
                raise InputError(f"{self.folder.path}: every checkpoint is damaged; remove the folder to start again")
        return self._found

    def _is_whole(self, found: Checkpoint) -> bool:
        if mismatch(found.note, NOTE) is not None:
            return False
        for first, digest in found.note.get("segments", []):
            path = self.folder.attachment(ROWS, first)
            try:
                if stored_digest(path) != digest:
                    return False
                read_arrays(path)
            except DamagedFile:
                return False
        return True

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]) -> None:
        for policies in self._written:
            policies.result()
        self._written.clear()
        rows = arrays[ROWS]
        if len(rows):
            first = position - len(rows)
            self.segments.append((first, self.folder.attach(ROWS, first, {ROWS: rows})))
        state = {name: array for name, array in arrays.items() if name != ROWS}
        self.folder.write(position, state, {**note, "segments": self.segments})

    def rows(self, members: slice = slice(None)) -> Iterator[Float[np.ndarray, "rounds envs members width"]]:
        """The pieces of the replay in order, of all members or of some."""
        for first, _ in self.segments:
            yield read_slice(self.folder.attachment(ROWS, first), ROWS, (slice(None), slice(None), members))

    def keep_policies(self, num_rounds: int, policies: Arrays) -> None:
        """Start writing the policies that are evaluated after this round; the next checkpoint waits for them."""
        self._written.append(self._writer.submit(self.folder.attach, POLICIES, num_rounds, policies))

    def read_policies(self, num_rounds: int) -> Arrays | None:
        for written in self._written:
            written.result()
        try:
            return read_arrays(self.folder.attachment(POLICIES, num_rounds))[0]
        except DamagedFile:
            return None

    def evaluated_rounds(self) -> list[int]:
        return self.folder.attached(POLICIES)

    def discard(self) -> None:
        self._writer.shutdown()
        self.folder.discard()
