"""Parquet files from outside: their tables, and columns of numbers.

A header may claim any number of rows, and a column may hold anything: both are checked before they are used.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demosift.data.checks import check_claim, check_memory, one_line, recognise
from demosift.data.parquet_footer import read_footer
from demosift.files import open_regular
from demosift.types import InputError

_BATCH_ROWS = 1 << 14


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file; whatever Arrow finds wrong with it becomes one line."""
    try:
        # Open, since Arrow takes no name that is not UTF-8, and some names for addresses.
        with open_regular(path) as source:
            if path.stat().st_size == 0:
                raise InputError(f"{path}: the file is empty")
            with pq.ParquetFile(source) as file:
                yield file
    except OSError as error:
        if error.errno:
            raise InputError(f"{path}: cannot read: {os.strerror(error.errno)}") from error
        raise InputError(f"{path}: damaged Parquet file: {one_line(error)}") from error
    except (pa.ArrowException, UnicodeDecodeError, MemoryError) as error:  # Unicode: a column's name
        kind = recognise(path)
        if kind == "a Parquet file":
            raise InputError(f"{path}: truncated or damaged Parquet file: {one_line(error)}") from error
        raise InputError(f"{path}: not a Parquet file: it is {kind}") from error


def column_names(path: Path) -> list[str]:
    with open_parquet(path) as file:
        return file.schema_arrow.names


def row_group_ends(path: Path) -> np.ndarray:
    """One past the last row of each row group, as the file's header says."""
    with open_parquet(path):
        return np.cumsum([group.num_rows for group in read_footer(path)], dtype=np.int64)


def read_table(path: Path, columns: Sequence[str] | None = None, row_groups: Sequence[int] | None = None) -> pa.Table:
    """A Parquet file, or some of its columns and row groups."""
    with open_parquet(path) as file:
        present, about, size = file.schema_arrow.names, read_footer(path), path.stat().st_size
        for name in present if columns is None else columns:
            if present.count(name) != 1:
                raise InputError(f"{path}: {name}: the file has {'two' if name in present else 'no'} such column")
        wanted = list(present if columns is None else columns)
        numbers = list(range(len(about)) if row_groups is None else row_groups)
        groups = [about[index] for index in numbers]
        num_rows = file.metadata.num_rows if row_groups is None else sum(group.num_rows for group in groups)
        values = sum(number for group in groups for name, number in group.num_values if name in wanted)
        for claimed in (sum(group.num_bytes for group in groups), 8 * num_rows, 8 * values):
            check_memory(str(path), claimed)
            check_claim(str(path), claimed, size)
        # A text that comes a million times is stored once: what that makes is known only as it is read.
        batches, num_bytes = [], 0
        for batch in file.iter_batches(_BATCH_ROWS, numbers, wanted, use_threads=False):
            num_bytes += batch.nbytes
            check_memory(str(path), num_bytes)
            check_claim(str(path), num_bytes, size)
            batches.append(batch)
        schema = batches[0].schema if batches else pa.schema([file.schema_arrow.field(name) for name in wanted])
        return pa.Table.from_batches(batches, schema)


def write_table(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pq.write_table(table, file)


def to_python(where: str, values: "pa.Table | pa.ChunkedArray | pa.Scalar") -> Any:
    """The rows of a small table, each a dictionary; the values of a column; or a single one."""
    try:
        return values.as_py() if isinstance(values, pa.Scalar) else values.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:  # such as a date beyond Python's
        raise InputError(f"{where}: cannot read: {one_line(error)}") from error


def as_numbers(path: Path, key: str, column: pa.ChunkedArray, width: int) -> np.ndarray:
    """A column of numbers, or of lists of `width` numbers, as an array (rows,) or (rows, width)."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # without chunks, or too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        raise InputError(f"{path}: {key}: row {array.is_null().index(True).as_py()}: is null")
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        lengths = np.asarray(array.value_lengths())
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise InputError(f"{path}: {key}: row {row}: has {lengths[row]} numbers, meta/info.json says {width}")
        values = array.flatten()
        if values.null_count:
            raise InputError(f"{path}: {key}: row {values.is_null().index(True).as_py() // width}: holds a null")
        return _plain(path, key, values).reshape(len(array), width)
    if width != 1:
        raise InputError(f"{path}: {key}: one {array.type} per row, meta/info.json says {width} numbers")
    return _plain(path, key, array)


def as_indices(path: Path, key: str, column: pa.ChunkedArray) -> np.ndarray:
    """A column that counts: whole numbers from 0."""
    values = as_numbers(path, key, column, 1).reshape(len(column))
    wrong = ~((values >= 0) & (values < 2**53) & (values == np.floor(values)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{path}: {key}: row {row}: {values[row]} does not count anything")
    return values.astype(np.int64)


def _plain(path: Path, key: str, values: pa.Array) -> np.ndarray:
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)):
        raise InputError(f"{path}: {key}: holds {values.type}, not numbers")
    return values.to_numpy(zero_copy_only=False)
