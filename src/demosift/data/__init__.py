"""Reading, checking and writing files; the normaliser that travels with the policy.

`formats.FORMATS` lists what is read and written; `rows` reads what does not fit in memory.
"""

import os

from demosift.data.actions import ActionMode, shared_action_space
from demosift.data.checks import check_memory, check_pair, check_same_keys
from demosift.data.formats import FORMATS, Source, digest_source, format_of, parts_of
from demosift.data.formats.hdf5 import read_hdf5, write_hdf5
from demosift.data.formats.minari import read_minari, write_minari
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.data.recording import Recording, assemble, check_recording, join_recordings
from demosift.data.rows import RowSource, open_pair, open_rows
from demosift.files import atomic_folder, atomic_write, write_json
from demosift.types import Dataset, Demonstrations, InputError

__all__ = [
    "ActionMode",
    "NormaliseOver",
    "Normaliser",
    "RowSource",
    "atomic_folder",
    "atomic_write",
    "check_pair",
    "digest_source",
    "fit_normaliser",
    "format_of",
    "load",
    "open_pair",
    "open_rows",
    "read_dataset",
    "read_hdf5",
    "read_minari",
    "write_dataset",
    "write_hdf5",
    "write_json",
    "write_minari",
]


def read_dataset(source: Source, actions: ActionMode = "check", max_episode_steps: int | None = None) -> Dataset:
    """Reads an HDF5 file (D4RL's layout or robomimic's), `minari:ID`, or a folder (Minari, LeRobot, `.npz` episodes).

    `actions` says what to do with actions outside their bounds: refuse them ("check"), "clip" them, or "rescale" to the
    data's own range. `max_episode_steps` cuts longer episodes, for files that mark no time limits.
    """
    return assemble(_record(source, actions), actions, max_episode_steps)


def write_dataset(dataset: Dataset, target: Source) -> None:
    """Writes a `.hdf5` or `.h5` file; `robomimic:FILE`, `lerobot:FOLDER`, `npz:FOLDER`; or `minari:ID`."""
    if len(dataset) == 0:
        raise InputError(f"{os.fspath(target)}: nothing to write: the set is empty")
    for candidate in FORMATS:
        if candidate.writes(os.fspath(target)):
            return candidate.write(dataset, os.fspath(target))
    raise InputError(
        f"{os.fspath(target)}: unknown format; name a .hdf5 file, "
        "robomimic:FILE, lerobot:FOLDER, npz:FOLDER or minari:ID"
    )


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
    recordings = a, b = _record(expert, actions), _record(supplementary, actions)
    check_same_keys(a.source, a.obs_keys, b.source, b.obs_keys)
    bounds, num_actions = shared_action_space(a, b, actions)
    first, second = (assemble(r, actions, max_episode_steps, bounds, num_actions) for r in recordings)
    check_pair(first, second)
    return Demonstrations(first, second)


def _record(source: Source, actions: ActionMode) -> Recording:
    if actions not in ("check", "clip", "rescale"):
        raise InputError(f"actions: {actions!r} is unknown; choose check, clip or rescale")
    parts, num_bytes = [], 0
    for read in parts_of(source):
        part = check_recording(read())
        num_bytes += 2 * part.observations.nbytes + part.actions.nbytes
        check_memory(os.fspath(source), num_bytes)
        parts.append(part)
    return join_recordings(os.fspath(source), parts)
