"""Reading, checking and writing data; the normaliser that travels with the policy.

`registry.FORMATS` has the formats that are read and written; `rows` reads data that do not fit in memory.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from demosift.data.actions import ActionMode, check_mode, shared_action_space
from demosift.data.changes import ChangeRows, by_changes
from demosift.data.checks import check_memory, check_pair, check_same_keys, check_state
from demosift.data.episodes import Episodes, choose_episodes, holds, open_episodes, parse_condition
from demosift.data.format import Format
from demosift.data.formats import (
    EPISODES,
    WITHOUT,
    Source,
    chosen_episodes,
    digest_source,
    format_of,
    format_to_write,
    named_format,
    parts_of,
    split_options,
)
from demosift.data.formats.hdf5.file import write_hdf5
from demosift.data.formats.hdf5.rows import open_hdf5_rows
from demosift.data.formats.minari import write_minari
from demosift.data.memory import has_units, record_dataset
from demosift.data.recording import (
    Recording,
    assemble,
    check_recording,
    episode_numbers,
    join_recordings,
    with_actions_like,
    without_actions,
)
from demosift.data.rows import DatasetRows, FileRows, RowSource, open_part_rows
from demosift.files import check_apart, expanded, reserved
from demosift.types import Bounds, Dataset, Demonstrations, InputError

MOST_NAMED = 12  # names that a message lists

__all__ = [
    "RowSource",
    "check_pair",
    "digest_source",
    "episodes_where",
    "load",
    "name_episodes",
    "open_observations",
    "open_pair",
    "open_rows",
    "read_dataset",
    "reserve_target",
    "split_episodes",
    "take_episodes",
    "tasks_of",
    "without_episodes",
    "write_dataset",
    "write_hdf5",
    "write_minari",
]


def read_dataset(source: Source, actions: ActionMode = "check", max_episode_steps: int | None = None) -> Dataset:
    """Reads an HDF5 file (D4RL's layout or robomimic's), `minari:ID`, or a folder (Minari, LeRobot, `.npz` episodes).

    `actions` says what to do with actions outside their bounds: refuse them ("check"), "clip" them, or "rescale" all
    actions from their range in the data. `max_episode_steps` cuts longer episodes, for files that mark no time limits.
    """
    return _assemble(source, _record(source, actions), actions, max_episode_steps)


def write_dataset(dataset: Dataset, target: Source) -> None:
    """Writes a `.hdf5` or `.h5` file; `robomimic:FILE`, `lerobot:FOLDER`, `npz:FOLDER`; or `minari:ID`."""
    if len(dataset) == 0:
        raise InputError(f"{os.fspath(target)}: nothing to write: the set is empty")
    found = format_to_write(os.fspath(target))
    assert found.write is not None
    found.write(dataset, os.fspath(target))


def reserve_target(target: Source) -> AbstractContextManager[None]:
    """Keep the place that `write_dataset` will write to this process meanwhile."""
    place = _place(target)
    return nullcontext() if place is None else reserved(place)


def check_not_read(target: Source, source: Source) -> None:
    """Refuses to write over a source, or into its folder."""
    place, own = _place(target), _place(split_options(source)[0])
    if place is not None and own is not None:
        check_apart(place, own)


def _place(source: Source) -> Path | None:
    """Without the name of a format; None for a dataset of Minari's own folder, which is never replaced."""
    place = os.fspath(source)
    if named_format(place) is not None:
        prefix, _, place = place.partition(":")
        if prefix == "minari" and not place.startswith(("/", ".", "~")):
            return None
    if not place.strip():
        raise InputError(f"{os.fspath(source)}: names no place to write to")
    return expanded(place)


def load(
    expert: Source | Dataset,
    supplementary: Source | Dataset | None = None,
    actions: ActionMode = "check",
    max_episode_steps: int | None = None,
    expert_observations: bool = False,
    *,
    bad: Source | Dataset | None = None,
) -> Demonstrations:
    """Reads the expert set and, where given, the supplementary set, and checks that they belong together.

    Each is a source that `read_dataset` takes, or a `Dataset`. All get the same action units: bounds or a number of
    actions that only one of them states hold for all, and "rescale" uses the range of all together. With
    `expert_observations` the expert's actions are unknown: its source need not have any, and what it has is ignored.
    `bad`: data that are known to be bad, which sift uses.
    """
    if expert_observations and supplementary is None:
        raise InputError("expert_observations: needs a supplementary set too, for only its actions can be cloned")
    if bad is not None and supplementary is None:
        raise InputError("bad: tells which rows of the supplementary set to trust less; give that set too")
    sources = [source for source in (expert, supplementary, bad) if source is not None]
    unknown = 0 if expert_observations else None
    recordings = [_record(source, actions, number != unknown) for number, source in enumerate(sources)]
    if expert_observations:
        recordings[0] = with_actions_like(*recordings[:2])
    for other in recordings[1:]:
        check_same_keys(recordings[0], other)
    bounds, num_actions = shared_action_space(recordings, actions) if len(recordings) > 1 else (None, None)
    datasets = []
    for number, (source, recording) in enumerate(zip(sources, recordings, strict=True)):
        if number == unknown:
            # What stands in for unknown actions is another file's: that file's own rows are checked.
            mode = "clip" if actions == "check" else actions
            datasets.append(_assemble(source, recording, mode, max_episode_steps, bounds, num_actions))
        else:
            datasets.append(_in_units(source, recording, actions, max_episode_steps, bounds, num_actions))
    for other in datasets[1:]:
        check_pair(datasets[0], other)
    return Demonstrations(
        *datasets[:2], expert_actions=not expert_observations, bad=None if bad is None else datasets[2]
    )


def open_rows(
    source: Source | Dataset, actions: ActionMode = "check", max_episode_steps: int | None = None
) -> RowSource:
    """The rows of a dataset, or of any source that `read_dataset` takes, with the same options."""
    return DatasetRows(source) if isinstance(source, Dataset) else _open(source, actions, max_episode_steps)


def open_pair(
    expert: Source | Dataset,
    supplementary: Source | Dataset,
    actions: ActionMode = "check",
    max_episode_steps: int | None = None,
) -> tuple[RowSource, RowSource]:
    """Expert and supplementary rows that belong together: the same checks and the same action units as in `load`."""
    sources = expert, supplementary
    stated = [
        _record(source, actions) if isinstance(source, Dataset) else _open(source, actions, max_episode_steps)
        for source in sources
    ]
    check_same_keys(*stated)
    space = shared_action_space(stated, actions)
    a, b = (
        found.with_actions(*space)
        if isinstance(found, FileRows)
        else DatasetRows(_in_units(source, found, actions, max_episode_steps, *space))
        for source, found in zip(sources, stated, strict=True)
    )
    check_pair(a, b)
    return a, b


def open_observations(
    expert: Source | Dataset, supplementary: Source | Dataset, actions: ActionMode = "check"
) -> tuple[ChangeRows, ChangeRows]:
    """Rows that are compared by where their states lead. The expert's file need not have actions; none is used."""
    if isinstance(expert, Dataset):
        first: RowSource = DatasetRows(expert)
    else:
        first = DatasetRows(_assemble(expert, _record(expert, actions, known=False), actions, None))
    pair = by_changes(first, open_rows(supplementary, actions))
    check_pair(*pair)
    return pair


def episodes_where(source: Source, condition: str) -> Episodes:
    """The episodes of which a fact holds, as in `success=1`: a column's last value, an attribute, or a filter key."""
    name, how, wanted = parse_condition(condition)
    place, _ = split_options(source)
    found = format_of(source)
    facts = _facts(found, place, name, "that tells episodes apart")
    numbers = [number for number, value in facts.items() if holds(value, how, wanted)]
    if not numbers:
        told = ", ".join(sorted({str(value)[:20] for value in facts.values()})[:5])
        raise InputError(f"{place}: {condition}: true of no episode; {name} is {told}")
    return Episodes.of(numbers)


def _facts(found: Format, place: str, name: str, purpose: str) -> Mapping[int, Any]:
    """What a place says of its episodes by this name; where it says nothing, the error lists the names there are."""
    facts = {} if found.facts is None else found.facts(place, name)
    if not facts:
        names = () if found.fact_names is None else found.fact_names(place)
        shown = sorted({" ".join(each.split())[:40] for each in names} - {"", name})
        more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
        there = f"; there are {', '.join(shown[:MOST_NAMED])}{more}" if shown else ""
        raise InputError(f"{place}: {name}: no such column, attribute or filter key {purpose}{there}")
    return facts


def tasks_of(source: Source, column: str | None = None) -> dict[int, str]:
    """The task of every episode, by the episode's number; empty where the data have one task, or name none.

    `column`: a column whose last value says it, an attribute or a filter key, in place of what the format itself says.
    """
    place, _ = split_options(source)
    found = format_of(source)
    if column is None:
        return {} if found.tasks is None else dict(found.tasks(place))
    facts = _facts(found, place, column, "that names tasks")
    texts = (value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in facts.values())
    return dict(zip(facts, texts, strict=True))


def split_episodes(source: Source | Dataset, numbers: Sequence[int]) -> tuple[Source | Dataset, Source | Dataset]:
    """The episodes with these numbers, and the other ones, each as a source."""
    taken = Episodes.of(numbers)
    if isinstance(source, Dataset):
        counted = np.arange(len(source.episode_ends))
        return choose_episodes(source, counted, taken), choose_episodes(source, counted, taken.others)
    return take_episodes(source, taken)


def take_episodes(source: Source, taken: Episodes) -> tuple[str, str]:
    """These episodes of a source, which may itself name episodes, and its other ones."""
    chosen, place = chosen_episodes(source), without_episodes(source)
    if chosen is None:
        return name_episodes(place, taken), name_episodes(place, taken.others)
    own = Episodes.parse(*chosen)
    absent = own.overlap(taken) if own.without else taken.less(own).first
    if absent is not None:
        raise InputError(f"{os.fspath(source)}: episode {absent} is not one of these")
    others = own.joined(taken) if own.without else own.less(taken)
    if not others.stretches:
        raise InputError(f"{os.fspath(source)}: all its episodes are named, so that none is left")
    return name_episodes(place, taken), name_episodes(place, others)


def name_episodes(source: Source, episodes: Episodes) -> str:
    """The source with only these episodes."""
    if chosen_episodes(source) is not None:
        raise InputError(f"{os.fspath(source)}: names episodes already")
    return f"{os.fspath(source)}::{WITHOUT if episodes.without else EPISODES}={episodes}"


def without_episodes(source: Source) -> str:
    """The source with all its episodes."""
    place, options = split_options(source)
    return "::".join([place, *(f"{name}={value}" for name, value in options.items())])


def _open(source: Source, actions: ActionMode, max_episode_steps: int | None) -> FileRows:
    check_mode(actions)
    if format_of(source).name == "hdf5":
        rows = open_hdf5_rows(split_options(source)[0], actions, max_episode_steps)
    else:
        rows = open_part_rows(os.fspath(source), parts_of(source), actions, max_episode_steps)
    chosen = chosen_episodes(source)
    return rows if chosen is None else open_episodes(rows, Episodes.parse(*chosen))


def _assemble(
    source: Source | Dataset,
    recording: Recording,
    actions: ActionMode,
    max_episode_steps: int | None,
    bounds: Bounds | None = None,
    num_actions: int | None = None,
) -> Dataset:
    """The recording of a source as a dataset: of all its episodes, or of those that the source names."""
    dataset = assemble(recording, actions, max_episode_steps, bounds, num_actions)
    chosen = None if isinstance(source, Dataset) else chosen_episodes(source)
    if chosen is None:
        return dataset
    return choose_episodes(dataset, episode_numbers(recording, max_episode_steps), Episodes.parse(*chosen))


def _in_units(
    source: Source | Dataset,
    recording: Recording,
    actions: ActionMode,
    max_episode_steps: int | None,
    bounds: Bounds | None,
    num_actions: int | None,
) -> Dataset:
    """The recording of a source, its actions in units that it shares with others."""
    changed = actions == "rescale" or max_episode_steps is not None
    if isinstance(source, Dataset) and not changed and has_units(source, bounds, num_actions):
        return source  # to other units and back again would change the last bit
    return _assemble(source, recording, actions, max_episode_steps, bounds, num_actions)


def _record(source: Source | Dataset, actions: ActionMode, known: bool = True) -> Recording:
    """The recording of a source, checked; what it says about actions only where they are `known`."""
    check_mode(actions)
    if isinstance(source, Dataset):
        whole = record_dataset(source)
        return check_recording(whole if known else without_actions(whole))
    parts, num_bytes = [], 0
    for read in parts_of(source):
        part = read()
        part = check_recording(part if known else without_actions(part))
        num_bytes += 2 * part.observations.nbytes + part.actions.nbytes
        check_memory(os.fspath(source), num_bytes)
        parts.append(part)
    check_state(os.fspath(source), parts[0].observations.shape[1])
    return join_recordings(os.fspath(source), parts)
