"""What is done with scores: `filter_dataset` keeps part of a dataset, `with_scores` gives the weights to training.

Both read what `demosift score` wrote (`demosift.results.scores`): a weight per row and a rank per episode.
"""

import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from demosift.data import RowSource, check_not_read, open_rows, read_dataset, without_episodes, write_dataset
from demosift.data.decisions import read_decisions
from demosift.data.format import Format
from demosift.data.formats import Source, chosen_episodes, format_of, named_format, split_options
from demosift.data.formats.hdf5.file import SUFFIXES
from demosift.data.formats.lerobot.reading import read_info
from demosift.data.formats.lerobot.selection import list_frames
from demosift.data.formats.robomimic import write_filter_key
from demosift.data.parquet import write_table
from demosift.data.selection import Selection
from demosift.files import atomic_folder, write_json
from demosift.ranges import POSITIVE, SHARE
from demosift.results.scores import Scores, read_scores
from demosift.sift.cuts import Cut, find_cuts, rows_left
from demosift.types import Demonstrations, InputError


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
    frames: bool = False,
    decisions: str | os.PathLike[str] | None = None,
) -> Filtered:
    """Keep rows by their weight, or whole episodes by their rank, and write them to `out`.

    `threshold` keeps rows that weigh at least that much (default: the threshold stored with the scores); `top` keeps
    that share of the rows, the heaviest; `episodes` keeps that many whole episodes, or below 1 that share of them, best
    first; `frames` cuts idle starts and ends, and stretches that weigh less than the stored threshold. `decisions` is a
    file that the page of scores downloads: its episodes are kept or dropped whole, whatever they weigh.

    `out` has the format of `data`, unless it names another (`minari:ID`, `lerobot:FOLDER`, ...). With `filter_key` it
    is a copy of a robomimic file that lists the kept demonstrations under that name; with `weights`, a folder with the
    list of kept episodes, the weight of every frame, and the frames to cut.
    """
    rules = {"threshold": threshold, "top": top, "episodes": episodes, "frames": frames or None}
    if sum(value is not None for value in rules.values()) > 1:
        raise InputError("filter: give only one of threshold, top, episodes and frames")
    _check_whole(data)
    check_not_read(out, data)
    read = read_scores(data, scores)
    cuts = find_cuts(_open(data), read.weight, read.threshold) if frames or weights else []
    if frames:
        keep, rule = rows_left(cuts, read.episode_ends), "idle and light stretches cut"
    else:
        keep, rule = choose(read, threshold, top, episodes)
    settled = np.zeros(len(read.episode_ends), np.int64) if read.settled is None else read.settled.copy()
    if decisions is not None:
        named = read_decisions(data, decisions)
        for number in (*named["keep"], *named["drop"]):
            if number not in read.numbers:
                raise InputError(f"{decisions}: episode {number} does not exist in {os.fspath(data)}")
        settled[np.isin(read.numbers, named["keep"])] = 1
        settled[np.isin(read.numbers, named["drop"])] = -1
        rule += f", and {len(named['keep'])} kept and {len(named['drop'])} dropped by decision"
    # What a person has decided stands: such episodes are kept whole or dropped whole. Idle frames are no such matter.
    by_row = np.repeat(settled, np.diff(read.episode_ends, prepend=0))
    keep = (keep if frames else keep | (by_row > 0)) & (by_row >= 0)
    if not keep.any():
        raise InputError("filter: nothing is left")
    selection = Selection(keep, read.episode_ends)
    if filter_key is not None and weights:
        raise InputError("filter: give a filter key or weights, not both")
    if filter_key is not None:
        _write_filter_key(data, out, filter_key, selection)
    elif weights:
        _write_weights(data, out, selection, read, cuts)
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
        SHARE.check("filter: top", top)
        count = round(top * len(weight))
        if count == 0:
            raise InputError(f"filter: top: {top:g} of {len(weight)} rows is less than one")
        keep = np.zeros(len(weight), bool)
        # Of equal weights the earlier rows, so that the answer does not depend on the sort.
        keep[np.argsort(-weight, kind="stable")[:count]] = True
        return keep, f"the top {top:.3g} of rows by weight"
    if episodes is not None:
        total = len(scores.episode_ends)
        POSITIVE.check("filter: episodes", episodes)
        count = round(episodes * total) if episodes < 1 else round(episodes)
        if not 1 <= count <= total or (episodes >= 1 and count != episodes):
            raise InputError(f"filter: episodes: {episodes:g} is neither a share of {total} nor a number up to {total}")
        chosen = np.zeros(total, bool)
        chosen[scores.order[:count]] = True
        return np.repeat(chosen, np.diff(scores.episode_ends, prepend=0)), f"the {count} best episodes"
    limit = scores.threshold if threshold is None else threshold
    POSITIVE.check("filter: threshold", limit)
    keep = weight >= limit
    if not keep.any():
        raise InputError(f"filter: threshold: no row weighs {limit:g}; the heaviest weighs {weight.max():g}")
    return keep, f"weight at least {limit:g}"


def _check_whole(data: Source) -> None:
    if chosen_episodes(data) is not None:
        raise InputError(f"{os.fspath(data)}: names episodes; give filter the whole dataset, {without_episodes(data)}")


def _write_kept(data: Source, out: Source, selection: Selection) -> None:
    place, options = split_options(data)
    found, target = format_of(data), os.fspath(out)
    if found.keep is not None and _is_alike(found, target):
        return found.keep(place, target, selection, **options)
    try:
        dataset = read_dataset(data)
    except InputError:  # actions outside [-1, 1] and no known bounds: they are written back in their own units
        dataset = read_dataset(data, actions="rescale")
    if len(dataset) != len(selection.keep):
        raise InputError(f"{os.fspath(data)}: has {len(dataset)} rows, {len(selection.keep)} were scored")
    return write_dataset(selection.apply(dataset), out)


def _is_alike(found: Format, target: str) -> bool:
    """Whether the target has the format of the data, because it names that format or none."""
    named, suffix = named_format(target), Path(target).suffix.lower()
    if named is not None:
        return named is found
    if found.suffixes:
        return suffix in found.suffixes
    return (suffix in SUFFIXES) == (found.name == "robomimic")


def _write_filter_key(data: Source, out: Source, name: str, selection: Selection) -> None:
    place, options = split_options(data)
    if format_of(data).name != "robomimic":
        raise InputError(f"{os.fspath(data)}: not a robomimic file, and only those have filter keys")
    if not selection.whole:
        raise InputError("filter: a filter key names whole demonstrations; choose how many with --episodes")
    write_filter_key(place, os.fspath(out), name, selection, **options)


def _open(data: Source) -> RowSource:
    try:
        return open_rows(data)
    except InputError:  # actions outside [-1, 1] and no known bounds
        return open_rows(data, actions="rescale")


def _write_weights(data: Source, out: Source, selection: Selection, scores: Scores, cuts: list[Cut]) -> None:
    """Write what other programs read: lists of episodes, weights of frames, and frames to cut.

    The last frame of a LeRobot episode has no successor and so no score: it gets the weight of the frame before it.
    """
    place, options = split_options(data)
    is_lerobot = format_of(data).name == "lerobot"
    rows = np.arange(len(scores.weight))
    if is_lerobot:
        indices, rows = list_frames(place, **options)
    else:
        lengths = selection.lengths
        step = rows - np.repeat(scores.episode_ends - lengths, lengths)
        indices = np.stack([np.repeat(scores.numbers, lengths), step, rows], axis=1)
    columns = dict(zip(("episode_index", "frame_index", "index"), indices.T, strict=True))
    table = pa.table({**columns, "weight": scores.weight[rows]})
    kept = np.unique(indices[selection.keep[rows], 0]).tolist()
    dropped = sorted(set(np.unique(indices[:, 0]).tolist()) - set(kept))
    with atomic_folder(os.fspath(out), num_bytes=2 * table.nbytes + 65536) as folder:
        write_table(table, folder / "weights.parquet")
        write_table(table.select(["index", "weight"]), folder / "sample_weights.parquet")
        write_json(folder / "cuts.json", {"cuts": _frames_to_cut(cuts, scores.episode_ends, indices, rows)})
        if dropped and is_lerobot:
            (folder / "delete_episodes.txt").write_text(f"{_deletion(place, dropped)}\n", "utf-8")
        # On one line, so that a shell can hand it on: --dataset.episodes="$(cat episodes.json)"
        (folder / "episodes.json").write_text(f"{json.dumps(kept)}\n", encoding="utf-8")


def _frames_to_cut(cuts: list[Cut], ends: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """The cuts by the file's own numbers. One that reaches an episode's last row takes a frame after that along."""
    first = np.searchsorted(rows, ends, side="left")  # frame after each episode's last
    length, found = np.diff(ends, prepend=0), []
    for cut in cuts:
        frames = int(np.diff(first, prepend=0)[cut.episode])
        stop = frames if cut.stop == length[cut.episode] else cut.stop
        found.append(cut._asdict() | {"episode": int(indices[first[cut.episode] - 1, 0]), "stop": stop})
    return found


def _deletion(place: str, dropped: list[int]) -> str:
    """LeRobot's own command that copies a dataset without some episodes."""
    root = read_info(place).root.absolute()
    name = "local/" + re.sub(r"[^A-Za-z0-9_.-]", "_", root.name)
    where = f"--repo_id {name} --root {shlex.quote(str(root))}"
    where += f" --new_repo_id {name}_kept --new_root {shlex.quote(f'{root}_kept')}"
    return f'lerobot-edit-dataset {where} --operation.type delete_episodes --operation.episode_indices "{dropped}"'


def with_scores(
    data: Demonstrations, expert: Source, supplementary: Source, folder: str | os.PathLike[str]
) -> Demonstrations:
    """The data with the weights of its rows. Sources other than those that were scored are refused."""
    if data.supplementary is None:
        raise InputError("scores: are weights of the union; give the supplementary set too")
    weights = []
    for source, part in ((expert, data.expert), (supplementary, data.supplementary)):
        weights.append(read_scores(source, folder).weight)
        if len(weights[-1]) != len(part):
            raise InputError(f"{os.fspath(source)}: has {len(part)} rows, {len(weights[-1])} were scored")
    return replace(data, weight=np.concatenate(weights))
