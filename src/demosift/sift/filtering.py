"""The part of a dataset that its scores advise to keep, in the format it came in or as another library reads it.

`filter_dataset` reads what `demosift score` wrote: `scores.parquet` with a weight per row, `episodes.parquet` with a
rank per episode, and `summary.json` with a fingerprint of both sources. Weights belong to the very rows that were
scored, so a source whose fingerprint is another is refused.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int

from demosift.data import read_dataset, write_dataset
from demosift.data.checks import one_line
from demosift.data.formats import FORMATS, Format, Source, digest_source, format_of, split_options
from demosift.data.formats.lerobot.selection import list_frames
from demosift.data.formats.robomimic_selection import write_filter_key
from demosift.data.selection import Selection
from demosift.files import atomic_folder
from demosift.types import InputError

Role = Literal["expert", "supplementary"]


@dataclass(frozen=True)
class Scores:
    """The scores of one source: a weight per row, in the order of `read_dataset`."""

    role: Role
    weight: Float[np.ndarray, "rows"]
    episode_ends: Int[np.ndarray, "episodes"]
    order: Int[np.ndarray, "episodes"]  # episodes, best first
    threshold: float
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class Filtered:
    """What was kept, and where it is."""

    out: str
    rule: str
    rows: int
    kept_rows: int
    episodes: int
    kept_episodes: int

    def __str__(self) -> str:
        rows = f"{self.kept_rows:,} of {self.rows:,} transitions ({self.kept_rows / self.rows:.1%})"
        return f"{self.out}: {rows} of {self.kept_episodes} of {self.episodes} episodes, {self.rule}"


def filter_dataset(
    data: Source,
    scores: str | os.PathLike[str],
    out: Source,
    threshold: float | None = None,
    top: float | None = None,
    episodes: float | None = None,
    filter_key: str | None = None,
    weights: bool = False,
) -> Filtered:
    """Keeps rows by their weight, or whole episodes by their rank, and writes them to `out`.

    `threshold` keeps rows that weigh at least that much (default: the threshold the scores state); `top` the share of
    rows that weigh most; `episodes` that many whole episodes, or below 1 that share of them, best first.

    `out` is of the format of `data`, unless it names another (`minari:ID`, `lerobot:FOLDER`, ...). With `filter_key` it
    is a copy of a robomimic file that lists the kept demonstrations under that name; with `weights`, a folder with the
    list of kept episodes and the weight of every frame.
    """
    rules = {"threshold": threshold, "top": top, "episodes": episodes}
    if sum(value is not None for value in rules.values()) > 1:
        raise InputError("filter: threshold, top, episodes: choose one")
    read = read_scores(data, scores)
    keep, rule = choose(read, threshold, top, episodes)
    selection = Selection(keep, read.episode_ends)
    if filter_key is not None and weights:
        raise InputError("filter: a filter key or weights: choose one")
    if filter_key is not None:
        _write_filter_key(data, out, filter_key, selection)
    elif weights:
        _write_weights(data, out, selection, read)
    else:
        _write_kept(data, out, selection)
    counts = (len(keep), int(keep.sum()), len(read.episode_ends), len(selection.episodes))
    return Filtered(os.fspath(out), rule, *counts)


def choose(
    scores: Scores, threshold: float | None = None, top: float | None = None, episodes: float | None = None
) -> tuple[Bool[np.ndarray, "rows"], str]:
    """Which rows to keep, and the rule in words."""
    weight = scores.weight
    if top is not None:
        if not 0 < top <= 1:
            raise InputError(f"filter: top: {top:g} is not a share between 0 and 1")
        keep = np.zeros(len(weight), bool)
        # Among equal weights the earlier rows, so that the answer does not depend on the sort.
        keep[np.argsort(-weight, kind="stable")[: max(round(top * len(weight)), 1)]] = True
        return keep, f"the top {top:.3g} of rows by weight"
    if episodes is not None:
        total = len(scores.episode_ends)
        count = round(episodes * total) if 0 < episodes < 1 else round(episodes)
        if episodes <= 0 or count > total or (episodes >= 1 and count != episodes):
            raise InputError(f"filter: episodes: {episodes:g} is neither a share below 1 nor a number up to {total}")
        chosen = np.zeros(total, bool)
        chosen[scores.order[: max(count, 1)]] = True
        return np.repeat(chosen, np.diff(scores.episode_ends, prepend=0)), f"the {max(count, 1)} best episodes"
    limit = scores.threshold if threshold is None else threshold
    keep = weight >= limit
    if not keep.any():
        raise InputError(f"filter: threshold: no row weighs {limit:g}; the heaviest weighs {weight.max():g}")
    return keep, f"weight at least {limit:g}"


def read_scores(data: Source, folder: str | os.PathLike[str]) -> Scores:
    """The scores of `data`, which must be one of the two sources that were scored."""
    folder = Path(folder)
    summary = _read_summary(folder)
    role = _role(data, folder, summary)
    rows = _read_table(folder / "scores.parquet", ["episode", "weight"], role)
    episodes = _read_table(folder / "episodes.parquet", ["episode", "log_weight"], role)
    weight = rows["weight"].to_numpy()
    number = rows["episode"].to_numpy()
    stated = summary[role].get("rows", len(weight))
    if len(weight) == 0 or len(weight) != stated or not np.isfinite(weight).all():
        raise InputError(f"{folder / 'scores.parquet'}: weight: not a finite number for each of {stated} rows")
    ends = np.append(np.flatnonzero(np.diff(number)) + 1, len(number))
    if not np.array_equal(number[ends - 1], np.arange(len(ends))) or len(episodes) != len(ends):
        raise InputError(f"{folder}: scores.parquet and episodes.parquet do not agree on the episodes")
    best = np.empty(len(ends))
    best[episodes["episode"].to_numpy()] = episodes["log_weight"].to_numpy()
    order = np.argsort(-best, kind="stable")
    return Scores(role, weight, ends, order, float(summary["threshold"]), summary)


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        float(summary["threshold"])
        for role in ("expert", "supplementary"):
            str(summary[role]["digest"])
    except OSError as error:
        raise InputError(f"{folder}: no scores here ({path.name}: {os.strerror(error.errno or 0)})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: not a summary of scores: {one_line(error)}") from error
    return summary


def _role(data: Source, folder: Path, summary: Mapping[str, Any]) -> Role:
    digest = digest_source(data)
    if digest == summary["supplementary"]["digest"]:
        return "supplementary"
    if digest == summary["expert"]["digest"]:
        return "expert"
    raise InputError(
        f"{os.fspath(data)}: not what {folder} has scores of ({summary['supplementary'].get('path')} and "
        f"{summary['expert'].get('path')}), or changed since; score it again"
    )


def _read_table(path: Path, columns: list[str], role: Role) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, filters=pc.field("source") == role)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise InputError(f"{path}: cannot read the scores: {one_line(error)}") from error


def _write_kept(data: Source, out: Source, selection: Selection) -> None:
    place, options = split_options(data)
    found, target = format_of(data), os.fspath(out)
    if _is_alike(found, target):
        return found.keep(place, target, selection, **options)
    try:
        dataset = read_dataset(data)
    except InputError:  # no bounds are known and actions lie outside [-1, 1]: they are written back in their own units
        dataset = read_dataset(data, actions="rescale")
    if len(dataset) != len(selection.keep):
        raise InputError(f"{os.fspath(data)}: has {len(dataset)} rows, {len(selection.keep)} were scored")
    return write_dataset(selection.apply(dataset), out)


def _is_alike(found: Format, target: str) -> bool:
    """Whether the target is to be of the format that the data are of: unless it names another."""
    named = [other.name for other in FORMATS if target.startswith(f"{other.name}:")]
    if named:
        return named == [found.name]
    into_file = Path(target).suffix.lower() in (".hdf5", ".h5")
    return into_file == (found.name in ("hdf5", "robomimic"))


def _write_filter_key(data: Source, out: Source, name: str, selection: Selection) -> None:
    place, options = split_options(data)
    if format_of(data).name != "robomimic":
        raise InputError(f"{os.fspath(data)}: not a robomimic file, and only those have filter keys")
    if not selection.whole:
        raise InputError("filter: a filter key names whole demonstrations; say how many, with --episodes")
    write_filter_key(place, os.fspath(out), name, selection, **options)


def _write_weights(data: Source, out: Source, selection: Selection, scores: Scores) -> None:
    """`episodes.json`, the numbers of the episodes of which something is kept, and `weights.parquet`, a row per frame.

    Numbers are the source's own. The last frame of a LeRobot episode, whose successor nobody knows, has no score: it
    weighs what the frame before it weighs.
    """
    place, options = split_options(data)
    rows = np.arange(len(scores.weight))
    if format_of(data).name == "lerobot":
        indices, rows = list_frames(place, **options)
    else:
        lengths = selection.lengths
        step = rows - np.repeat(scores.episode_ends - lengths, lengths)
        indices = np.stack([np.repeat(np.arange(len(lengths)), lengths), step, rows], axis=1)
    columns = dict(zip(("episode_index", "frame_index", "index"), indices.T, strict=True))
    table = pa.table({**columns, "weight": scores.weight[rows]})
    kept = np.unique(indices[selection.keep[rows], 0]).tolist()
    with atomic_folder(os.fspath(out), num_bytes=table.nbytes + 65536) as folder:
        pq.write_table(table, folder / "weights.parquet")
        # On one line, so that a shell can hand it on: --dataset.episodes="$(cat episodes.json)"
        (folder / "episodes.json").write_text(f"{json.dumps(kept)}\n", encoding="utf-8")
