"""Embeddings of a dataset's pictures, as columns beside its states.

Every n-th picture of an episode is embedded, and its last one; between two of them the columns change linearly. The
embeddings of each camera are reduced to their principal components, which are fitted to all sources together. What the
encoder said is kept in a cache folder under the digest of the data, the pictures, the encoder and the settings: a file
there is whole or absent, and holds what it is of.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from demosift.data import RowSource, digest_source, open_rows, without_episodes
from demosift.data.checks import check_finite, check_memory
from demosift.data.features import COMPONENTS, FeatureRows, fit_components, read_features, reduce_features
from demosift.data.formats import Source
from demosift.files import Unusable, atomic_write, cache_folder, canonical, digest_file, expanded
from demosift.policy import read_tensors
from demosift.progress import Progress
from demosift.types import Dataset, InputError
from demosift.vision.encoder import DEFAULT, Encoder, load_encoder
from demosift.vision.frames import Camera, Picture, open_cameras

EVERY = 5
Embeddings = Float32[np.ndarray, "pictures numbers"]


@dataclass(frozen=True)
class Cameras:
    """How pictures become columns of the state.

    `names`: the cameras, by default all that every source has. `encoder`: "default", or an ONNX file. `every`: of how
    many pictures one is embedded. `components`: the most columns of each camera. `size`: of pictures in pixels, where
    the encoder leaves it open (224). `cache`: a folder, by default `cache_folder()`.
    """

    names: Sequence[str] = ()
    encoder: str | os.PathLike[str] = DEFAULT
    every: int = EVERY
    components: int = COMPONENTS
    size: int | None = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("every", "components"):
            if getattr(self, name) < 1:
                raise InputError(f"cameras: {name}: {getattr(self, name)} is not a positive number")


class Table(NamedTuple):
    """Features of every row of a dataset, whichever of its episodes are wanted."""

    rows: RowSource
    features: Float32[np.ndarray, "rows columns"]


@dataclass(frozen=True)
class Joiner:
    """Gives rows their features: `tables` has those of every dataset, by `key_of`."""

    tables: Mapping[str | int, Table]
    cameras: Mapping[str, int]
    state: bool
    about: Mapping[str, Any]

    def join(self, given: Source | Dataset, rows: RowSource) -> FeatureRows:
        """The rows of a source, which may be some of the episodes of its dataset, with their features."""
        table = self.tables.get(key_of(given))
        if table is None:
            raise InputError(f"{rows.source}: features: part of data in memory; read the data from a file")
        place = {number: at for at, number in enumerate(table.rows.numbers.tolist())}
        starts, ends = table.rows.episode_starts, table.rows.episode_ends
        wanted = [place[number] for number in rows.numbers.tolist()]
        index = np.concatenate([np.arange(int(starts[at]), int(ends[at])) for at in wanted])
        assert len(index) == rows.num_rows
        features = table.features if len(index) == len(table.features) else table.features[index]
        return FeatureRows(rows, features, self.cameras, self.state)


def key_of(given: Source | Dataset) -> str | int:
    """What names the dataset that a source takes episodes from."""
    return id(given) if isinstance(given, Dataset) else without_episodes(given)


def prepare_features(
    given: Sequence[Source | Dataset],
    features: Cameras | Sequence[Any],
    state: bool = True,
    progress: bool | None = None,
) -> Joiner:
    """Columns from the cameras of all the sources' datasets, or the user's own: a file or an array for each dataset."""
    datasets = {key_of(each): each if isinstance(each, Dataset) else without_episodes(each) for each in given}
    # Actions are not looked at here, so those outside their bounds are left for others to refuse.
    rows = {key: open_rows(each, "clip") for key, each in datasets.items()}
    if isinstance(features, Cameras):
        parts, widths, about = embed_cameras(list(datasets.values()), list(rows.values()), features, progress)
    else:
        if isinstance(features, str | os.PathLike) or len(features) != len(rows):
            raise InputError(f"features: give Cameras, or a file or an array for each of {len(rows)} datasets")
        trios = zip(features, datasets.values(), rows.values(), strict=True)
        parts, about = reduce_features([read_features(*trio) for trio in trios])
        widths = {"features": parts[0].shape[1]}
    tables = {key: Table(rows[key], part) for key, part in zip(rows, parts, strict=True)}
    return Joiner(tables, widths, state, {**about, "state": state})


def embed_cameras(
    given: Sequence[Source | Dataset], sources: Sequence[RowSource], cameras: Cameras, progress: bool | None
) -> tuple[list[np.ndarray], dict[str, int], dict[str, Any]]:
    """For each dataset the columns from its pictures; their names and widths; and how they came about."""
    paths = []
    for source, rows in zip(given, sources, strict=True):
        if isinstance(source, Dataset):
            raise InputError(f"{rows.source}: is in memory, without pictures; give an array of features instead")
        paths.append(source)
    opened = [open_cameras(source, cameras.names) for source in paths]
    names = [name for name in opened[0] if all(name in each for each in opened)]
    if not names:
        held = " and ".join(", ".join(each) for each in opened)
        raise InputError(f"cameras: the sources have none in common: {held}")
    for rows, each in zip(sources, opened, strict=True):
        for name in names:
            check_clips(rows, each[name])
    cache = expanded(os.fspath(cameras.cache)) if cameras.cache else cache_folder()
    encoder = load_encoder(os.fspath(cameras.encoder), cache, cameras.size)
    digests = [digest_source(source) for source in paths]
    places = [embedded_rows(rows.episode_ends, cameras.every) for rows in sources]
    columns: list[list[np.ndarray]] = [[] for _ in sources]
    told: dict[str, Any] = {}
    with Progress(progress) as display:
        for name in names:
            line = display.line(f"embedding {name}", sum(map(len, places)))
            parts = [
                embed_camera(each[name], rows, place, encoder, cameras.every, digest, cache, line.advance)
                for each, rows, place, digest in zip(opened, sources, places, digests, strict=True)
            ]
            if len({part.shape[1] for part in parts}) > 1:
                raise InputError(f"{encoder.name}: gives embeddings of different lengths")
            fitted = fit_components(parts, cameras.components)
            for own, part, place in zip(columns, parts, places, strict=True):
                own.append(interpolate(fitted.apply(part), place))
            told[name] = {"components": fitted.axes.shape[1], "variance": round(fitted.share, 6)}
    about = {"encoder": encoder.name, "digest": encoder.digest, "size": list(encoder.size), "every": cameras.every}
    widths = {name: each["components"] for name, each in told.items()}
    return [np.concatenate(own, axis=1) for own in columns], widths, {**about, "cameras": told}


def check_clips(rows: RowSource, camera: Camera) -> None:
    lengths = np.diff(rows.episode_ends, prepend=0).tolist()
    if len(camera.clips) != len(lengths):
        raise InputError(
            f"{rows.source}: camera {camera.name}: has {len(camera.clips)} episodes, the data {len(lengths)}"
        )
    for number, (clip, length) in enumerate(zip(camera.clips, lengths, strict=True)):
        if clip.steps < length:
            raise InputError(
                f"{rows.source}: camera {camera.name}: episode {number} has {clip.steps} pictures for {length} rows"
            )


def embedded_rows(ends: Int[np.ndarray, "episodes"], every: int) -> Int[np.ndarray, "pictures"]:
    """The rows whose pictures are embedded: every n-th of each episode, and its last."""
    step = np.arange(ends[-1]) - np.repeat(np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0))
    wanted = step % every == 0
    wanted[ends - 1] = True
    return np.flatnonzero(wanted)


def interpolate(values: Float[np.ndarray, "pictures k"], place: Int[np.ndarray, "pictures"]) -> np.ndarray:
    """Values at the given rows as values at every row up to the last: linear in between."""
    row = np.arange(place[-1] + 1)
    right = np.searchsorted(place, row)
    left = np.maximum(right - 1, 0)
    share = ((row - place[left]) / np.maximum(place[right] - place[left], 1))[:, None]
    return np.where(share == 1, values[right], values[left] * (1 - share) + values[right] * share).astype(np.float32)


def embed_camera(
    camera: Camera,
    rows: RowSource,
    place: Int[np.ndarray, "pictures"],
    encoder: Encoder,
    every: int,
    digest: str,
    cache: Path,
    advance: Callable[[int], None],
) -> Embeddings:
    """The embeddings of one camera at the given rows, from the cache if they are there, else into it."""
    facts = {
        "camera": camera.name,
        "data": digest,
        "encoder": encoder.digest,
        "every": str(every),
        "pictures": digest_files(camera.files),
        "rows": str(rows.num_rows),
        "size": f"{encoder.size[0]} x {encoder.size[1]}",
    }
    path = cache / "embeddings" / f"{hashlib.sha256(canonical(facts).encode()).hexdigest()[:32]}.safetensors"
    if path.is_file():
        found = read_embeddings(path, facts, len(place))
        advance(len(place))
        return found
    found = compute_embeddings(camera, rows, place, encoder, advance)
    write_embeddings(path, facts, found)
    return found


def compute_embeddings(
    camera: Camera,
    rows: RowSource,
    place: Int[np.ndarray, "pictures"],
    encoder: Encoder,
    advance: Callable[[int], None],
) -> Embeddings:
    by_episode = np.split(place, np.searchsorted(place, rows.episode_ends[:-1]))

    def pictures() -> Iterator[Picture]:
        for clip, start, own in zip(camera.clips, rows.episode_starts, by_episode, strict=True):
            yield from clip.read(own - start)

    found: np.ndarray | None = None
    count = 0
    for batch in encoder.embed(pictures()):
        if found is None:
            check_memory(f"camera {camera.name}", 4 * len(place) * batch.shape[1])
            found = np.empty((len(place), batch.shape[1]), np.float32)
        if batch.shape[1] != found.shape[1]:
            raise InputError(f"{encoder.name}: gives embeddings of different lengths")
        found[count : count + len(batch)] = batch
        count += len(batch)
        advance(len(batch))
    assert found is not None
    assert count == len(place)
    return found


def digest_files(files: Sequence[Path]) -> str:
    sha = hashlib.sha256()
    for path in files:
        try:
            sha.update(digest_file(path))
        except OSError as error:
            raise InputError(f"{path}: the video cannot be read: {os.strerror(error.errno or 0)}") from error
    return sha.hexdigest()


def write_embeddings(path: Path, facts: dict[str, str], embeddings: Embeddings) -> None:
    from safetensors.numpy import save_file

    with atomic_write(path, embeddings.nbytes + 65536) as temporary:
        save_file({"embedding": embeddings}, temporary, facts)


def read_embeddings(path: Path, facts: dict[str, str], count: int) -> Embeddings:
    try:
        about, tensors = read_tensors(path)
    except InputError as error:
        raise Unusable(f"{path}: damaged; remove it, and it is made again") from error
    if about != facts:
        raise Unusable(f"{path}: the embeddings of other data than its name says; remove it")
    found = tensors.get("embedding", np.zeros(0))
    if found.ndim != 2 or len(found) != count or found.shape[1] == 0 or found.dtype != np.float32:
        raise Unusable(f"{path}: damaged; remove it, and it is made again")
    check_finite(str(path), "embedding", found)
    return found
