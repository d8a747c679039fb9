"""Which module reads and writes a source: the registry of formats.

A format is one module that gives the parts of a source (`Recording`s, each of whole episodes) and writes a `Dataset`;
and one entry in `FORMATS`. A source is recognised by its prefix or by what it holds, never by trying to read it all.
Options follow a path after `::`, as in `demo.hdf5::obs=object,robot0_eef_pos::filter=train`.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from demosift.data.formats import (
    hdf5,
    hdf5_selection,
    lerobot,
    minari,
    npz,
    robomimic,
    robomimic_selection,
)
from demosift.data.recording import Recording
from demosift.types import Dataset, InputError

Source = str | os.PathLike[str]
Part = Callable[[], Recording]


@dataclass(frozen=True)
class Format:
    name: str
    reads: Callable[[str], bool]  # is this place, which may not exist, of this format?
    writes: Callable[[str], bool]
    parts: Callable[..., Sequence[Part]]  # of a place and its options, in order; reads little before a part is called
    write: Callable[[Dataset, str], None]
    files: Callable[[str], Sequence[Path]]  # what the data consist of
    keep: Callable[..., None]  # place, target, `Selection`, options: the kept part and all that belongs to it
    options: tuple[str, ...] = ()


def _whole(record: Callable[[str], Recording]) -> Callable[[str], Sequence[Part]]:
    return lambda place: [lambda: record(place)]


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called: a machine that only trains may lack Parquet's library."""
    return lambda *arguments, **options: getattr(import_module(f"demosift.data.formats.{module}"), name)(
        *arguments, **options
    )


FORMATS = (
    Format(
        name="minari",
        reads=minari.is_minari,
        writes=minari.is_minari,
        parts=_whole(minari.record_minari),
        write=minari.write_minari,
        files=minari.minari_files,
        keep=hdf5_selection.keep_minari,
    ),
    Format(
        name="lerobot",
        reads=lerobot.is_lerobot,
        writes=lambda place: place.startswith(lerobot.PREFIX),
        parts=_later("lerobot.reading", "lerobot_parts"),
        write=_later("lerobot.writing", "write_lerobot"),
        files=_later("lerobot.reading", "lerobot_files"),
        keep=_later("lerobot.selection", "keep_lerobot"),
        options=("obs",),
    ),
    Format(
        name="npz",
        reads=npz.is_npz,
        writes=lambda place: place.startswith(npz.PREFIX),
        parts=npz.npz_parts,
        write=npz.write_npz,
        files=npz.npz_files,
        keep=npz.keep_npz,
    ),
    Format(
        name="robomimic",
        reads=robomimic.is_robomimic,
        writes=lambda place: place.startswith(robomimic.PREFIX),
        parts=robomimic.robomimic_parts,
        write=robomimic.write_robomimic,
        files=lambda place: [robomimic.locate(place)],
        keep=robomimic_selection.keep_robomimic,
        options=("obs", "filter"),
    ),
    # Last, and for every file: it is the one that can say what a file that is no data is.
    Format(
        name="hdf5",
        reads=lambda place: not Path(place).is_dir(),
        writes=lambda place: Path(place).suffix.lower() in hdf5.SUFFIXES,
        parts=_whole(hdf5.record_hdf5),
        write=hdf5.write_hdf5,
        files=lambda place: [Path(place)],
        keep=hdf5_selection.keep_hdf5,
    ),
)


def split_options(source: Source) -> tuple[str, dict[str, str]]:
    """The place a source names, and its options."""
    text = os.fspath(source)
    place, *rest = text.split("::")
    options = {}
    for part in rest:
        name, _, value = part.partition("=")
        if not value:
            raise InputError(f"{text}: after :: comes NAME=VALUE, not {part!r}")
        options[name] = value
    return place, options


def format_of(source: Source) -> Format:
    place, options = split_options(source)
    for candidate in FORMATS:
        if candidate.reads(place):
            unknown = options.keys() - candidate.options
            if unknown:
                known = ", ".join(candidate.options) or "none"
                raise InputError(f"{os.fspath(source)}: {min(unknown)}: no option of {candidate.name} data ({known})")
            return candidate
    raise InputError(
        f"{os.fspath(source)}: a folder that holds no Minari dataset (data/metadata.json), no LeRobot dataset "
        "(meta/info.json) and no .npz episodes"
    )


def parts_of(source: Source) -> Sequence[Part]:
    """What reads each part of a source; `Recording`s made of them still need `check_recording`."""
    place, options = split_options(source)
    return format_of(source).parts(place, **options)


def digest_source(source: Source) -> str:
    """A fingerprint of a source: of the bytes of its files, in order, and of its options. Names may change."""
    place, options = split_options(source)
    sha = hashlib.sha256(str(sorted(options.items())).encode())
    for path in format_of(source).files(place):
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno or 0)}") from error
        sha.update(content)
    return sha.hexdigest()
