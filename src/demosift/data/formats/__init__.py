"""Which module reads and writes a source: the registry of formats.

A format is one module, or a folder, and one entry in `FORMATS`. It gives the parts of a source (`Recording`s, each of
whole episodes), writes a `Dataset` and copies the kept part of a source. `sidecar` is for facts it has no place for.
A source is recognised by its prefix or by what it holds, never by trying to read it all. Options follow a path after
`::`, as in `demo.hdf5::obs=object,robot0_eef_pos::filter=train`. Every format has `episodes` and `without`, the numbers
of the episodes to read or to leave out; what is chosen is read by `demosift.data`, not by the format.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from demosift.data.formats import minari, npz, robomimic
from demosift.data.formats.hdf5.file import SUFFIXES, record_hdf5, write_hdf5
from demosift.data.formats.hdf5.rows import hdf5_facts
from demosift.data.formats.hdf5.selection import keep_hdf5
from demosift.data.formats.lerobot import is_lerobot
from demosift.data.recording import Recording
from demosift.files import open_regular
from demosift.types import Dataset, InputError

Source = str | os.PathLike[str]
Part = Callable[[], Recording]


@dataclass(frozen=True)
class Format:
    name: str
    reads: Callable[[str], bool]  # is this place, which may not exist, of this format?
    parts: Callable[..., Sequence[Part]]  # of a place and its options, in order; reads little before a part is called
    write: Callable[[Dataset, str], None]
    files: Callable[[str], Sequence[Path]]  # what the data consist of
    keep: Callable[..., None]  # place, target, `Selection`, options: the kept part and all that belongs to it
    facts: Callable[[str, str], Mapping[int, Any]] | None = None  # of episodes, by number: a place and a fact's name
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()  # of the files it writes, where a target needs no prefix

    def writes(self, target: str) -> bool:
        return Path(target).suffix.lower() in self.suffixes if self.suffixes else target.startswith(f"{self.name}:")


def _lerobot(module: str, name: str) -> Callable[..., Any]:
    """A function whose module is imported when it is called: a machine that only trains may lack Parquet's library."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f"demosift.data.formats.lerobot.{module}"), name)(*arguments, **options)

    return call


FORMATS = (
    Format(
        "minari",
        minari.is_minari,
        lambda place: [lambda: minari.record_minari(place)],
        minari.write_minari,
        minari.minari_files,
        minari.keep_minari,
    ),
    Format(
        "lerobot",
        is_lerobot,
        _lerobot("reading", "lerobot_parts"),
        _lerobot("writing", "write_lerobot"),
        _lerobot("reading", "lerobot_files"),
        _lerobot("selection", "keep_lerobot"),
        _lerobot("reading", "lerobot_facts"),
        options=("obs",),
    ),
    Format("npz", npz.is_npz, npz.npz_parts, npz.write_npz, npz.npz_files, npz.keep_npz),
    Format(
        "robomimic",
        robomimic.is_robomimic,
        robomimic.robomimic_parts,
        robomimic.write_robomimic,
        lambda place: [robomimic.locate(place)],
        robomimic.keep_robomimic,
        robomimic.robomimic_facts,
        options=("obs", "filter"),
    ),
    # Last, and for every file: it is the one that can say what a file without data is.
    Format(
        "hdf5",
        lambda place: not Path(place).is_dir(),
        lambda place: [lambda: record_hdf5(place)],
        write_hdf5,
        lambda place: [Path(place)],
        keep_hdf5,
        hdf5_facts,
        suffixes=SUFFIXES,
    ),
)


EPISODES, WITHOUT = "episodes", "without"


def split_options(source: Source) -> tuple[str, dict[str, str]]:
    """The place a source names, and the options for its format."""
    place, options = _split(source)
    return place, {name: value for name, value in options.items() if name not in (EPISODES, WITHOUT)}


def chosen_episodes(source: Source) -> tuple[str, bool] | None:
    """The numbers of episodes that a source names, and whether they are left out instead of read."""
    _, options = _split(source)
    if options.keys() >= {EPISODES, WITHOUT}:
        raise InputError(f"{os.fspath(source)}: give either {EPISODES} or {WITHOUT}")
    return next(((options[name], name == WITHOUT) for name in (EPISODES, WITHOUT) if name in options), None)


def _split(source: Source) -> tuple[str, dict[str, str]]:
    text = os.fspath(source)
    place, *rest = text.split("::")
    options = {}
    for part in rest:
        name, _, value = part.partition("=")
        if not value:
            raise InputError(f"{text}: expected NAME=VALUE after ::, not {part!r}")
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
    """The functions that read the parts of a source; what they give still needs `check_recording`."""
    place, options = split_options(source)
    return format_of(source).parts(place, **options)


def digest_source(source: Source) -> str:
    """A fingerprint of the bytes of a source's files, in order, and of its options. Files may be renamed."""
    place, options = _split(source)
    sha = hashlib.sha256(str(sorted(options.items())).encode())
    for path in format_of(source).files(place):
        try:
            with open_regular(path) as file:
                content = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno or 0)}") from error
        sha.update(content)
    return sha.hexdigest()
