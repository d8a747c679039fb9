"""The folder that `demosift score` writes: its files, how they are written, and how they are read.

    scores.parquet     a row per transition of the union, expert first: source, episode, step, weight, spread, fold
    episodes.parquet   a row per episode: rows, mean and quantiles of the weight, the share of kept steps, rank
    summary.json       what was scored and how, held-out AUC and log loss, effective sample size, warnings, diagnosis
    page.json          what else the page shows: histograms, strips, a map of states
    report.html        the page

The summary has a fingerprint of both sources. Weights belong to the very rows that were scored, so a source whose
fingerprint differs is refused.

Parquet's library is imported where it is needed: a machine that only trains, or reads pages, may lack it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from demosift.data.checks import one_line
from demosift.data.formats import Source, digest_source
from demosift.files import Unusable, mismatch, read_json, write_json
from demosift.results.measured import Row, is_count, is_number
from demosift.types import InputError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, EPISODES, SUMMARY, PAGE = "scores.parquet", "episodes.parquet", "summary.json", "page.json"
SCORE_FILES = (ROWS, EPISODES, SUMMARY, PAGE, "report.html")
TASK = "task"
ROW_GROUP = 1 << 20
EARLY = 0.8  # an episode that went less of the expert's way stopped early
STOPPED = 14.0  # what it loses of its merit: about as much as separates the best weight from the least
MOST_BAD_ROWS = 1 << 30  # that a summary may claim
Role = Literal["expert", "supplementary"]
SOURCES: tuple[Role, Role] = ("expert", "supplementary")  # in the order of the rows
_SOURCE = {"digest": str, "path": (None, str), "rows?": is_count}
SUMMARY_SCHEMA = {"threshold": is_number, "expert": _SOURCE, "supplementary": _SOURCE}


@dataclass(frozen=True)
class Scores:
    """The scores of one source: a weight per row, in the order of `read_dataset`."""

    role: Role | Literal["dataset"]  # dataset: what both sets are episodes of
    weight: Float[np.ndarray, "rows"]
    episode_ends: Int[np.ndarray, "episodes"]
    merit: Float[np.ndarray, "episodes"]  # by which episodes are ranked
    threshold: float
    summary: Mapping[str, Any]
    numbers: Int[np.ndarray, "episodes"]  # of the episodes, in their file
    settled: Int[np.ndarray, "episodes"] | None = None  # 1 for episodes named as the expert's, -1 for bad ones, else 0
    task: Shaped[np.ndarray, "episodes"] | None = None  # its name, where there are several

    @property
    def order(self) -> Int[np.ndarray, "episodes"]:
        """The episodes, best first: those that a person named, then by merit, and bad ones last."""
        settled = np.zeros(len(self.merit), np.int64) if self.settled is None else self.settled
        merit = self.merit.copy()
        for kind in np.unique(settled):
            own = settled == kind
            merit[own] = standing(merit[own], None if self.task is None else self.task[own])
        return np.lexsort((-merit, -settled))


def row_schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(
        {
            "source": pa.dictionary(pa.int8(), pa.string()),
            "episode": pa.int64(),
            "step": pa.int64(),
            "weight": pa.float64(),
            "spread": pa.float64(),
            "fold": pa.int8(),
        }
    )


def read_weights(folder: Path) -> Float[np.ndarray, "rows"]:
    """The weight of every row of the union, expert first, whatever was scored."""
    from demosift.data.parquet import as_numbers, read_table

    path = folder / ROWS
    try:
        weight = as_numbers(path, "weight", read_table(path, ["weight"])["weight"], 1)
    except InputError as error:
        raise Unusable(f"{path}: not the scores of a union ({error})") from None
    return _checked(path, weight, len(weight))


def _checked(path: Path, weight: np.ndarray, rows: int) -> Float[np.ndarray, "rows"]:
    if len(weight) == 0 or len(weight) != rows or not np.isfinite(weight).all() or (weight < 0).any():
        raise Unusable(f"{path}: weight: not a finite number for each of {rows} rows")
    return weight.astype(np.float64, copy=False)


def write_rows(
    folder: Path,
    weight: Float[np.ndarray, "rows"],
    spread: Float[np.ndarray, "rows"],
    fold: Int[np.ndarray, "rows"],
    episode_ends: Int[np.ndarray, "episodes"],
    num_expert_episodes: int,
) -> None:
    """Write `scores.parquet` in row groups, so that only one group's derived columns are in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = row_schema()
    num_expert = episode_ends[num_expert_episodes - 1]
    lengths = np.diff(episode_ends, prepend=0)
    with (folder / ROWS).open("wb") as file, pq.ParquetWriter(file, schema) as writer:
        for start in range(0, len(weight), ROW_GROUP):
            rows = np.arange(start, min(start + ROW_GROUP, len(weight)))
            episode = np.searchsorted(episode_ends, rows, side="right")
            supplementary = rows >= num_expert
            columns = {
                "source": pa.DictionaryArray.from_arrays(pa.array(supplementary.astype(np.int8)), pa.array(SOURCES)),
                "episode": episode - supplementary * num_expert_episodes,
                "step": rows - (episode_ends - lengths)[episode],
                "weight": weight[rows],
                "spread": spread[rows],
                "fold": fold[rows],
            }
            writer.write_table(pa.table(columns, schema=schema))


def write_episodes(folder: Path, columns: Mapping[str, np.ndarray]) -> None:
    import pyarrow as pa

    from demosift.data.parquet import write_table

    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["source"] = arrays["source"].dictionary_encode()
    write_table(pa.table(arrays), folder / EPISODES)


def write_summary(folder: Path, summary: Mapping[str, Any], page: Mapping[str, Any]) -> None:
    write_json(folder / SUMMARY, dict(summary))
    write_json(folder / PAGE, dict(page))


def is_score_folder(folder: str | os.PathLike[str]) -> bool:
    return all((Path(folder) / name).is_file() for name in (ROWS, SUMMARY, PAGE))


def read_scores(data: Source, folder: str | os.PathLike[str]) -> Scores:
    """The scores of `data`: one of the two sources that were scored, or the dataset that both are episodes of."""
    folder = Path(folder)
    summary = read_summary(folder)
    role = role_of(data, folder, summary)
    if role == "dataset":
        return read_dataset_scores(folder, summary)
    return read_role(folder, summary, role)


def read_role(folder: Path, summary: Row, role: Role) -> Scores:
    rows = read_part(folder / ROWS, ["episode", "weight"], role)
    optional = ["number", "finish", "second_look", "support"]
    episodes = read_part(folder / EPISODES, ["episode", "log_weight"], role, optional)
    weight = _checked(folder / ROWS, rows["weight"], summary[role].get("rows", len(rows["weight"])))
    number = rows["episode"]
    ends = np.append(np.flatnonzero(np.diff(number)) + 1, len(number))
    every = np.arange(len(ends))
    if not np.array_equal(number[ends - 1], every) or not np.array_equal(np.sort(episodes["episode"]), every):
        raise Unusable(f"{folder}: {ROWS} and {EPISODES} do not agree on the episodes")
    finish = episodes.get("finish", np.ones(1))
    looks = episodes["log_weight"], episodes.get("second_look", np.ones(1)), episodes.get("support", np.ones(1))
    if any(np.isnan(look).any() for look in looks) or not ((finish > 0) & (finish <= 1)).all():
        raise Unusable(f"{folder / EPISODES}: log_weight, second_look, support, finish: not a number for each episode")
    best = np.empty(len(ends))
    known = merit(episodes["log_weight"], *(episodes.get(name) for name in ("finish", "second_look", "support")))
    best[episodes["episode"].astype(np.int64)] = known
    numbers = np.arange(len(ends))
    if "number" in episodes:  # files of before count from 0
        if not np.array_equal(episodes["number"], np.clip(np.floor(episodes["number"]), 0, 2**53)):
            raise Unusable(f"{folder / EPISODES}: number: not whole numbers")
        numbers[episodes["episode"].astype(np.int64)] = episodes["number"]
    task = read_tasks(folder / EPISODES, role, len(ends))
    if task is not None:
        task = task[np.argsort(episodes["episode"])]
    return Scores(role, weight, ends, best, float(summary["threshold"]), summary, numbers, task=task)


def read_dataset_scores(folder: Path, summary: Row) -> Scores:
    """The scores of all episodes in the order of their numbers. Those that are known to be bad weigh nothing."""
    weights, numbers, settled, merits, tasks = [], [], [], [], []
    named = summary.get("expert_by") == "the user"
    for role in SOURCES:
        own = read_role(folder, summary, role)
        numbers.append(own.numbers)
        weights += np.split(own.weight, own.episode_ends[:-1])
        merits.append(own.merit)
        tasks.append(np.full(len(own.merit), "") if own.task is None else own.task)
        settled.append(np.full(len(own.merit), int(role == "expert" and named)))
    bad = summary.get("bad")
    if isinstance(bad, dict) and bad.get("in_dataset"):
        try:
            lengths = [int(length) for length in bad["lengths"]]
            numbers.append(np.array([int(number) for number in bad["numbers"]], np.int64))
            most = min(int(bad["rows"]), MOST_BAD_ROWS)
            if len(lengths) != len(numbers[-1]) or min(lengths) < 1 or sum(lengths) > most:
                raise ValueError("bad: numbers and lengths differ")
            weights += [np.zeros(length) for length in lengths]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Unusable(f"{folder / SUMMARY}: not a summary of scores: {one_line(error)}") from error
        merits.append(np.full(len(lengths), -np.inf))
        tasks.append(np.full(len(lengths), ""))
        settled.append(np.full(len(lengths), -1))
    known = np.concatenate(settled)
    number = np.concatenate(numbers)
    if len(np.unique(number)) != len(number):
        raise Unusable(f"{folder / EPISODES}: number: two episodes have the same")
    place = np.argsort(number)
    best = np.concatenate(merits)[place]
    ends = np.cumsum([len(weights[index]) for index in place])
    weight = np.concatenate([weights[index] for index in place])
    task, threshold = np.concatenate(tasks)[place], float(summary["threshold"])
    return Scores("dataset", weight, ends, best, threshold, summary, number[place], known[place], task)


def read_summary(folder: Path) -> Row:
    path = folder / SUMMARY
    if not path.exists():
        raise Unusable(f"{folder}: no scores here ({SUMMARY} is missing)")
    summary = read_json(path)
    place = mismatch(summary, SUMMARY_SCHEMA)
    if place is not None:
        raise Unusable(f"{path}: not a summary of scores: {place or 'it'} is missing or of the wrong type")
    return summary


def read_page(folder: Path) -> tuple[Row, Row]:
    """The summary and what else the page shows. The page itself checks their content."""
    return read_summary(folder), read_json(folder / PAGE)


def role_of(data: Source, folder: Path, summary: Mapping[str, Any]) -> Role | Literal["dataset"]:
    digest = digest_source(data)
    whole = summary.get("dataset")
    if isinstance(whole, dict) and digest == whole.get("digest"):
        return "dataset"
    for role in reversed(SOURCES):
        if digest == summary[role]["digest"]:
            return role
    raise Unusable(
        f"{os.fspath(data)}: not what {folder} has scores of ({summary['supplementary'].get('path')} and "
        f"{summary['expert'].get('path')}), or changed since; score it again"
    )


def merit(
    log_weight: Float[np.ndarray, "episodes"],
    finish: Float[np.ndarray, "episodes"] | None,
    second_look: Float[np.ndarray, "episodes"] | None = None,
    support: Float[np.ndarray, "episodes"] | None = None,
) -> Float[np.ndarray, "episodes"]:
    """By what episodes are ranked: the mean log-weight of their rows, the better of two looks.

    The support of the others is added. Episodes that stop early come last, in the same order. Expert and pile alike;
    files of before have one look and no support.
    """
    best = log_weight if second_look is None else np.maximum(log_weight, second_look)
    best = best if support is None else best + support
    return best if finish is None else best - STOPPED * (finish < EARLY)


def standing(
    merit: Float[np.ndarray, "episodes"], task: Shaped[np.ndarray, "episodes"] | None
) -> Float[np.ndarray, "episodes"]:
    """Merits of several tasks on one scale: minus the share of its task's episodes that are better than an episode.

    Weights of different tasks do not compare. On this scale the best half of all episodes is the best half of each.
    """
    if task is None:
        return merit
    found = np.empty(len(merit))
    for name in np.unique(task):
        own = np.flatnonzero(task == name)
        found[own[np.argsort(-merit[own], kind="stable")]] = -(np.arange(len(own)) + 0.5) / len(own)
    return found


def read_tasks(path: Path, role: Role, count: int) -> Shaped[np.ndarray, "episodes"] | None:
    """The task of each episode of a source, in the order of the file; None where it names none."""
    from demosift.data.parquet import column_names, read_table

    if TASK not in column_names(path):
        return None
    table = read_table(path, ["source", TASK])
    pairs = zip(table["source"].to_pylist(), table[TASK].to_pylist(), strict=True)
    names = np.array([str(name) for source, name in pairs if source == role], np.str_)
    if len(names) != count:
        raise Unusable(f"{path}: {TASK}: not a task for each episode")
    return names


def read_part(path: Path, columns: list[str], role: Role, optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Columns of numbers, of the rows of one source; optional ones where the file has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from demosift.data.parquet import as_numbers, column_names, read_table

    try:
        columns = columns + [name for name in optional if name in column_names(path)]
        table = read_table(path, ["source", *columns])
        table = table.set_column(0, "source", table["source"].cast(pa.string())).filter(pc.field("source") == role)
        return {name: as_numbers(path, name, table[name], 1) for name in columns}
    except (InputError, pa.ArrowException) as error:
        raise Unusable(f"{path}: cannot read the scores: {one_line(error)}") from error
