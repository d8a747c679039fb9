"""The weights of the rows of two sources: how much each looks like those of the first.

The weight is an estimate of d_E/d_U, the paper's c/(1-c): the median over members, each of which judges the row by a
model that was trained without it, and then the weights of the rows around it (`context`). It is at least 1 where such a
row is at least as common in the expert's data as in the union.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from demosift.data import RowSource, open_observations, open_pair, open_rows
from demosift.data.actions import ActionMode
from demosift.data.checks import check_state
from demosift.data.folds import EPISODES
from demosift.data.formats import Source
from demosift.progress import Progress, Stopwatch
from demosift.report.statistics import probability_greater
from demosift.sift.calibration import Coefficients, fit_coefficients, log_loss
from demosift.sift.companions import find_companions, recognised, with_companions
from demosift.sift.context import weigh_in_context
from demosift.sift.engines import Engine, Here
from demosift.sift.folds import Copies, Plan, find_copies, make_plan, repeated_episodes
from demosift.sift.scored import SOURCES, episode_means
from demosift.sift.scorers import Scorer, held_out_features
from demosift.sift.training_sample import Survey, TrainingSample, draw_training_sample, survey
from demosift.sift.weighing import Weigher, weigh_rows
from demosift.types import Dataset, InputError
from demosift.vision.embedding import Joiner

FEW_ROWS = 100


class Request(NamedTuple):
    """How to score."""

    scorer: Scorer
    members: int
    folds: int
    seed: int
    threshold: float
    actions: ActionMode
    progress: bool | None
    joiner: Joiner | None = None
    expert_observations: bool = False
    engine: Engine = Here()

    def open_rows(self, source: Source | Dataset) -> RowSource:
        return self.joined(source, open_rows(source, self.actions))

    def open_pair(self, expert: Source | Dataset, supplementary: Source | Dataset) -> tuple[RowSource, RowSource]:
        if self.expert_observations:
            pair = open_observations(expert, supplementary, self.actions)
            check_state(pair[0].source, pair[0].obs_dim)
            return pair
        first, second = open_pair(expert, supplementary, self.actions)
        return self.joined(expert, first), self.joined(supplementary, second)

    def joined(self, source: Source | Dataset, rows: RowSource) -> RowSource:
        """The rows with their features, if there are any."""
        if self.joiner is not None:
            return self.joiner.join(source, rows)
        check_state(rows.source, rows.obs_dim)
        return rows


class Union(NamedTuple):
    """Two sources and the weights of their rows: how much more common a row is in the first than in both."""

    sources: tuple[RowSource, RowSource]
    surveys: list[Survey]
    copies: Copies
    plan: Plan
    sample: TrainingSample
    about: Mapping[str, float]
    coefficients: list[Coefficients]
    context: Coefficients
    alone: Float[np.ndarray, "rows"]  # by the row itself
    weight: Float[np.ndarray, "rows"]  # in its context
    spread: Float[np.ndarray, "rows"]

    @property
    def num_expert(self) -> int:
        return self.sources[0].num_rows

    @property
    def ends(self) -> Int[np.ndarray, "episodes"]:
        return np.concatenate([self.sources[0].episode_ends, self.num_expert + self.sources[1].episode_ends])

    @property
    def useless(self) -> bool:
        return all(own.useless for own in self.coefficients)


def weigh_union(
    sources: tuple[RowSource, RowSource],
    how: Request,
    watch: Stopwatch,
    against: str = "",
    fewest: int = EPISODES,
) -> Union:
    """`against` says on the progress bar what the rows are compared with, where that is not the expert.

    `fewest`: how many episodes the first source must have for each fold, if whole ones are to be left out.
    """
    num_expert = sources[0].num_rows
    if num_expert < 2:
        raise InputError(
            f"{sources[0].source}: has one row; rows are scored by models trained on other rows, so give more"
        )
    folds = min(how.folds, num_expert)
    total = num_expert + sources[1].num_rows
    with Progress(how.progress) as display:
        reading = display.line(f"reading{against}", total)
        hashes = np.empty(total, np.uint64)
        parts = hashes[:num_expert], hashes[num_expert:]
        surveys = [survey(each, reading.advance, how.engine, own) for each, own in zip(sources, parts, strict=True)]
        watch.lap("survey")
        copies = find_copies(hashes, num_expert)
        plan = make_plan(*sources, copies, folds, how.members, how.seed, fewest)
        normaliser = surveys[1].normaliser()
        sample = draw_training_sample(*sources, normaliser, plan, how.seed)
        watch.lap("plan")
        training = display.line(f"training {how.scorer.name}{against}", how.scorer.work)
        fitted = how.scorer.fit(sample, how.seed, training.advance)
        coefficients = [fit_coefficients(each, sample.num_expert) for each in held_out_features(fitted, sample)]
        watch.lap("train")
        scoring = display.line(f"scoring{against}", total)
        weigher = Weigher(fitted, coefficients, normaliser)
        alone, spread = weigh_rows(weigher, plan, hashes, sources, how.engine, scoring.advance)
        watch.lap("weigh")
    ends = np.concatenate([sources[0].episode_ends, num_expert + sources[1].episode_ends])
    weight, context = weigh_in_context(alone, ends, num_expert)
    spread *= weight / alone
    return Union(sources, surveys, copies, plan, sample, fitted.about, coefficients, context, alone, weight, spread)


def weigh_beside_companions(first: Union, how: Request, watch: Stopwatch) -> tuple[Union, dict[str, Any] | None]:
    """The same rows with the weights of a second look, if companions of the expert make these better; and what it was.

    None where the expert needs no companions.
    """
    num_expert, sources = len(first.sources[0].episode_ends), first.sources
    mean = episode_means(np.log(first.weight), first.ends)
    chosen = None if first.useless else find_companions(sources, mean, how.seed)
    if chosen is None:
        return first, None
    again = weigh_union(with_companions(sources, chosen), how, watch, " again", fewest=1)
    # Companions stand among the expert's rows and in the pile; here they are the pile's once more.
    rows = np.r_[: first.num_expert, again.num_expert : len(again.weight)]
    alone, weight = again.alone[rows], again.weight[rows]
    believed = recognised(
        episode_means(np.log(alone), first.ends), episode_means(np.log(weight), first.ends), num_expert, chosen
    )
    about = {"episodes": sources[1].numbers[chosen].tolist(), "believed": believed}
    if not believed:
        return first, about
    kept = {"plan": again.plan.take(rows), "alone": alone, "weight": weight, "spread": again.spread[rows]}
    fitted = {"sample": again.sample, "about": again.about, "coefficients": again.coefficients}
    return first._replace(**kept, **fitted, context=again.context), about


def held_out_quality(weight: Float[np.ndarray, "rows"], plan: Plan, num_expert: int) -> dict[str, Any]:
    """How well held-out expert rows are told from the union's: overall, and fold by fold."""

    def quality(expert: np.ndarray, union: np.ndarray) -> dict[str, float]:
        return {"auc": probability_greater(expert, union), "log_loss": log_loss(np.log(union), len(expert))}

    folds = []
    for k in np.unique(plan.fold[:num_expert]):  # a lone episode that has companions is in one fold
        own = weight[plan.fold == k]
        folds.append(quality(own[: int((plan.fold[:num_expert] == k).sum())], own))
    return {**quality(weight[:num_expert], weight), "folds": folds}


def find_warnings(union: Union, auc: float) -> list[str]:
    """What a reader should know before trusting the weights. `auc`: of held-out expert rows against the union's."""
    sources, surveys, copies, found = union.sources, union.surveys, union.copies, []
    inside = copies.shared[copies.num_expert :]
    if inside.all():
        found.append("every row of the supplementary set is also in the expert set: the weights tell nothing")
    elif inside.any():
        found.append(f"{int(inside.sum())} rows of the supplementary set are copies of expert rows")
    for source, known, name in zip(sources, surveys, SOURCES, strict=True):
        repeated = repeated_episodes(known.hashes, source.episode_starts)
        if repeated:
            found.append(f"{repeated} of {len(source.episode_ends)} episodes of the {name} set repeat earlier ones")
    if copies.num_expert < FEW_ROWS:
        found.append(f"the expert set has only {copies.num_expert} rows: the weights are rough guesses")
    if union.useless:
        found.append("held-out expert rows cannot be told from the union's: every weight is about 1")
    elif auc < 0.55 and not inside.all():
        found.append(f"held-out AUC of expert rows against the union is {auc:.2f}: the weights tell little")
    return found
