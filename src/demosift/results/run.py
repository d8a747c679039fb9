"""A run and its folder.

    config.json          what was run: algorithm, members, data, schedule; then versions, commit, hardware and wall time
    metrics.jsonl        a line per member and logged iteration, and a line per member and evaluation; no clock in it
    policy.safetensors   all members, the normaliser included
    checkpoint/          the last two checkpoints: everything `--resume` needs

A run killed at any moment continues from its newest whole checkpoint; metrics beyond it are cut off and made again.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from demosift.files import atomic_write, digest, is_partial, json_line, system_errors_named, write_json
from demosift.policy import Policy
from demosift.types import InputError

CHECKPOINTS_KEPT = 2
IDENTITY = ("algorithm", "members", "data", "normalise", "precision", "log_every", "checkpoint_every", "evaluation")

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained ensemble: what was run, its members' policies, and everything that was measured on the way."""

    config: Mapping[str, Any]
    policy: Policy
    metrics: list[Row]
    state: Mapping[str, np.ndarray] | None = None  # all that training would need to go on, by name

    @property
    def members(self) -> list[Row]:
        """Each member's settings and seed."""
        return list(self.config["members"])

    @property
    def evaluations(self) -> list[Row]:
        return [row for row in self.metrics if "returns" in row]

    def save(self, path: str | os.PathLike[str]) -> None:
        folder = RunFolder(path)
        folder.claim(self.config)
        folder.write_metrics(self.metrics)
        if self.state is not None:
            folder.write_checkpoint(self.config["iterations"], self.state)
        folder.finish(self)


def load_run(path: str | os.PathLike[str]) -> Run:
    """A finished run from its folder."""
    folder = RunFolder(path)
    checkpoint = folder.read_checkpoint()
    state = None if checkpoint is None else checkpoint[1]
    return Run(folder.read_config(), Policy.load(folder.policy), folder.read_metrics(), state)


class RunFolder:
    """The files of one run, and the rules by which they change."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.policy = self.path / "policy.safetensors"
        self.checkpoints = self.path / "checkpoint"

    def claim(self, config: Mapping[str, Any], resume: bool = False) -> None:
        """Make the folder this run's, or refuse it because it is another's."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file, not a folder for a run")
        if self.config.exists():
            difference = first_difference(self.read_config(), config)
            if difference:
                raise InputError(f"{self.path}: holds another run ({difference}); choose another folder")
            if not resume:
                raise InputError(
                    f"{self.path}: holds this run already; continue it with --resume, or choose another folder"
                )
            checkpoint = self.read_checkpoint()
            if checkpoint is not None and checkpoint[0] > config["iterations"]:
                raise InputError(f"{self.path}: is already at iteration {checkpoint[0]}, beyond {config['iterations']}")
        elif self.path.exists() and any(not is_partial(path) for path in self.path.iterdir()):
            raise InputError(f"{self.path}: the folder is not empty and holds no run; choose another")
        write_json(self.config, config)
        for path in list(self.path.rglob("*")):  # left by a kill
            if is_partial(path):
                path.unlink()

    def finish(self, run: Run) -> None:
        run.policy.save(self.policy)
        write_json(self.config, dict(run.config))

    def read_config(self) -> Row:
        if not self.config.is_file():
            raise InputError(f"{self.path}: no run here (config.json is missing)")
        try:
            return json.loads(self.config.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise InputError(f"{self.config}: not readable as JSON ({error})") from error

    def read_metrics(self) -> list[Row]:
        """Every whole line. A last line cut short by a kill is dropped; the run makes it again."""
        rows = []
        if self.metrics.is_file():
            for line in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
        return rows

    def cut_metrics(self, iteration: int) -> list[Row]:
        """What had been measured when the checkpoint of this iteration was written: its evaluation came later."""
        rows = self.read_metrics()
        kept = [row for row in rows if row["iteration"] < iteration + ("returns" not in row)]
        self.write_metrics(kept)
        return kept

    def write_metrics(self, rows: Iterable[Row]) -> None:
        with atomic_write(self.metrics) as temporary:
            temporary.write_text("".join(json_line(row) for row in rows), encoding="utf-8")

    def append_metrics(self, rows: Iterable[Row]) -> None:
        with system_errors_named(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.writelines(json_line(row) for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def write_checkpoint(self, iteration: int, arrays: Mapping[str, np.ndarray]) -> None:
        """One file, written whole; then the ones before the previous one go."""
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        header = {"checkpoint": json.dumps({"digest": digest(arrays), "iteration": iteration})}
        with atomic_write(self.checkpoints / f"{iteration:010d}.safetensors") as temporary:
            save_file(arrays, temporary, metadata=header)
        for old in self.checkpoint_files()[:-CHECKPOINTS_KEPT]:
            old.unlink(missing_ok=True)

    def read_checkpoint(self) -> tuple[int, dict[str, np.ndarray]] | None:
        """The newest whole checkpoint; damaged ones are passed over."""
        for path in reversed(self.checkpoint_files()):
            try:
                with safe_open(path, framework="numpy") as file:
                    header = json.loads((file.metadata() or {})["checkpoint"])
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError, KeyError, ValueError):
                continue
            if digest(arrays) == header["digest"]:
                return header["iteration"], arrays
        return None

    def checkpoint_files(self) -> list[Path]:
        if not self.checkpoints.is_dir():
            return []
        return sorted(path for path in self.checkpoints.iterdir() if re.fullmatch(r"\d{10}\.safetensors", path.name))


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Which part of two runs' identity differs. The number of iterations may: a longer run continues a shorter one."""
    for key in IDENTITY:
        if json.dumps(old.get(key), sort_keys=True) != json.dumps(new.get(key), sort_keys=True):
            return f"differs in {key.replace('_', ' ')}"
    return None
