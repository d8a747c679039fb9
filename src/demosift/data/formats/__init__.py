"""Which format a source has. The formats are in `registry.FORMATS`, those of other packages among them.

A format is one module, or a folder, with a `Format`, and one line in the registry. It gives the parts of a source
(`Recording`s, each of whole episodes), writes a `Dataset` and copies the kept part of a source. `sidecar` is for facts
it has no place for. A source is recognised by its prefix or by what it holds, never by trying to read it all. Options
follow a path after `::`, as in `demo.hdf5::obs=object,robot0_eef_pos::filter=train`. Every format has `episodes` and
`without`, the numbers of the episodes to read or to leave out; what is chosen is read by `demosift.data`, not by the
format.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from demosift.data.format import Format, Part
from demosift.files import digest_file
from demosift.registry import FORMATS
from demosift.types import InputError

Source = str | os.PathLike[str]

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


def named_format(place: str) -> Format | None:
    """The format that a prefix names."""
    prefix, colon, _ = place.partition(":")
    return FORMATS[prefix] if colon and prefix in FORMATS else None


def candidates() -> Iterator[Format]:
    """Ours, and then those of other packages, which are not imported for a source of ours."""
    for name in FORMATS.ours:
        yield FORMATS[name]
    yield from (found for name, found in FORMATS.loaded().items() if name not in FORMATS.ours)


def format_of(source: Source) -> Format:
    place, options = split_options(source)
    found = named_format(place) or next((each for each in candidates() if each.reads(place)), None)
    if found is None and Path(place).is_dir():
        raise InputError(
            f"{os.fspath(source)}: a folder that holds no Minari dataset (data/metadata.json), no LeRobot dataset "
            "(meta/info.json) and no .npz episodes"
        )
    found = found or FORMATS["hdf5"]  # the one that can say what a file without data is
    unknown = options.keys() - found.options
    if unknown:
        known = ", ".join(found.options) or "none"
        raise InputError(f"{os.fspath(source)}: {min(unknown)}: no option of {found.name} data ({known})")
    return found


def format_to_write(target: str) -> Format:
    suffix = Path(target).suffix.lower()
    found = named_format(target) or next((each for each in candidates() if suffix in each.suffixes), None)
    if found is None:
        others = "".join(f", {name}:PLACE" for name in FORMATS if name not in FORMATS.ours)
        raise InputError(
            f"{target}: unknown format; name a .hdf5 file, robomimic:FILE, lerobot:FOLDER, npz:FOLDER{others} or "
            "minari:ID"
        )
    if found.write is None:
        raise InputError(f"{target}: {found.name} data are only read; write another format")
    return found


def parts_of(source: Source) -> Sequence[Part]:
    """The functions that read the parts of a source; what they give still needs `check_recording`."""
    place, options = split_options(source)
    return format_of(source).parts(place, **options)


def source_files(source: Source) -> Sequence[Path]:
    """The files that a source's data consist of, in order."""
    return format_of(source).files_of(_split(source)[0])


def digest_source(source: Source) -> str:
    """A fingerprint of the bytes of a source's files, in order, and of its options. Files may be renamed."""
    sha = hashlib.sha256(str(sorted(_split(source)[1].items())).encode())
    for path in source_files(source):
        try:
            sha.update(digest_file(path))
        except OSError as error:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno or 0)}") from error
    return sha.hexdigest()
