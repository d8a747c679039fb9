"""What a killed `collect` continues from, in one folder:

    state-ROUND.safetensors      the agents and a note of how far everything was; the newest two are kept
    rows-ROUND.safetensors       the replay since the segment before: written once, never again
    policies-ROUND.safetensors   the policies that were evaluated after that round

Every file carries a digest of its content. A state counts only if it and every segment it names are whole; otherwise
the state before it is used. Files are written by a thread of their own, in the order they were given, while training
goes on.
"""

import copy
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from demosift.files import atomic_write, digest
from demosift.types import InputError

STATES_KEPT = 2
NOTE = "note"

Arrays = dict[str, np.ndarray]
Note = dict[str, Any]


class Checkpoint:
    """The folder. `rounds` count what all environments did together; a state of round n follows n of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.segments: list[tuple[int, str]] = []  # first round and digest of each, oldest first
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: list[Future[Any]] = []

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()

    def write(
        self, num_rounds: int, state: Arrays, rows: Float[np.ndarray, "rounds envs members width"], note: Note
    ) -> None:
        """Start writing the state after `num_rounds` rounds and the rows since the last write."""
        self._raise_failures()
        first = num_rounds - len(rows)
        note = copy.deepcopy(note)  # the caller goes on changing it

        def write() -> None:
            if len(rows):
                self.segments.append((first, write_arrays(self._path("rows", first), {"rows": rows})))
            text = json.dumps({**note, "num_rounds": num_rounds, "segments": self.segments})
            write_arrays(self._path("state", num_rounds), {**state, NOTE: np.frombuffer(text.encode(), np.uint8)})
            for _, old in self._numbered("state")[:-STATES_KEPT]:
                old.unlink(missing_ok=True)

        self._written.append(self._writer.submit(write))

    def write_policies(self, num_rounds: int, policies: Arrays) -> None:
        self._written.append(self._writer.submit(write_arrays, self._path("policies", num_rounds), policies))

    def flush(self) -> None:
        for future in self._written:
            future.result()
        self._written.clear()

    def read(self) -> tuple[Arrays, Note] | None:
        """The newest state that is whole with all its segments; None where there never was one."""
        states = self._numbered("state")
        for _, path in reversed(states):
            try:
                arrays = read_arrays(path)
                note = json.loads(arrays.pop(NOTE).tobytes())
                for first, expected in note["segments"]:
                    if _stored_digest(self._path("rows", first)) != expected:
                        raise DamagedFile(f"{self._path('rows', first)}: is not the segment that {path.name} names")
                    read_arrays(self._path("rows", first))
            except (DamagedFile, ValueError, KeyError):
                continue
            self.segments = [(first, expected) for first, expected in note["segments"]]
            return arrays, note
        if states:
            raise InputError(f"{self.folder}: every checkpoint is damaged; remove the folder to start again")
        return None

    def read_policies(self, num_rounds: int) -> Arrays | None:
        try:
            return read_arrays(self._path("policies", num_rounds))
        except DamagedFile:
            return None

    def read_rows(self, members: slice = slice(None)) -> Iterator[Float[np.ndarray, "rounds envs members width"]]:
        """The segments in order, of all members or of some."""
        for first, _ in self.segments:
            with safe_open(self._path("rows", first), framework="numpy") as file:
                yield file.get_slice("rows")[:, :, members]

    def evaluated_rounds(self) -> list[int]:
        return [number for number, _ in self._numbered("policies")]

    def remove(self) -> None:
        self.flush()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _raise_failures(self) -> None:
        """What the writer could not write, such as to a full disk."""
        done = [future for future in self._written if future.done()]
        self._written = [future for future in self._written if not future.done()]
        for future in done:
            future.result()

    def _path(self, kind: str, num_rounds: int) -> Path:
        return self.folder / f"{kind}-{num_rounds:08d}.safetensors"

    def _numbered(self, kind: str) -> list[tuple[int, Path]]:
        found: Iterable[Path] = self.folder.iterdir() if self.folder.is_dir() else ()
        matches = ((re.fullmatch(rf"{kind}-(\d{{8}})\.safetensors", path.name), path) for path in found)
        return sorted((int(match[1]), path) for match, path in matches if match)


class DamagedFile(Exception):
    """A file of a checkpoint is missing, cut short or not what was written."""


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """A safetensors file with the digest of its content; returns the digest."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = digest(contiguous)
    with atomic_write(path) as temporary:
        save_file(contiguous, temporary, metadata={"digest": content})
    return content


def read_arrays(path: Path) -> Arrays:
    try:
        with safe_open(path, framework="numpy") as file:
            expected = (file.metadata() or {}).get("digest")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedFile(f"{path}: {error}") from error
    if digest(arrays) != expected:
        raise DamagedFile(f"{path}: its content is not what was written")
    return arrays


def _stored_digest(path: Path) -> str | None:
    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("digest")
    except (SafetensorError, OSError):
        return None
