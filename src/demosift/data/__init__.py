"""Reading, checking and writing files; the normaliser that travels with the policy.

A format is one module with a reader that fills a `Recording` and a writer, and one line in `FORMATS`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demosift.data import hdf5, minari
from demosift.data.actions import ActionMode, Bounds, count_actions
from demosift.data.atomic import atomic_folder, atomic_write, write_json
from demosift.data.checks import check_pair
from demosift.data.hdf5 import read_hdf5, write_hdf5
from demosift.data.minari import read_minari, write_minari
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.data.recording import Recording, assemble, check_recording
from demosift.types import Dataset, Demonstrations, InputError

__all__ = [
    "ActionMode",
    "NormaliseOver",
    "Normaliser",
    "atomic_folder",
    "atomic_write",
    "check_pair",
    "fit_normaliser",
    "format_of",
    "load",
    "read_dataset",
    "read_hdf5",
    "read_minari",
    "write_dataset",
    "write_hdf5",
    "write_json",
    "write_minari",
]

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Format:
    name: str
    reads: Callable[[Source], bool]  # is this source, which may not exist, of this format?
    writes: Callable[[Source], bool]
    record: Callable[[Source], Recording]
    write: Callable[[Dataset, Source], None]


def _has_hdf5_suffix(source: Source) -> bool:
    return Path(source).suffix.lower() in hdf5.SUFFIXES


FORMATS = (
    Format("minari", minari.is_minari, minari.is_minari, minari.record_minari, write_minari),
    # Last, and for every file: it is the one that can say what a file that is no data is.
    Format("hdf5", lambda source: not Path(source).is_dir(), _has_hdf5_suffix, hdf5.record_hdf5, write_hdf5),
)


def format_of(source: Source) -> Format:
    for candidate in FORMATS:
        if candidate.reads(source):
            return candidate
    raise InputError(f"{os.fspath(source)}: a folder that holds no Minari dataset (data/metadata.json)")


def read_dataset(source: Source, actions: ActionMode = "check", max_episode_steps: int | None = None) -> Dataset:
    """Reads a `.hdf5` or `.h5` file in the D4RL layout, `minari:ID`, or the folder of a Minari dataset.

    `actions` says what to do with actions outside their bounds: refuse them ("check"), "clip" them, or "rescale" to the
    data's own range. `max_episode_steps` cuts longer episodes, for files that mark no time limits.
    """
    return assemble(_record(source, actions), actions, max_episode_steps)


def write_dataset(dataset: Dataset, target: Source) -> None:
    """Writes a `.hdf5` or `.h5` file, or `minari:ID` (`minari:./folder` for a place of your own)."""
    if len(dataset) == 0:
        raise InputError(f"{os.fspath(target)}: nothing to write: the set is empty")
    for candidate in FORMATS:
        if candidate.writes(target):
            return candidate.write(dataset, target)
    raise InputError(f"{os.fspath(target)}: unknown format; name a .hdf5 file or minari:ID")


def load(
    expert: Source,
    supplementary: Source | None = None,
    actions: ActionMode = "check",
    max_episode_steps: int | None = None,
) -> Demonstrations:
    """Reads the expert set and, where given, the supplementary set, and checks that they belong together.

    Both get the same action units: what one file states of bounds or the number of actions also holds for a file that
    states nothing, and "rescale" uses the range of both together.
    """
    if supplementary is None:
        return Demonstrations(read_dataset(expert, actions, max_episode_steps))
    recordings = _record(expert, actions), _record(supplementary, actions)
    bounds, num_actions = _shared_action_space(*recordings, actions)
    first, second = (assemble(r, actions, max_episode_steps, bounds, num_actions) for r in recordings)
    check_pair(first, second)
    return Demonstrations(first, second)


def _record(source: Source, actions: ActionMode) -> Recording:
    if actions not in ("check", "clip", "rescale"):
        raise InputError(f"actions: {actions!r} is unknown; choose check, clip or rescale")
    return check_recording(format_of(source).record(source))


def _shared_action_space(a: Recording, b: Recording, actions: ActionMode) -> tuple[Bounds | None, int | None]:
    """The bounds or the number of actions of both files; nothing where they differ in kind, which is checked later."""
    if a.discrete and b.discrete:
        stated = {r.num_actions for r in (a, b) if r.num_actions is not None}
        if len(stated) == 2:
            return None, None
        return None, max(stated) if stated else max(count_actions(a.actions), count_actions(b.actions))
    if a.discrete or b.discrete or a.actions.shape[1] != b.actions.shape[1]:
        return None, None
    if actions == "rescale":
        return Bounds.of_data(a.actions, b.actions), None
    if a.bounds is not None and b.bounds is not None and not a.bounds.close_to(b.bounds):
        raise InputError(f"{b.source}: actions: bounds differ from those of {a.source}; use files of one environment")
    return a.bounds or b.bounds, None
