"""Differences between two files that are not behaviour: constants, units, clocks, rounding, repeats, moved cameras.

A discriminator uses whatever separates the expert's file from the supplementary one, and a column that was recorded in
another way separates them perfectly. The weights then tell files apart, not who acted well. Each finding names the
column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from demosift.data import RowSource
from demosift.data.features import FeatureRows
from demosift.report.statistics import probability_greater
from demosift.sift.overlap import Sample

PERFECT = 0.9995  # AUC of one column alone that counts as perfect
OTHER_UNITS = 3.0  # ratio of the scales of two columns of the same shape
SAME_SHAPE = 0.1  # largest distance between their distribution functions
CLOCK_EPISODES, CLOCK_ROWS = 20, 200  # episodes that are searched for clocks, and rows of each
CLOCK_JITTER = 0.2  # largest deviation of a clock's ticks, over their mean
REPEATED = 0.1  # share of repeated rows above which they are mentioned
TOLD_BY_CLOCK = 0.9  # AUC of a clock alone; a clock that starts anew with every episode tells nothing
SETS = ("expert", "supplementary")
FEW_EPISODES, MOST_EPISODES = 5, 200  # of each set, whose starts are compared
TOLD_BY_CAMERA = 0.98  # AUC of a camera in the first rows of episodes
TOLD_BY_STATE = 0.9  # above it, episodes start differently, and pictures should show that


class Finding(NamedTuple):
    kind: str  # constant, units, clock, rounding, alone, repeats, camera
    text: str
    column: int | None = None  # of the state; actions are not bookkeeping
    separates: bool = False  # whether it alone tells the files apart
    width: int = 1  # how many columns it is about, from `column` on


def find_artefacts(
    sources: tuple[RowSource, RowSource], samples: tuple[Sample, Sample], repeats: Sequence[float]
) -> list[Finding]:
    """`repeats`: the share of each set's rows that equal an earlier one."""
    expert, supplementary = samples
    names = column_names(sources[0])
    clocks = [clock_columns(source) for source in sources]
    found = find_moved_cameras(sources)
    for column, name in enumerate(names):
        if is_camera(sources[0], column):
            continue
        values = expert.obs[:, column], supplementary.obs[:, column]
        goals = [settled(sample, column) for sample in samples]
        ticking = [whose for whose, clock in zip(SETS, clocks, strict=True) if clock[column]]
        if ticking:
            whose = " and the ".join(ticking)
            text = f"{name} changes by the same amount at every step of the {whose} set: a clock or a counter?"
            found.append(Finding("clock", text, column, one_column_auc(*values) > TOLD_BY_CLOCK))
        elif finding := judge_column(column, name, *values, all(goals)):
            found.append(finding)
    found += find_rounding(expert, supplementary)
    for whose, share in zip(SETS, repeats, strict=True):
        if share > REPEATED:
            found.append(Finding("repeats", f"{share:.0%} of the rows of the {whose} set repeat earlier ones"))
    return found


def separating_columns(found: Sequence[Finding], num_columns: int) -> Bool[np.ndarray, "columns"]:
    mask = np.zeros(num_columns, bool)
    for finding in found:
        if finding.separates and finding.column is not None:
            mask[finding.column : finding.column + finding.width] = True
    return mask


def column_names(source: RowSource) -> list[str]:
    """The number of the column, or where a format has named parts, the part and the number within it."""
    keys: Mapping[str, int] | None = getattr(source, "obs_keys", None)
    if keys is None or sum(keys.values()) != source.obs_dim:
        return [f"observation column {column}" for column in range(source.obs_dim)]
    return [f"observation {key} column {column}" for key, width in keys.items() for column in range(width)]


def is_camera(source: RowSource, column: int) -> bool:
    """Whether a column comes from pictures: it has no units, and its changes are not a recorder's."""
    return isinstance(source, FeatureRows) and column >= source.obs_dim - source.features.shape[1]


def find_moved_cameras(sources: tuple[RowSource, RowSource]) -> list[Finding]:
    """Cameras that tell the files apart at the start of episodes, where states and actions do not.

    A camera that was moved, the light or the background separate two days of recording perfectly and mean nothing.
    Nobody has acted yet in the first row of an episode, so what its picture alone gives away is not behaviour.
    """
    expert, supplementary = sources
    few = any(len(source.episode_starts) < FEW_EPISODES for source in sources)
    if not isinstance(expert, FeatureRows) or not isinstance(supplementary, FeatureRows) or few:
        return []
    own = [first_rows(rows.rows) for rows in (expert, supplementary)]
    if separation(*(np.concatenate(part, axis=1) for part in own)) > TOLD_BY_STATE:
        return []
    pictures = [first_rows(replace(rows, state=False))[0] for rows in (expert, supplementary)]
    found, start = [], 0
    for (name, width), columns in zip(expert.cameras.items(), expert.camera_columns.values(), strict=True):
        auc = separation(*(part[:, start : start + width] for part in pictures))
        start += width
        if auc > TOLD_BY_CAMERA:
            text = (
                f"camera {name} tells the two files apart in the first picture of an episode (AUC {auc:.3f}), where "
                "states and actions do not: was it moved, or the light or the background changed?"
            )
            found.append(Finding("camera", text, columns.start, True, width))
    return found


def first_rows(source: RowSource) -> tuple[Float[np.ndarray, "episodes obs"], Float[np.ndarray, "episodes action"]]:
    """The first row of each episode, or of as many as are compared."""
    starts = source.episode_starts
    wanted = starts[np.linspace(0, len(starts) - 1, min(len(starts), MOST_EPISODES)).astype(int)]
    obs, action = source.take(wanted)
    return obs.astype(np.float64), action.astype(np.float64)


def separation(expert: Float[np.ndarray, "e columns"], supplementary: Float[np.ndarray, "p columns"]) -> float:
    """How well a linear rule that never saw a row tells which set it is from: AUC over parts left out in turn."""
    parts = [np.arange(len(rows)) % FEW_EPISODES for rows in (expert, supplementary)]
    rows = np.concatenate([expert, supplementary])
    label = np.arange(len(rows)) < len(expert)
    fold, value = np.concatenate(parts), np.empty(len(rows))
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
    for part in range(FEW_EPISODES):
        left_out = fold == part
        rule = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=[0.5, 0.5])
        value[left_out] = rule.fit(rows[~left_out], label[~left_out]).decision_function(rows[left_out])
    return probability_greater(value[label], value[~label])


def judge_column(
    column: int, name: str, expert: Float[np.ndarray, "e"], supplementary: Float[np.ndarray, "p"], settled: bool = False
) -> Finding | None:
    """`settled`: the column does not change within an episode, as a goal would not."""
    constant = [bool((values == values[0]).all()) for values in (expert, supplementary)]
    if all(constant):
        if expert[0] == supplementary[0]:
            return None
        text = f"{name} is {expert[0]:g} in every expert row and {supplementary[0]:g} in every other: it names the file"
        return Finding("constant", text, column, True)
    if any(constant):
        whose, other = ("expert", "supplementary") if constant[0] else ("supplementary", "expert")
        value, rest = (expert[0], supplementary) if constant[0] else (supplementary[0], expert)
        rare = bool((rest == value).mean() < 0.01)
        text = f"{name} is {value:g} in every row of the {whose} set and varies in the {other} set"
        if settled:  # an expert with one goal is not another recorder
            return Finding("constant", f"{text}, though not within an episode: a goal?", column)
        return Finding("constant", text, column, rare)
    units = other_units(expert, supplementary)
    if units is not None:
        text = f"{name} is about {units:.3g} times as large in the supplementary set, in the same shape: other units?"
        return Finding("units", text, column, True)
    if one_column_auc(expert, supplementary) > PERFECT:
        return Finding("alone", f"{name} alone tells the two files apart: is it behaviour, or how they were recorded?")
    return None


def settled(sample: Sample, column: int) -> bool:
    """Whether a column has one value in every episode."""
    starts = np.flatnonzero(np.diff(sample.episode, prepend=-1))
    values = sample.obs[:, column]
    return bool((np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)).all())


def one_column_auc(expert: Float[np.ndarray, "e"], supplementary: Float[np.ndarray, "p"]) -> float:
    """How well one threshold, either way round, separates the files."""
    auc = probability_greater(expert, supplementary)
    return max(auc, 1 - auc)


def other_units(expert: Float[np.ndarray, "e"], supplementary: Float[np.ndarray, "p"]) -> float | None:
    """The factor between two columns that have the same shape at different scales."""
    spread = [float(np.subtract(*np.quantile(values, [0.9, 0.1]))) for values in (expert, supplementary)]
    if min(spread) <= 0:
        return None
    factor = spread[1] / spread[0]
    if 1 / OTHER_UNITS < factor < OTHER_UNITS:
        return None
    distance = largest_gap(expert * factor, supplementary)
    return factor if distance < SAME_SHAPE else None


def largest_gap(first: Float[np.ndarray, "n"], second: Float[np.ndarray, "m"]) -> float:
    """The largest gap between two distribution functions (the Kolmogorov-Smirnov statistic)."""
    both = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(part), both, side="right") / len(part) for part in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def clock_columns(source: RowSource) -> Bool[np.ndarray, "columns"]:
    """Columns that rise, or fall, by about the same amount at every step of the first episodes."""
    clock, seen = np.ones(source.obs_dim, bool), False
    starts, ends = source.episode_starts[:CLOCK_EPISODES], source.episode_ends[:CLOCK_EPISODES]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start < 5:
            continue
        obs, _ = source.take(np.arange(start, min(end, start + CLOCK_ROWS)))
        ticks = np.diff(obs.astype(np.float64), axis=0)
        seen, mean = True, np.abs(ticks.mean(axis=0))
        clock &= ((ticks > 0).all(axis=0) | (ticks < 0).all(axis=0)) & (ticks.std(axis=0) < CLOCK_JITTER * mean)
    return clock & seen


def find_rounding(expert: Sample, supplementary: Sample) -> list[Finding]:
    """Findings where the numbers of one file are rounded and those of the other are not."""
    found = []
    for part in ("obs", "action"):
        kinds = [coarseness(getattr(sample, part)) for sample in (expert, supplementary)]
        if kinds[0] == kinds[1] or "integers" in kinds:
            continue
        said = [f"{kind or 'full precision'} in the {whose} set" for kind, whose in zip(kinds, SETS, strict=True)]
        name = "observations" if part == "obs" else "actions"
        found.append(Finding("rounding", f"{name} have {said[0]} and {said[1]}: that alone can tell the files apart"))
    return found


def coarseness(values: Float[np.ndarray, "rows columns"]) -> str | None:
    """What the numbers are rounded to; None where they are not."""
    moving = values[:, values.std(axis=0) > 0].astype(np.float32)
    if moving.size == 0 or (moving == np.round(moving)).all():
        return "integers"
    for decimals in range(1, 5):
        scaled = moving.astype(np.float64) * 10**decimals
        # float32 holds seven figures: a rounded number is off by that much and no more.
        if (np.abs(scaled - np.round(scaled)) <= 2e-7 * np.abs(scaled) + 1e-9).mean() > 0.99:
            return f"{decimals} decimal{'s' if decimals > 1 else ''}"
    with np.errstate(over="ignore"):
        halved = moving.astype(np.float16).astype(np.float32)
    return "16-bit floats" if (halved == moving).mean() > 0.99 else None
