"""The native format: HDF5 in the D4RL layout, read and written whole, read in blocks, or reduced to what is kept."""

from pathlib import Path

from demosift.data.checks import looks_like_hdf5
from demosift.data.format import Format
from demosift.data.formats.hdf5.file import SUFFIXES, record_hdf5, write_hdf5
from demosift.data.formats.hdf5.rows import hdf5_fact_names, hdf5_facts
from demosift.data.formats.hdf5.selection import keep_hdf5


def is_hdf5(place: str) -> bool:
    return not Path(place).is_dir() and (Path(place).suffix.lower() in SUFFIXES or looks_like_hdf5(place))


FORMAT = Format(
    "hdf5",
    is_hdf5,
    lambda place: [lambda: record_hdf5(place)],
    write_hdf5,
    lambda place: [Path(place)],
    keep_hdf5,
    hdf5_facts,
    hdf5_fact_names,
    suffixes=SUFFIXES,
)
