"""The kept part of a robomimic file, and filter keys: its own way to name a part."""

import shutil
from typing import Any

import h5py
import numpy as np

from demosift.data.checks import open_hdf5
from demosift.data.formats.hdf5_selection import copy_attributes, copy_tree
from demosift.data.formats.robomimic import locate, read_filter_key, robomimic_parts
from demosift.data.recording import check_recording, followed_rows
from demosift.data.selection import Run, Selection
from demosift.files import atomic_write
from demosift.types import InputError


def keep_robomimic(place: str, target: str, selection: Selection, **options: str) -> None:
    """Kept demonstrations with all their arrays, images too.

    Whole ones keep their names, so that filter keys go on naming them. Where single steps go, every stretch becomes a
    demonstration, numbered anew with the old name in its attribute `source_demo`, and `next_obs` is written even if the
    file had none.
    """
    path = locate(place)
    demos = list_episodes(place, **options)
    names: dict[str, list[str]] = {}
    with (
        open_hdf5(path) as file,
        atomic_write(locate(target), path.stat().st_size) as temporary,
        h5py.File(temporary, "w") as copy,
    ):
        copy_attributes(file, copy)
        data = copy.create_group("data")
        copy_attributes(file["data"], data)
        total = 0
        for number, run in enumerate(selection.runs()):
            old = demos[run.episode]
            new = old if selection.whole else f"demo_{number}"
            total += _copy_demo(file[f"data/{old}"], data.create_group(new), run, selection.whole)
            names.setdefault(old, []).append(new)
            if not selection.whole:
                data[new].attrs["source_demo"] = old
        data.attrs["total"] = total
        mask = file.get("mask")
        for key in mask if isinstance(mask, h5py.Group) else ():
            kept = [new for old in read_filter_key(file, str(key)) for new in names.get(old, ())]
            copy.create_dataset(f"mask/{key}", data=np.array(kept, "S"))


def list_episodes(place: str, **options: str) -> list[str]:
    """The demonstration of each episode that `read_dataset` gives: those with a row whose successor is known."""
    names = []
    for read in robomimic_parts(place, **options):
        part = check_recording(read())
        if followed_rows(part).any():
            names.append(part.source.rpartition("/")[2])
    return names


def _copy_demo(source: Any, target: h5py.Group, run: Run, whole: bool) -> int:
    """One demonstration or a stretch of it; how many rows it has."""
    steps = len(source["actions"])
    wanted = np.arange(steps) if whole else np.arange(run.start, run.stop)
    copy_tree(source, target, steps, wanted)
    target.attrs["num_samples"] = len(wanted)
    if not whole and "next_obs" not in source:
        # A last step that is terminal has no successor: its own state stands in, as in a native file.
        following = np.minimum(wanted + 1, steps - 1)
        copy_tree(source["obs"], target.create_group("next_obs"), steps, following)
    return len(wanted)


def write_filter_key(place: str, target: str, name: str, selection: Selection, **options: str) -> None:
    """A copy of the file in which `mask/NAME` lists the kept demonstrations."""
    path, destination = locate(place), locate(target)
    if not name or "/" in name:
        raise InputError(f"{name!r}: not a name for a filter key")
    demos = list_episodes(place, **options)
    kept = [demos[episode] for episode in selection.episodes]
    with open_hdf5(path) as file:
        if "mask" in file and name in file["mask"]:  # pyright: ignore[reportOperatorIssue]
            raise InputError(f"{path}: mask/{name}: the file has this filter key already; choose another name")
    with atomic_write(destination, path.stat().st_size + 65536) as temporary:
        shutil.copyfile(path, temporary)
        with h5py.File(temporary, "r+") as copy:
            copy.create_dataset(f"mask/{name}", data=np.array(kept, "S"))
