"""The results folder: what is finished, what failed, and what is under way.

cells/ID.json            a finished cell, sealed (`demosift.results.cell`)
failures/ID.json         a cell that failed, with the traceback; it is tried again by the next command
unfinished/PROGRAM/      program.json and the newest two checkpoints of cells that train together
grids/NAME.json          the ids of the cells that a preset asked for
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demosift.files import atomic_write, is_partial, write_json
from demosift.results.cell import CELLS, FAILURES, FORMAT, GRIDS, UNFINISHED, canonical, read_cell, seal
from demosift.results.folder import read_grids
from demosift.results.reading import Unusable
from demosift.results.run import RunFolder
from demosift.types import InputError

PROGRESS = "progress"  # the checkpoint's entry for what was measured so far, as bytes of JSON

Checkpoint = tuple[int, dict[str, np.ndarray], dict[str, Any]]  # iteration, networks, progress


class Store:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file, not a folder for results")

    def cell_file(self, cell_id: str) -> Path:
        return self.path / CELLS / f"{cell_id}.json"

    def finished(self, cell_id: str) -> bool:
        """Whether the cell's file is there and whole; a damaged one is made again."""
        path = self.cell_file(cell_id)
        try:
            return path.is_file() and bool(read_cell(path, path.name))
        except Unusable:
            return False

    def write_cell(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.cell_file(content["id"])) as temporary:
            temporary.write_text(lines_of(seal({"format": FORMAT, **content})), encoding="utf-8")
        self.failure_file(content["id"]).unlink(missing_ok=True)

    def failure_file(self, cell_id: str) -> Path:
        return self.path / FAILURES / f"{cell_id}.json"

    def write_failure(self, content: Mapping[str, Any]) -> None:
        write_json(self.failure_file(content["id"]), dict(content))

    def write_grid(self, name: str, ids: Iterable[str]) -> None:
        """Which cells a grid's tables show."""
        write_json(self.path / GRIDS / f"{name}.json", {"grid": name, "cells": sorted(set(ids))})

    def read_grid(self, name: str) -> list[str]:
        grids, problems = read_grids(self.path / GRIDS)
        for problem in problems:
            if problem.startswith(f"{GRIDS}/{name}.json:"):
                raise InputError(problem)
        return grids.get(name, [])

    def checkpoints(self, ids: Sequence[str]) -> "Keeper":
        return Keeper(self.path / UNFINISHED / program_id(ids), ids)

    def unfinished(self) -> list[list[str]]:
        """The cells of every program under way, in the order of their members."""
        found = []
        for path in sorted((self.path / UNFINISHED).glob("*/program.json")):
            try:
                ids = json.loads(path.read_text(encoding="utf-8"))["cells"]
            except (ValueError, KeyError, TypeError):
                continue
            if isinstance(ids, list) and ids and path.parent.name == program_id(ids):
                found.append(ids)
        return found

    def sweep(self) -> None:
        """Remove what killed processes left half written."""
        for folder in (CELLS, FAILURES, GRIDS, UNFINISHED):
            for path in (self.path / folder).rglob("*"):
                if is_partial(path):
                    path.unlink(missing_ok=True)


def lines_of(content: Mapping[str, Any]) -> str:
    """JSON with a line for every key and every evaluation: small, and its changes can be read."""
    lines = []
    for key in sorted(content):
        value = content[key]
        if key == "evaluations":
            text = "[\n  " + ",\n  ".join(canonical(row) for row in value) + "\n ]"
        else:
            text = canonical(value)
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def program_id(ids: Sequence[str]) -> str:
    return hashlib.sha256(canonical(list(ids)).encode()).hexdigest()[:16]


class Keeper:
    """The checkpoints of one program, in its own folder. One file holds the networks and what was measured so far."""

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path, self.ids = path, list(ids)
        self.folder = RunFolder(path)

    def load(self) -> Checkpoint | None:
        found = self.folder.read_checkpoint()
        if found is None:
            return None
        iteration, arrays = found
        return iteration, arrays, json.loads(arrays.pop(PROGRESS).tobytes())

    def keep(self, iteration: int, arrays: Mapping[str, np.ndarray], progress: Mapping[str, Any]) -> None:
        if not (self.path / "program.json").exists():
            write_json(self.path / "program.json", {"cells": self.ids})
        told = np.frombuffer(json.dumps(progress, allow_nan=False).encode(), np.uint8)
        self.folder.write_checkpoint(iteration, {**arrays, PROGRESS: told})

    def split(self, half: int, first: "Keeper", second: "Keeper") -> None:
        """Hand what was reached to two programs that share the members between them."""
        checkpoint = self.load()
        if checkpoint is not None:
            iteration, arrays, progress = checkpoint
            for keeper, part in ((first, slice(half)), (second, slice(half, None))):
                own = {**progress, "members": progress["members"][part]}
                keeper.keep(iteration, {name: array[part] for name, array in arrays.items()}, own)
        self.discard()

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
