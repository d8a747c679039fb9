"""Checkpoints: everything that training needs to continue, in a folder of safetensors files.

    NNNNNNNNNN.safetensors        the state after so many iterations, with a JSON note in its header; the newest two
    KIND-NNNNNNNN.safetensors     what states refer to and is written once, such as a piece of a replay

Every file carries a digest of its content, iteration and note included, and is written whole or not at all. A damaged
state, or one under the name of another iteration, is skipped for the one before it.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from demosift.files import Unusable, atomic_write, canonical, check_regular, digest, mismatch, parse_json

STATES_KEPT = 2
STATE = re.compile(r"(?:state-)?(\d{8,10})\.safetensors")  # `collect` used to write `state-`
FAILED = {"failures?": lambda told: isinstance(told, dict) and all(map(_is_failure, told.items()))}  # in a note
NOTES = ("progress", "note")  # tensors that held the note as bytes of JSON before it moved to the header

Arrays = dict[str, np.ndarray]
Note = dict[str, Any]


class Checkpoint(NamedTuple):
    position: int
    arrays: Arrays
    note: Note


class Checkpoints(Protocol):
    """Where training leaves its checkpoints: `CheckpointFolder`, or one on another machine."""

    def read(self) -> Checkpoint | None: ...

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]) -> None: ...


class DamagedFile(Exception):
    """A file of a checkpoint is missing, cut short, or not as it was written."""


class CheckpointFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def states(self) -> list[Path]:
        """Oldest first."""
        return [path for _, path in self._numbered(STATE)]

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any] | None = None) -> None:
        """Write one whole file, then remove all but the newest two."""
        write_arrays(self.path / f"{position:010d}.safetensors", arrays, position, note)
        for old in self.states()[:-STATES_KEPT]:
            old.unlink(missing_ok=True)

    def read(self, whole: Callable[[Checkpoint], bool] = lambda found: True) -> Checkpoint | None:
        """The newest state that is undamaged and, with all it refers to, `whole`."""
        for position, path in reversed(self._numbered(STATE)):
            try:
                arrays, note = read_arrays(path, position)
            except DamagedFile:
                continue
            found = Checkpoint(position, arrays, note)
            if mismatch(note, FAILED) is None and whole(found):
                return found
        return None

    def attach(self, kind: str, number: int, arrays: Mapping[str, np.ndarray]) -> str:
        """Write a file beside the states, once and for all; returns its digest."""
        return write_arrays(self.attachment(kind, number), arrays)

    def attachment(self, kind: str, number: int) -> Path:
        return self.path / f"{kind}-{number:08d}.safetensors"

    def attached(self, kind: str) -> list[int]:
        return [number for number, _ in self._numbered(re.compile(rf"{kind}-(\d{{8}})\.safetensors"))]

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _numbered(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        found = self.path.iterdir() if self.path.is_dir() else ()
        matches = ((pattern.fullmatch(path.name), path) for path in found)
        return sorted((int(match[1]), path) for match, path in matches if match)


def _is_failure(told: tuple[str, Any]) -> bool:
    """A member's number, and why it failed."""
    member, reason = told
    return member.isascii() and member.isdigit() and len(member) < 10 and isinstance(reason, str)


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], position: int | None = None, note: Mapping[str, Any] | None = None
) -> str:
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header: dict[str, Any] = {} if position is None else {"iteration": position, "sealed": True}
    header |= {"note": canonical(note)} if note else {}
    content = content_digest(contiguous, header)
    # One entry: safetensors writes several in an order that changes from run to run.
    metadata = {"checkpoint": json.dumps({"digest": content, **header}, sort_keys=True)}
    with atomic_write(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)
    return content


def read_arrays(path: Path, position: int | None = None) -> tuple[Arrays, Note]:
    """The arrays of an undamaged file, and its note; with `position`, of the state at that iteration only."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            header = read_header(file.metadata())
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if content_digest(arrays, header) != header["digest"]:
            raise DamagedFile(f"{path}: its content is not what was written")
        if position is not None and header.get("iteration", position) != position:
            raise DamagedFile(f"{path}: is the state at iteration {header['iteration']}")
        told = header.get("note")
        for name in NOTES:
            if name in arrays and told is None:
                told = arrays.pop(name).tobytes().decode()
        note = {} if told is None else parse_json(told, str(path))
        if not isinstance(note, dict):
            raise DamagedFile(f"{path}: its note is not an object")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, Unusable) as error:
        raise DamagedFile(f"{path}: {error}") from error
    return arrays, note


def stored_digest(path: Path) -> str | None:
    """The digest that a file states, without reading all of it."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            return read_header(file.metadata())["digest"]
    except (SafetensorError, OSError, KeyError, ValueError, Unusable):
        return None


def read_slice(path: Path, name: str, index: tuple[slice, ...]) -> np.ndarray:
    """A part of one array, without the rest of the file."""
    with safe_open(path, framework="numpy") as file:
        return file.get_slice(name)[index]


def read_header(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Earlier files of `collect` hold the digest alone, as an entry of its own."""
    metadata = metadata or {}
    header = parse_json(metadata["checkpoint"], "checkpoint") if "checkpoint" in metadata else dict(metadata)
    if not isinstance(header, dict):
        raise ValueError("the header of a checkpoint is not an object")
    return header


def content_digest(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> str:
    """Of the arrays with their note and, in files that say so, the iteration: an earlier release left it out."""
    parts = [str(header["iteration"])] if header.get("sealed") else []
    parts += [] if header.get("note") is None else [header["note"]]
    of_arrays = digest(arrays)
    return hashlib.sha256(" ".join([of_arrays, *parts]).encode()).hexdigest() if parts else of_arrays
