"""The results folder of a grid: which cells are finished, failed, or running.

cells/ID.json            a finished cell, sealed (`demosift.results.cell`)
failures/ID.json         a cell that failed, with the traceback; the next command tries it again
unfinished/PROGRAM/      program.json and the newest two checkpoints of cells that train together
unfinished/prepared/     what methods prepared before their training (`demosift.results.prepared`), a folder for each
grids/NAME.json          the ids of the cells that a preset asked for
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demosift.files import Unusable, canonical, is_partial, mismatch, read_json, sweep, write_json
from demosift.learning.prepared import OnShelf
from demosift.results import cell
from demosift.results.cell import CELLS, FAILURES, GRIDS, UNFINISHED
from demosift.results.checkpoint import Checkpoint, CheckpointFolder
from demosift.results.folder import is_grid_folder
from demosift.results.measured import is_count, is_number
from demosift.types import InputError

PREPARED = "prepared"


class Store:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file, not a folder for results")

    def check_free(self) -> None:
        """Refuse a folder that holds something, but nothing of a grid's, not even the recordings that come first."""
        found = [path for path in self.path.iterdir() if not is_partial(path)]
        recordings = self.path / "data"
        if not found or is_grid_folder(self.path) or (self.path / UNFINISHED).is_dir():
            return
        if found == [recordings] and all(
            is_partial(path) or (path.suffix == ".hdf5" and path.stem.count("-") >= 2) for path in recordings.iterdir()
        ):
            return
        raise InputError(f"{self.path}: the folder is not empty and holds no grid; choose another")

    def cell_file(self, cell_id: str) -> Path:
        return self.path / CELLS / f"{cell_id}.json"

    def finished(self, cell_id: str) -> bool:
        """Whether the cell's file exists and is whole; a damaged cell is run again."""
        path = self.cell_file(cell_id)
        try:
            return path.is_file() and bool(cell.read_cell(path, path.name))
        except Unusable:
            return False

    def knows(self, cell_id: str, data: Mapping[str, Any]) -> bool:
        """Whether the cell is running, or finished on data of this description."""
        path = self.cell_file(cell_id)
        try:
            if path.is_file() and cell.read_cell(path, path.name)["data"] == data:
                return True
        except Unusable:
            pass
        return any(cell_id in ids for ids in self.unfinished())

    def write_cell(self, content: Mapping[str, Any]) -> None:
        cell.write_cell(self.cell_file(content["id"]), content)
        self.failure_file(content["id"]).unlink(missing_ok=True)

    def failure_file(self, cell_id: str) -> Path:
        return self.path / FAILURES / f"{cell_id}.json"

    def write_failure(self, content: Mapping[str, Any]) -> None:
        cell.write_failure(self.failure_file(content["id"]), content)

    def failure_reason(self, cell_id: str) -> str | None:
        """The last line of a failed cell's traceback."""
        path = self.failure_file(cell_id)
        try:
            return cell.read_failure(path, path.name).reason
        except Unusable:
            return None

    def write_grid(self, name: str, ids: Iterable[str]) -> None:
        """Which cells a grid's tables show."""
        cell.write_grid(self.grid_file(name), ids)

    def read_grid(self, name: str) -> list[str]:
        path = self.grid_file(name)
        return cell.read_grid(path, f"{GRIDS}/{path.name}") if path.exists() else []

    def grid_file(self, name: str) -> Path:
        return self.path / GRIDS / f"{name}.json"

    def program(self, ids: Sequence[str]) -> "Unfinished":
        """The program of these cells, in this order."""
        return Unfinished(self.path / UNFINISHED / program_id(ids), ids)

    def prepared(self, method: str) -> OnShelf:
        """What this method prepares before its training."""
        return OnShelf(self.path / UNFINISHED / PREPARED / method)

    def forget_prepared(self) -> None:
        """Nothing is left to do that needs it, unless another grid was begun in this folder."""
        if not self.unfinished():
            shutil.rmtree(self.path / UNFINISHED / PREPARED, ignore_errors=True)

    def unfinished(self) -> list[list[str]]:
        """The cells of every unfinished program, in the order of its members."""
        found = []
        for path in sorted((self.path / UNFINISHED).glob("*/program.json")):
            try:
                content = read_json(path)
            except Unusable:
                continue
            ids = content["cells"] if mismatch(content, {"cells": [str]}) is None else []
            if ids and path.parent.name == program_id(ids):
                found.append(ids)
        return found

    def sweep(self) -> None:
        """Remove what killed processes left half written, and programs whose cells are all there."""
        for ids in self.unfinished():
            if all(map(self.finished, ids)):
                self.program(ids).discard()
        programs = (self.path / UNFINISHED).glob("*")
        folders = [*programs, *(self.path / UNFINISHED / PREPARED).glob("*")]
        parts = [part for folder in folders for part in (folder, folder / "checkpoint")]
        sweep(*(self.path / name for name in (CELLS, FAILURES, GRIDS, UNFINISHED, "data")), *parts)


def program_id(ids: Sequence[str]) -> str:
    return hashlib.sha256(canonical(list(ids)).encode()).hexdigest()[:16]


NOTE = {
    "members": [{"evaluations": [{"iteration": is_count, "returns": [is_number]}], "failure": (None, str)}],
    "wall_seconds": is_number,
}


class Unfinished:
    """An unfinished program, in a folder of its own: which cells it trains, and its checkpoints."""

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path, self.ids = path, list(ids)
        self.folder = CheckpointFolder(path / "checkpoint")

    def read(self) -> Checkpoint | None:
        found = self.folder.read(lambda found: mismatch(found.note, NOTE) is None)
        if found is not None and "failures" not in found.note:  # an earlier release noted them with each member only
            failed = {i: each["failure"] for i, each in enumerate(found.note["members"]) if each["failure"]}
            found.note["failures"] = failed
        return found

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]) -> None:
        if not (self.path / "program.json").exists():
            write_json(self.path / "program.json", {"cells": self.ids})
        self.folder.write(position, arrays, note)

    def split(self, half: int, first: "Unfinished", second: "Unfinished") -> None:
        """Divide the checkpoint between two programs that share the members between them."""
        if (found := self.read()) is not None:
            members, failures = found.note["members"], {int(i): why for i, why in found.note["failures"].items()}
            for other, part in ((first, range(half)), (second, range(half, len(members)))):
                own = {i - part.start: failures[i] for i in part if i in failures}
                note = {**found.note, "members": [members[i] for i in part], "failures": own}
                other.write(found.position, {n: a[part.start : part.stop] for n, a in found.arrays.items()}, note)
        self.discard()

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
