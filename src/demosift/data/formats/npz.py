"""A folder of NumPy `.npz` files, an episode each: what a script writes with `numpy.savez`.

Files are taken in natural order (`episode_2` before `episode_10`). Their arrays have the native file's names;
`observations` may hold one row more than `actions`, the state after the last step. An optional `demosift.json` in the
folder holds facts about all of them. Object arrays are pickles and are refused.
"""

import io
import lzma
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.lib.format as npy

from demosift.data.actions import stored_actions
from demosift.data.checks import check_claim, check_memory, check_numeric, one_line, recognise
from demosift.data.format import Format
from demosift.data.formats.sidecar import SIDECAR, Sidecar, read_sidecar, write_sidecar
from demosift.data.recording import Recording, check_recording, episode_numbers, followed_rows, no_actions
from demosift.data.selection import Run, Selection
from demosift.files import atomic_folder, check_links, copy_regular, expanded, open_regular
from demosift.types import Dataset, InputError

PREFIX = "npz:"
DIGITS = tuple("0123456789")

_KEYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "origin")


def locate(place: str) -> Path:
    return expanded(place.removeprefix(PREFIX))


def is_npz(place: str) -> bool:
    return place.startswith(PREFIX) or (Path(place).is_dir() and any(Path(place).glob("*.npz")))


def natural_key(name: str) -> list[tuple[int, str]]:
    """A sort key that compares the numbers inside names by value, however long they are."""
    parts = re.split(r"([0-9]+)", name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if part[:1] in DIGITS else (-1, part) for part in parts]


def npz_files(place: str) -> list[Path]:
    folder = locate(place)
    files = sorted(folder.glob("*.npz"), key=lambda path: natural_key(path.name))
    if not files:
        raise InputError(f"{folder}: holds no .npz episodes")
    check_links(folder, *files, folder / SIDECAR)
    return [*files, *(path for path in [folder / SIDECAR] if path.is_file())]


def npz_parts(place: str) -> Sequence[partial[Recording]]:
    files, sidecar = npz_files(place), read_sidecar(locate(place) / SIDECAR)
    return [partial(_read_episode, path, sidecar) for path in files if path.name != SIDECAR]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of one `.npz` file. Nothing is unpickled: an array of objects is refused by name."""
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                raise InputError(f"{path}: not a whole .npz file: it is {recognise(path)}")
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                check_memory(str(path), sum(entry.file_size for entry in entries))
                return {entry.filename.removesuffix(".npy"): _read_array(path, archive, entry) for entry in entries}
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else one_line(error)
        raise InputError(f"{path}: cannot read: {reason}") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path}: damaged .npz file: {one_line(error)}") from error
    except (RuntimeError, UnicodeError, struct.error, MemoryError) as error:  # encrypted, or of an unknown kind
        raise InputError(f"{path}: damaged .npz file: {one_line(error)}") from error


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """One array, whose header may not claim more than the archive holds."""
    key = entry.filename.removesuffix(".npy")
    check_claim(f"{path}: {key}", entry.file_size, entry.compress_size)
    with archive.open(entry) as stored:
        content = stored.read()
    return read_npy(f"{path}: {key}", io.BytesIO(content), len(content))


def read_npy(where: str, file: BinaryIO, size: int) -> np.ndarray:
    """The array in a file of `size` bytes, which messages call `where`."""
    magic = file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
    try:
        file.seek(0)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = read_header[npy.read_magic(file)](file)
        if dtype.hasobject:
            raise InputError(f"{where}: holds Python objects: a pickle, which is never unpickled")
        if math.prod(shape) * dtype.itemsize != size - file.tell():
            raise InputError(f"{where}: damaged array: its header claims a shape of {shape}")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)
    except KeyError:
        raise InputError(f"{where}: is not a NumPy array") from None
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, RecursionError) as error:
        what = f"damaged array: {one_line(error)}" if magic else "is not a NumPy array"
        raise InputError(f"{where}: {what}") from error


def _read_episode(path: Path, sidecar: Sidecar) -> Recording:
    return record_episode(str(path), {k: array for k, array in read_arrays(path).items() if k in _KEYS}, sidecar)


def record_episode(source: str, arrays: dict[str, Any], sidecar: Sidecar, holder: str = "file") -> Recording:
    """One episode, be it a file or a dictionary in memory. A file may lack actions, which only an expert's may."""
    for key in ("observations", *(("actions",) if holder != "file" else ())):
        if key not in arrays:
            raise InputError(f"{source}: {key}: the {holder} has no such key")
    for key, array in arrays.items():
        check_numeric(source, key, array.dtype)
        if array.ndim == 0 and key != "terminals":
            raise InputError(f"{source}: {key}: has shape (), needs a row per step")
    if "actions" not in arrays:  # then another array with an entry per step tells how many steps there are
        told = [key for key in ("rewards", "terminals", "timeouts") if key in arrays and arrays[key].ndim]
        arrays["actions"] = no_actions(len(arrays[[*told, "observations"][0]]))
    steps = len(arrays["actions"])
    if steps == 0:
        raise InputError(f"{source}: actions: the episode is empty")
    if len(arrays["observations"]) == steps + 1:
        if "next_observations" in arrays:
            raise InputError(f"{source}: next_observations: given, though observations holds the last state too")
        states = arrays["observations"]
        arrays["observations"], arrays["next_observations"] = states[:-1], states[1:]
    terminals = arrays.get("terminals", np.bool_(False))
    if terminals.ndim == 0:  # of the last step
        arrays["terminals"] = np.concatenate([np.zeros(steps - 1, terminals.dtype), terminals.reshape(1)])
    arrays["timeouts"] = np.array(arrays.get("timeouts", np.zeros(steps, bool)))
    arrays["timeouts"][-1:] = 1  # a file is an episode; a terminal takes precedence
    return sidecar.recording(source, arrays.pop("origin", None), **arrays)


def npz_facts(place: str, name: str) -> dict[int, Any]:
    """The array NAME of each file, or its last entry, where every file is one episode."""
    found, sidecar = [], read_sidecar(locate(place) / SIDECAR)
    for path in npz_files(place):
        if path.name == SIDECAR:
            continue
        arrays = read_arrays(path)
        told = arrays.get(name)
        if told is None or told.ndim > 1 or not told.size:
            return {}
        recording = record_episode(str(path), {key: array for key, array in arrays.items() if key in _KEYS}, sidecar)
        number = len(episode_numbers(check_recording(recording)))
        if number > 1:
            return {}
        if number:  # others make no episode
            found.append(told.reshape(-1)[-1].item())
    return dict(enumerate(found))


def npz_fact_names(place: str) -> list[str]:
    return [name for name, array in read_arrays(npz_files(place)[0]).items() if array.ndim < 2 and array.size]


def keep_npz(place: str, target: str, selection: Selection) -> None:
    """The files of kept episodes; where single steps are dropped, a file per stretch of kept ones.

    Every array with an entry per step, or per state, is cut; `next_observations` is written where the last state of a
    stretch would be lost.
    """
    parts, sidecar = npz_parts(place), locate(place) / SIDECAR
    followed = [bool(followed_rows(check_recording(read())).any()) for read in parts]
    paths = [path for path, known in zip(npz_files(place), followed, strict=False) if known]
    if len(paths) != len(selection.episode_ends):
        raise InputError(f"{place}: a file holds several episodes; keep part of it in one file: --out KEPT.hdf5")
    with atomic_folder(locate(target), num_bytes=sum(path.stat().st_size for path in paths)) as folder:
        for run in selection.runs():
            path = paths[run.episode]
            if selection.whole:
                copy_regular(path, folder / path.name)
            else:
                name = f"{path.stem}_{run.start}.npz"
                np.savez(folder / name, allow_pickle=False, **_cut(read_arrays(path), run))
        if sidecar.is_file():
            copy_regular(sidecar, folder / SIDECAR)


def _cut(arrays: dict[str, np.ndarray], run: Run) -> dict[str, Any]:
    steps, states = len(arrays["actions"]), arrays["observations"]
    terminals = arrays.get("terminals")
    if terminals is not None and terminals.ndim == 0:
        arrays["terminals"] = np.append(np.zeros(steps - 1, bool), terminals.astype(bool))
    if len(states) == steps and "next_observations" not in arrays:
        arrays["next_observations"] = np.concatenate([states[1:], states[-1:]])

    def cut(array: np.ndarray) -> np.ndarray:
        extra = (len(array) if array.ndim else -1) - steps
        return array[run.start : run.stop + extra] if extra in (0, 1) else array

    return {key: cut(array) for key, array in arrays.items()}


def write_npz(dataset: Dataset, target: str) -> None:
    """Writes a new folder, whole or not at all; one that holds something is refused."""
    transitions, actions = dataset.transitions, stored_actions(dataset)
    digits = max(5, len(str(dataset.num_episodes - 1)))
    num_bytes = sum(array.nbytes for array in transitions) + 2048 * dataset.num_episodes
    with atomic_folder(locate(target), num_bytes=num_bytes) as folder:
        for index, (start, end) in enumerate(zip(dataset.episode_starts, dataset.episode_ends, strict=True)):
            rows = slice(start, end)
            arrays = {
                "observations": transitions.obs[rows],
                "actions": actions[rows],
                "rewards": transitions.reward[rows],
                "next_observations": transitions.next_obs[rows],
                "terminals": transitions.terminal[rows],
                "timeouts": dataset.timeout[rows],
            }
            if dataset.origin is not None:
                arrays["origin"] = dataset.origin.code[rows]
            np.savez(folder / f"episode_{index:0{digits}d}.npz", allow_pickle=False, **arrays)
        write_sidecar(folder / SIDECAR, dataset)


FORMAT = Format("npz", is_npz, npz_parts, write_npz, npz_files, keep_npz, npz_facts, npz_fact_names)
