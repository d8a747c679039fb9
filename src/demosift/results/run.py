"""A run and its folder.

    config.json          what was run: algorithm, members, data, schedule; then versions, commit, hardware and wall time
    metrics.jsonl        a line per member and logged iteration, and a line per member and evaluation; no clock in it
    policy.safetensors   all members, the normaliser included
    run.toml             the flags of `demosift train`, to repeat it (`demosift.cli.config`); `fit` alone writes none
    checkpoint/          the last two checkpoints: everything `--resume` needs

A run killed at any moment continues from its newest whole checkpoint, with the metrics that are in it; later ones are
measured again. `RunFolder` drops a last line that a kill cut short, while `read_run`, for the report, refuses a run
that is not whole.
"""

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from demosift.files import (
    TEXT_BYTES,
    Unusable,
    atomic_write,
    canonical,
    check_links,
    check_regular,
    is_partial,
    json_line,
    mismatch,
    own_folder,
    parse_json,
    read_json,
    read_text,
    sweep,
    system_errors_named,
    write_json,
)
from demosift.policy import Policy
from demosift.results.checkpoint import Checkpoint, CheckpointFolder
from demosift.results.measured import (
    MeasuredRun,
    Member,
    Row,
    check_evaluation,
    is_count,
    is_number,
    label,
    make_curves,
    make_member,
)
from demosift.types import InputError

IDENTITY = (
    "algorithm",
    "members",
    "data",
    "normalise",
    "precision",
    "ensemble",
    "expert_actions",
    "held_out",
    "patience",
    "log_every",
    "checkpoint_every",
    "evaluation",
)
CONFIG = {
    "algorithm": str,
    "iterations": is_count,
    "members": [{"seed": is_count, "algorithm": str}],
    "environment": (None, {"id": str, "kwargs?": dict}),
    "task": (None, str),
    "failures?": {str: (None, str)},
}
METRICS = "metrics"
METRICS_ROW = {"iteration": is_count, "member": is_count, "held_out_loss?": (None, is_number)}
RUN_FILES = ("config.json", "metrics.jsonl", "policy.safetensors", "run.toml")


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained ensemble: what was run, its members' policies, and everything that was measured during training."""

    config: Mapping[str, Any]
    policy: Policy
    metrics: list[Row]
    state: Mapping[str, np.ndarray] | None = None  # everything that training needs to continue, by name

    def __post_init__(self) -> None:
        if self.policy.kind == "tanh-gaussian" and self.policy.log_std_range is None:
            told = log_std_range(self.config.get("members", []))
            object.__setattr__(self, "policy", dataclasses.replace(self.policy, log_std_range=told))

    @property
    def members(self) -> list[Row]:
        """Each member's settings and seed."""
        return list(self.config["members"])

    @property
    def evaluations(self) -> list[Row]:
        """The rows of `metrics` that are evaluations: `iteration`, `member`, `returns`, `lengths`, `score`."""
        return [row for row in self.metrics if "returns" in row]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a new folder, which `load_run` and every verb that takes a run read."""
        folder = RunFolder(path)
        with folder.claim(self.config):
            folder.write_metrics(self.metrics)
            if self.state is not None:
                folder.checkpoints.write(self.config["iterations"], self.state, {METRICS: self.metrics})
            folder.finish(self)


def log_std_range(members: Sequence[Row]) -> tuple[float, float] | None:
    """Where the policy's log standard deviation was clipped; None where none was trained, as with the squared error.

    A setting that is not told has the first release's value: the likelihood, with a floor of -5.
    """
    if any(settings.get("loss", "likelihood") != "likelihood" for settings in members):
        return None
    floors = {settings.get("log_std_floor") for settings in members}
    if len(floors) != 1:
        return None
    (floor,) = floors
    return (-5.0 if floor is None else floor, 2.0)


def load_run(path: str | os.PathLike[str]) -> Run:
    """A finished run from its folder."""
    folder = RunFolder(path)
    checkpoint = folder.checkpoints.read()
    state = None if checkpoint is None else checkpoint.arrays
    return Run(folder.read_config(), Policy.load(folder.policy), folder.read_metrics(), state)


class RunCheckpoints(CheckpointFolder):
    """Checkpoints that hold the metrics before them: `metrics.jsonl` is written anew when the run is resumed.

    They are the rows under `METRICS` in the note, and compressed lines of JSON in the file.
    """

    def write(self, position: int, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any] | None = None) -> None:
        note = dict(note or {})
        if METRICS in note:
            lines = "".join(json_line(row) for row in note.pop(METRICS))
            arrays = {**arrays, METRICS: np.frombuffer(zlib.compress(lines.encode(), level=1), np.uint8)}
        super().write(position, arrays, note)

    def read(self, whole: Callable[[Checkpoint], bool] = lambda found: True) -> Checkpoint | None:
        return super().read(lambda found: self._unpack(found) and whole(found))

    def _unpack(self, found: Checkpoint) -> bool:
        """Whether the metrics, which become a part of the note, are such as `write` leaves."""
        if METRICS not in found.arrays:
            return METRICS not in found.note
        try:
            reader = zlib.decompressobj()
            lines = reader.decompress(found.arrays.pop(METRICS).tobytes(), TEXT_BYTES)
            if not reader.eof:  # cut short, or more than a file of metrics may hold
                return False
            found.note[METRICS] = [parse_json(line, str(self.path)) for line in lines.decode().splitlines()]
            for row in found.note[METRICS]:
                if mismatch(row, METRICS_ROW) is not None:
                    return False
                if "returns" in row:
                    check_evaluation(row, str(self.path))
        except (zlib.error, UnicodeError, Unusable):
            return False
        return True


class RunFolder:
    """The files of one run, and the rules by which they change."""

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """`name` is what messages call the folder (default: its path)."""
        self.path = Path(path)
        self.name = str(self.path) if name is None else name
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.policy = self.path / "policy.safetensors"
        self.request = self.path / "run.toml"
        self.checkpoints = RunCheckpoints(self.path / "checkpoint")

    @contextmanager
    def claim(self, config: Mapping[str, Any], resume: bool = False) -> Iterator[None]:
        """Make the folder this run's while the block runs, or refuse it because it belongs to another."""
        with own_folder(self.path):
            self.check_free(config, resume)
            write_json(self.config, config)
            sweep(self.path, self.checkpoints.path, self.path / "scores")
            yield

    def check_free(self, config: Mapping[str, Any], resume: bool) -> None:
        if self.config.exists():
            difference = first_difference(self.read_config(), config)
            if difference:
                raise InputError(f"{self.path}: holds another run ({difference}); choose another folder")
            check_links(self.path, self.metrics, self.checkpoints.path)  # which would be written through
            for path in (self.metrics, self.policy, self.request):
                check_regular(path)
            if not resume:
                raise InputError(
                    f"{self.path}: holds this run already; continue it with --resume, or choose another folder"
                )
            checkpoint = self.checkpoints.read()
            if checkpoint is not None and checkpoint.position > config["iterations"]:
                reached = f"iteration {checkpoint.position}"
                raise InputError(f"{self.path}: is already at {reached}, beyond {config['iterations']}")
        elif any(not is_partial(path) for path in self.path.iterdir()):
            raise InputError(f"{self.path}: the folder is not empty and holds no run; choose another")

    def finish(self, run: Run) -> None:
        run.policy.save(self.policy)
        write_json(self.config, dict(run.config))

    def read_config(self) -> Row:
        if not self.config.exists():
            raise Unusable(f"{label(self.name)}: no run here (config.json is missing)")
        where = label(self.name, "config.json")
        config = read_json(self.config, where)
        check_config(config, where)
        return config

    def read_metrics(self) -> list[Row]:
        """Every line up to the first that is not whole: a kill cuts the last one short, and it is measured again."""
        rows = []
        if self.metrics.is_file():
            with suppress(Unusable):
                for _, row in self.metric_rows(errors="replace"):
                    rows.append(row)
        return rows

    def metric_rows(self, errors: str = "strict") -> Iterator[tuple[str, Row]]:
        """Every row with its place, for messages; `Unusable` at the first line that is not a row."""
        where = label(self.name, "metrics.jsonl")
        for number, line in enumerate(read_text(self.metrics, where, errors).splitlines(), start=1):
            here = f"{where}, line {number}"
            row = parse_json(line, here)
            if not isinstance(row, dict) or not is_count(row.get("iteration")) or not is_count(row.get("member")):
                raise Unusable(f"{here}: not a row of metrics (iteration or member is missing or of the wrong type)")
            yield here, row

    def cut_metrics(self, iteration: int, evaluated: bool, rows: list[Row] | None = None) -> list[Row]:
        """Keep what had been measured when the checkpoint was written, with or without the evaluation there.

        `rows` are those that the checkpoint holds; one of an earlier release holds none, and the file is believed.
        """
        rows = self.read_metrics() if rows is None else rows
        kept = [row for row in rows if row["iteration"] < iteration + (evaluated or "returns" not in row)]
        self.write_metrics(kept)
        return kept

    def write_metrics(self, rows: Iterable[Row]) -> None:
        with atomic_write(self.metrics) as temporary:
            temporary.write_text("".join(json_line(row) for row in rows), encoding="utf-8")

    def append_metrics(self, rows: Iterable[Row]) -> None:
        check_regular(self.metrics)
        with system_errors_named(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.writelines(json_line(row) for row in rows)
            file.flush()
            os.fsync(file.fileno())


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Which part of two runs' identity differs. Iterations are not part of it: a longer run continues a shorter one."""
    for key in IDENTITY:
        if canonical(known(old.get(key), new.get(key))) != canonical(known(new.get(key), old.get(key))):
            return f"differs in {key.replace('_', ' ')}"
    return None


def known(value: Any, other: Any) -> Any:
    """A description of data, without `ends_sha256` where the other one, by an earlier release, has none."""
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return [known(own, theirs) for own, theirs in zip(value, other, strict=True)]
    if isinstance(value, dict) and isinstance(other, dict) and "sha256" in other and "ends_sha256" not in other:
        return {key: part for key, part in value.items() if key != "ends_sha256"}
    return value


def check_config(config: Any, where: str) -> None:
    place = mismatch(config, CONFIG)
    if place is None and not config["members"]:
        place = "members"
    if place is not None:
        told = f" ({place.split('.')[0]} is missing or of the wrong type)" if place else ""
        raise Unusable(f"{where}: not the config of a run{told}")


def read_run(path: Path, name: str) -> MeasuredRun:
    """The measurements of a finished run, whole and checked, or `Unusable`."""
    folder = RunFolder(path, name)
    config = folder.read_config()
    where = label(name, "metrics.jsonl")
    rows = whole_rows(folder, len(config["members"]))
    failed = config.get("failures", {})
    alive = [index for index in range(len(config["members"])) if str(index) not in failed]
    if not alive:
        raise Unusable(f"{where}: every member of the run failed")
    members = tuple(read_member(index, config, rows, where) for index in alive)
    schedules = {tuple(member.iteration.tolist()) for member in members}
    if len(schedules) > 1:
        raise Unusable(f"{where}: the members were not evaluated at the same iterations; the run is not finished")
    last = max((row["iteration"] for row in rows), default=0)
    evaluated_last = members[0].iteration[-1] if len(members[0].iteration) else last
    if last < config["iterations"] or evaluated_last < last:
        reached = min(last, int(evaluated_last))
        raise Unusable(f"{where}: the run is not finished ({reached:,} of {config['iterations']:,} iterations)")
    return MeasuredRun(name, config, members)


def whole_rows(folder: RunFolder, num_members: int) -> list[Row]:
    rows, seen = [], set()
    for here, row in folder.metric_rows():
        if row["member"] >= num_members:
            raise Unusable(f"{here}: member {row['member']} of a run that has {num_members}")
        if "returns" in row:
            check_evaluation(row, here)
        key = (row["iteration"], row["member"], "returns" in row)
        if key in seen:
            raise Unusable(f"{here}: iteration {row['iteration']} of member {row['member']} is there twice")
        seen.add(key)
        rows.append(row)
    return rows


def read_member(index: int, config: Row, rows: list[Row], where: str) -> Member:
    own = sorted((row for row in rows if row["member"] == index), key=lambda row: row["iteration"])
    evaluations = [row for row in own if "returns" in row]
    logged = [row for row in own if "returns" not in row]
    scores = [row["score"] for row in evaluations if row.get("score") is not None]
    if 0 < len(scores) < len(evaluations):
        raise Unusable(f"{where}: member {index} has a score in some evaluations and none in others")
    curves = make_curves([row["iteration"] for row in logged], logged)
    return make_member(config["members"][index], evaluations, curves, scores or None)
