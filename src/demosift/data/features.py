"""Rows whose state has more columns than their file: embeddings of pictures, or any features of the user's own.

`FeatureRows` is a `RowSource`, so whatever reads rows works with it. A features file has a row of numbers for every row
of its dataset, or for every stored frame of a LeRobot dataset:

    .npy       the array
    .npz       the array `features`, and optionally `digest`, what `digest_source` says about the dataset
    .parquet   a column `features` of lists, or the columns of numbers; the columns `index`, `episode_index` and
               `frame_index`, where there, are compared with the dataset's; the file's metadata may hold `digest`

Wide features are reduced to their principal components, fitted to all sources together.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int

from demosift.data.checks import as_matrix, check_memory
from demosift.data.formats import Source, digest_source, format_of, split_options
from demosift.data.formats.npz import read_arrays, read_npy
from demosift.data.rows import BLOCK, Rows, RowSource, WrappedRows
from demosift.files import expanded, open_regular
from demosift.types import Dataset, InputError

COMPONENTS = 32
MOST_COLUMNS = 4_096  # that are reduced: memory grows with their square, time with their cube
STATE = "state"  # what the dataset's own columns are called where it does not name them

Features = Float32[np.ndarray, "rows columns"]


@dataclass(frozen=True)
class FeatureRows(WrappedRows):
    """The rows of a source with features beside, or in place of, their state.

    `cameras`: the name and width of each group of features, in the order of their columns.
    """

    features: Features
    cameras: Mapping[str, int]
    state: bool = True

    @property
    def obs_dim(self) -> int:
        return self.features.shape[1] + self.state * self.rows.obs_dim

    @property
    def action_dim(self) -> int:
        return self.rows.action_dim

    @property
    def discrete(self) -> bool:
        return self.rows.discrete

    @property
    def obs_keys(self) -> dict[str, int]:
        """The widths of the parts of the state, the dataset's own first."""
        stated: Mapping[str, int] | None = getattr(self.rows, "obs_keys", None)
        own = stated if stated and sum(stated.values()) == self.rows.obs_dim else {STATE: self.rows.obs_dim}
        return {**(own if self.state else {}), **{f"camera {name}": width for name, width in self.cameras.items()}}

    @property
    def camera_columns(self) -> dict[str, slice]:
        first, columns = self.state * self.rows.obs_dim, {}
        for name, width in self.cameras.items():
            columns[name] = slice(first, first + width)
            first += width
        return columns

    def blocks(self, rows: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Rows]:
        bounds = self.layout(rows).bounds(start, stop)
        for (first, end), (obs, action) in zip(bounds, self.rows.blocks(rows, start, stop), strict=True):
            yield self._join(obs, self.features[first:end]), action

    def take(self, indices: Int[np.ndarray, "rows"]) -> Rows:
        obs, action = self.rows.take(indices)
        return self._join(obs, self.features[indices]), action

    def _join(self, obs: Float32[np.ndarray, "rows obs"], features: Features) -> Float32[np.ndarray, "rows joined"]:
        return np.concatenate([obs, features], axis=1) if self.state else np.asarray(features)


@dataclass(frozen=True)
class Components:
    """Principal components: what they are subtracted from, their directions, and the share of variance they keep."""

    mean: Float[np.ndarray, "columns"]
    axes: Float[np.ndarray, "columns components"]
    share: float

    def apply(self, values: Float[np.ndarray, "rows columns"]) -> Features:
        parts = [values[i : i + BLOCK].astype(np.float64) for i in range(0, len(values), BLOCK)]
        return np.concatenate([((part - self.mean) @ self.axes).astype(np.float32) for part in parts])


def fit_components(parts: Sequence[Float[np.ndarray, "rows columns"]], most: int) -> Components:
    """The directions in which all parts together vary most, from their covariance. The largest entry is positive."""
    if parts[0].shape[1] > MOST_COLUMNS:
        raise InputError(f"features: {parts[0].shape[1]:,} columns; reduce them to {MOST_COLUMNS:,} or less first")
    count = sum(map(len, parts))
    mean = np.sum([part.sum(axis=0, dtype=np.float64) for part in parts], axis=0) / count
    covariance = np.zeros((len(mean), len(mean)))
    for part in parts:
        for start in range(0, len(part), BLOCK):
            centred = part[start : start + BLOCK].astype(np.float64) - mean
            covariance += centred.T @ centred / count
    variance, axes = np.linalg.eigh(covariance)
    variance, axes = variance[::-1], axes[:, ::-1]
    kept = max(int((variance[:most] > 1e-9 * max(variance[0], 1e-30)).sum()), 1)
    axes = axes[:, :kept] * np.sign(axes[np.abs(axes[:, :kept]).argmax(axis=0), np.arange(kept)])
    return Components(mean, axes, float(variance[:kept].sum() / max(variance.sum(), 1e-30)))


def read_features(given: Any, source: Source | Dataset, rows: RowSource) -> Features:
    """The features of a source's rows, from a file or an array, or what is wrong with them."""
    if not isinstance(given, str | os.PathLike):
        return _of_rows("features", np.asarray(given), rows)
    path = expanded(os.fspath(given))
    if not path.is_file():
        raise InputError(f"{path}: no such features file")
    readers = {".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: features are read from .npy, .npz and .parquet files")
    array, digest, indices = readers[path.suffix.lower()](path)
    if array.ndim != 2:
        _of_rows(str(path), array, rows)
    if digest is not None and not isinstance(source, Dataset) and digest != digest_source(source):
        raise InputError(f"{path}: the features of another dataset than {rows.source}, or it changed since")
    if len(array) != rows.num_rows and not isinstance(source, Dataset) and format_of(source).name == "lerobot":
        known, frame = _frames(source, rows)
        if len(array) == len(known["index"]):
            _compare(path, indices, known)
            array = array[frame]
    else:
        number, lengths = np.arange(rows.num_rows), np.diff(rows.episode_ends, prepend=0)
        _compare(path, indices, {"frame_index": number - np.repeat(rows.episode_starts, lengths)})
    return _of_rows(str(path), array, rows)


def _of_rows(where: str, array: np.ndarray, rows: RowSource) -> Features:
    if array.ndim != 2 or len(array) != rows.num_rows:
        needed = f"a row for each of the {rows.num_rows:,} rows (or LeRobot frames) of {rows.source}"
        raise InputError(f"{where}: has shape {array.shape}, needs {needed}")
    return as_matrix(where, "features", array)


def _frames(source: Source, rows: RowSource) -> tuple[dict[str, np.ndarray], Int[np.ndarray, "rows"]]:
    """The indices of every stored frame of a LeRobot dataset, and which frame each row is."""
    from demosift.data.formats.lerobot.selection import list_frames

    place, options = split_options(source)
    indices, row = list_frames(place, **options)
    _, frame = np.unique(row, return_index=True)  # the first: a last frame without a row is given the one before it
    return dict(zip(("episode_index", "frame_index", "index"), indices.T, strict=True)), frame


def _compare(path: Path, stated: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> None:
    for name in stated.keys() & known.keys():
        if not np.array_equal(stated[name], known[name]):
            raise InputError(f"{path}: {name}: not that of the dataset: the features of another one, or in other order")


def _read_npy(path: Path) -> tuple[np.ndarray, str | None, dict[str, np.ndarray]]:
    try:
        size = path.stat().st_size
        check_memory(str(path), size)
        with open_regular(path) as file:
            return read_npy(str(path), file, size), None, {}
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error


def _read_npz(path: Path) -> tuple[np.ndarray, str | None, dict[str, np.ndarray]]:
    arrays = read_arrays(path)
    if "features" not in arrays:
        raise InputError(f"{path}: features: the file has no such array (it has {', '.join(arrays) or 'none'})")
    digest = arrays.get("digest")
    return arrays["features"], None if digest is None else str(digest), {}


def _read_parquet(path: Path) -> tuple[np.ndarray, str | None, dict[str, np.ndarray]]:
    import pyarrow as pa

    from demosift.data.parquet import as_numbers, read_table

    table = read_table(path)
    indices = {
        name: as_numbers(path, name, table[name], 1)
        for name in ("index", "episode_index", "frame_index")
        if name in table.column_names
    }
    digest = (table.schema.metadata or {}).get(b"digest")
    names = [name for name in table.column_names if name not in indices]
    if "features" in names:
        first: Any = table["features"][0] if len(table) else None
        width = len(first.values) if isinstance(first, pa.ListScalar) and first.is_valid else 1
        array = as_numbers(path, "features", table["features"], width).reshape(len(table), width)
    elif names:
        array = np.stack([as_numbers(path, name, table[name], 1).reshape(len(table)) for name in names], axis=1)
    else:
        raise InputError(f"{path}: features: the file has no columns of numbers")
    return array, None if digest is None else digest.decode("utf-8", "replace"), indices


def reduce_features(
    features: Sequence[Features], components: int = COMPONENTS
) -> tuple[list[Features], dict[str, Any]]:
    """Features of several datasets, of no more columns than `components`, and what was done to them."""
    widths = {part.shape[1] for part in features}
    if len(widths) != 1:
        raise InputError(f"features: {' and '.join(map(str, sorted(widths)))} columns; all datasets need the same")
    (width,) = widths
    if width <= components:
        return list(features), {"columns": width}
    fitted = fit_components(features, components)
    parts = [fitted.apply(part) for part in features]
    return parts, {"columns": width, "components": parts[0].shape[1], "variance": round(fitted.share, 6)}
