"""`score` weighs every row of the union by how much it looks like the expert's, and writes a folder of the results.

The weight is an estimate of d_E/d_U, the paper's c/(1-c): the median over members, each of which judges the row by a
model that was trained without it, and then the weights of the rows around it (`context`). It is at least 1 where such a
row is at least as common in the expert's data as in the union.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from demosift.algorithms import facts
from demosift.data import RowSource, digest_source, open_pair, open_rows, split_episodes, without_episodes
from demosift.data.actions import ActionMode
from demosift.data.checks import check_state
from demosift.data.features import FeatureRows
from demosift.data.folds import hash_rows
from demosift.data.formats import Source, chosen_episodes
from demosift.data.normaliser import Normaliser
from demosift.files import atomic_folder, provenance
from demosift.progress import Progress, Stopwatch
from demosift.ranges import FOLDS, MEMBERS, POSITIVE, SEED
from demosift.report.statistics import probability_greater, sample_std
from demosift.results.scores import merit
from demosift.sift.agreement import Agreement, measure_agreement
from demosift.sift.calibration import (
    LOG_LIMIT,
    Coefficients,
    effective_sample_size,
    fit_coefficients,
    log_loss,
    segment_quantiles,
)
from demosift.sift.context import weigh_in_context
from demosift.sift.diagnosis import diagnose, in_words
from demosift.sift.finish import EARLY, measure_finish
from demosift.sift.folds import Copies, Plan, find_copies, make_plan, repeated_episodes
from demosift.sift.page_content import page_content
from demosift.sift.scorers import DEFAULT, Fitted, Scorer, features_by_models, held_out_features, make_scorer
from demosift.sift.training import Report
from demosift.sift.training_sample import BLOCK, Survey, TrainingSample, draw_training_sample, survey
from demosift.types import Dataset, InputError
from demosift.vision.embedding import Cameras, Joiner, prepare_features

SOURCES = ("expert", "supplementary")  # in the order of the rows

THRESHOLD = 0.5
BAD_STRENGTH = 2.0  # power of a row's likeness to bad ones by which its weight is divided
LIKE_BAD = 1.5  # a row that is this much more common among bad ones looks bad
FEWEST_EPISODES = 5  # that can be compared with each other
NOBODY = (
    "nobody has said which episodes are good: those that agree most with the others stand in for an expert. This "
    "measures agreement, not quality; look at the best and the worst episodes before you believe it"
)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW_ROWS = 100


@dataclass(frozen=True)
class Scored:
    """The scores of a union, expert rows first."""

    weight: Float[np.ndarray, "rows"]
    spread: Float[np.ndarray, "rows"]
    fold: Int[np.ndarray, "rows"]
    num_expert: int
    episode_ends: Int[np.ndarray, "episodes"]  # rows of the union; the expert's episodes come first
    num_expert_episodes: int
    summary: Mapping[str, Any]
    numbers: Int[np.ndarray, "episodes"] | None = None  # of the episodes, in their files; None: counted from 0
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # more about episodes, where no expert was named
    page: Mapping[str, Any] = field(default_factory=dict)  # what `page.json` holds
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage; in no file, so that bytes can be equal

    @property
    def expert(self) -> Float[np.ndarray, "rows"]:
        """The weights of the expert's rows."""
        return self.weight[: self.num_expert]

    @property
    def supplementary(self) -> Float[np.ndarray, "rows"]:
        """The weights of the supplementary rows."""
        return self.weight[self.num_expert :]

    def __str__(self) -> str:
        summary, quality = self.summary, self.summary["held_out"]
        lines = [
            f"supplementary: {summary['kept']:.1%} of {len(self.supplementary):,} transitions weigh at least "
            f"{summary['threshold']:g}",
            f"held out: expert against union AUC {quality['auc']:.3f}, log loss {quality['log_loss']:.3f}",
        ]
        warnings = [f"warning: {warning}" for warning in summary["warnings"]]
        return "\n".join([*lines, *in_words(summary["diagnosis"]), *warnings])

    def episodes(self) -> dict[str, np.ndarray]:
        """The columns of `episodes.parquet`."""
        starts = np.concatenate([[0], self.episode_ends[:-1]])
        rows = np.diff(self.episode_ends, prepend=0)
        number = np.arange(len(starts))
        number[self.num_expert_episodes :] -= self.num_expert_episodes

        def mean(value: np.ndarray) -> np.ndarray:
            return np.add.reduceat(value.astype(np.float64), starts) / rows

        mean_log = mean(np.log(self.weight))
        quantiles = segment_quantiles(self.weight, starts, QUANTILES)
        rank = np.empty(len(starts), np.int64)
        best = merit(mean_log, self.columns.get("finish"))
        for part in (slice(self.num_expert_episodes), slice(self.num_expert_episodes, None)):
            own = best[part]
            rank[part][np.argsort(-own, kind="stable")] = np.arange(1, len(own) + 1)
        return {
            "source": np.repeat(SOURCES, [self.num_expert_episodes, len(starts) - self.num_expert_episodes]),
            "episode": number,
            "rows": rows,
            "mean": mean(self.weight),
            **{f"q{round(100 * q):02d}": values for q, values in zip(QUANTILES, quantiles, strict=True)},
            "kept": mean(self.weight >= self.summary["threshold"]),
            "log_weight": mean_log,
            "rank": rank,
            "number": number if self.numbers is None else self.numbers,
            **self.columns,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder, whole or not at all."""
        with atomic_folder(path) as folder:
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the files into a folder that exists."""
        # Here: a machine that only trains may lack Parquet's library.
        from demosift.report.sift_page import write_sift_page
        from demosift.results.scores import write_episodes, write_rows, write_summary

        write_rows(folder, self.weight, self.spread, self.fold, self.episode_ends, self.num_expert_episodes)
        write_episodes(folder, self.episodes())
        write_summary(folder, self.summary, self.page)
        write_sift_page(folder, facts())


def score(
    expert: Source | Dataset | None,
    supplementary: Source | Dataset,
    *,
    bad: Source | Dataset | None = None,
    out: str | os.PathLike[str] | None = None,
    scorer: str | Scorer = DEFAULT,
    members: int = 3,
    folds: int = 5,
    seed: int = 0,
    threshold: float = THRESHOLD,
    actions: ActionMode = "check",
    features: Cameras | Sequence[Any] | None = None,
    state: bool = True,
    progress: bool | None = None,
) -> Scored:
    """Weigh every row of the union of two sources by models that were not trained on it.

    `expert` None: nobody has said which episodes are good. Those of the supplementary set that agree most with the
    others stand in for an expert (`agreement`). `bad`: data that are known to be bad; rows that look like them weigh
    less.

    `scorer`: a registered name, or a scorer with settings of your own. `members`: how many independent estimates give
    the weight and its spread. `folds`: how many parts the rows are split into. With `out`, the folder is written. Rows
    that weigh at least `threshold` count as kept. `progress`: None shows a bar on a terminal.

    `features`: `Cameras` adds what pictures show to the states; so does a file or an array of your own with a row for
    each row of a dataset, one for each dataset in the order expert, supplementary, bad. With `state` False they take
    the state's place.
    """
    _check_request(members, folds, seed, threshold)
    scorer = make_scorer(scorer) if isinstance(scorer, str) else scorer
    # From the start, so that a folder that exists is refused before any work.
    with nullcontext() if out is None else atomic_folder(out) as folder:
        watch = Stopwatch()
        joiner = make_joiner(expert, supplementary, bad, features, state, progress)
        watch.lap("features")
        how = Request(scorer, members, folds, seed, threshold, actions, progress, joiner)
        scored = _score(expert, supplementary, bad, how, watch)
        if folder is not None:
            scored.write(folder)
            watch.lap("write")
    return dataclasses.replace(scored, seconds=watch.seconds)


def _check_request(members: int, folds: int, seed: int, threshold: float) -> None:
    MEMBERS.check("score: members", members)
    FOLDS.check("score: folds", folds)
    SEED.check("score: seed", seed)
    POSITIVE.check("score: threshold", threshold)


def make_joiner(
    expert: Source | Dataset | None,
    supplementary: Source | Dataset,
    bad: Source | Dataset | None,
    features: Cameras | Sequence[Any] | None,
    state: bool,
    progress: bool | None,
) -> Joiner | None:
    if features is None:
        if not state:
            raise InputError("score: without the state there must be features: cameras, or files of features")
        return None
    given = [source for source in (expert, supplementary, bad) if source is not None]
    return prepare_features(given, features, state, progress)


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

    def open_rows(self, source: Source | Dataset) -> RowSource:
        return self.joined(source, open_rows(source, self.actions))

    def open_pair(self, expert: Source | Dataset, supplementary: Source | Dataset) -> tuple[RowSource, RowSource]:
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


def weigh_union(sources: tuple[RowSource, RowSource], how: Request, watch: Stopwatch, against: str = "") -> Union:
    """`against` says on the progress bar what the rows are compared with, where that is not the expert."""
    num_expert = sources[0].num_rows
    if num_expert < 2:
        raise InputError(
            f"{sources[0].source}: has one row; rows are scored by models trained on other rows, so give more"
        )
    folds = min(how.folds, num_expert)
    total = num_expert + sources[1].num_rows
    with Progress(how.progress) as display:
        reading = display.line(f"reading{against}", total)
        surveys = [survey(source, reading.advance) for source in sources]
        watch.lap("survey")
        copies = find_copies(np.concatenate([each.hashes for each in surveys]), num_expert)
        plan = make_plan(*sources, copies, folds, how.members, how.seed)
        normaliser = surveys[1].normaliser()
        sample = draw_training_sample(*sources, normaliser, plan, how.seed)
        watch.lap("plan")
        training = display.line(f"training {how.scorer.name}{against}", how.scorer.work)
        fitted = how.scorer.fit(sample, how.seed, training.advance)
        coefficients = [fit_coefficients(each, sample.num_expert) for each in held_out_features(fitted, sample)]
        watch.lap("train")
        scoring = display.line(f"scoring{against}", total)
        alone, spread = weigh_rows(fitted, coefficients, plan, normaliser, sources, scoring.advance)
        watch.lap("weigh")
    ends = np.concatenate([sources[0].episode_ends, num_expert + sources[1].episode_ends])
    weight, context = weigh_in_context(alone, ends, num_expert)
    spread *= weight / alone
    return Union(sources, surveys, copies, plan, sample, fitted.about, coefficients, context, alone, weight, spread)


def _score(
    expert: Source | Dataset | None,
    supplementary: Source | Dataset,
    bad: Source | Dataset | None,
    how: Request,
    watch: Stopwatch,
) -> Scored:
    agreement = None
    if expert is None:
        whole = how.open_rows(supplementary)
        expert, supplementary, agreement = stand_in(whole, supplementary, how.seed)
        watch.lap("agreement")
    beside_bad = None if bad is None else how.open_pair(bad, supplementary)  # read before anything is trained
    found = weigh_union(how.open_pair(expert, supplementary), how, watch)
    sources, num_expert, weight, spread = found.sources, found.num_expert, found.weight, found.spread
    warnings = find_warnings(found)
    known_bad = None
    if bad is not None and beside_bad is not None:
        likeness = weigh_union(beside_bad, how, watch, " bad")
        pile = likeness.weight[likeness.num_expert :]
        # No row gains by being unlike the bad ones: that a row is not bad does not make it good.
        factor = np.ones(len(weight))
        factor[num_expert:] = 1.0 if likeness.useless else np.maximum(pile, 1.0) ** -BAD_STRENGTH
        weight, spread = np.maximum(weight * factor, np.exp(-LOG_LIMIT)), spread * factor
        known_bad = describe_bad(bad, likeness, supplementary)
        if likeness.useless:
            warnings.append("rows that are known to be bad cannot be told from the pile's: they changed no weight")
    quality = held_out_quality(found.alone, found.plan, num_expert)
    diagnosis, samples = diagnose(sources, weight, found.copies, found.useless, how.seed)
    if agreement is not None:
        warnings.insert(0, NOBODY)
    finish = measure_finish(sources, how.seed)
    early = 0 if finish is None else int((finish.share[len(sources[0].episode_ends) :] < EARLY).sum())
    if early:
        warnings.append(f"{early} episodes of the supplementary set stop before the expert's do: they rank lower")
    summary = {
        "expert": describe_source(expert, sources[0], found.surveys[0]),
        "supplementary": describe_source(supplementary, sources[1], found.surveys[1]),
        "dataset": describe_dataset(expert, supplementary),
        "bad": known_bad,
        "finish": None if finish is None else {"told": finish.told, "early": early},
        "expert_by": "the user" if agreement is None else "agreement",
        "scorer": {"name": how.scorer.name, **dataclasses.asdict(how.scorer), **found.about},  # type: ignore[call-overload]
        "members": how.members,
        "folds": found.plan.num_folds,
        "seed": how.seed,
        "threshold": how.threshold,
        "actions": how.actions,
        **({} if how.joiner is None else {"features": dict(how.joiner.about)}),
        "pool_rows": {
            "expert": found.sample.num_expert,
            "supplementary": len(found.sample.obs) - found.sample.num_expert,
        },
        "coefficients": [in_figures(own) for own in found.coefficients],
        "context": in_figures(found.context),
        "held_out": quality,
        "effective_sample_size": {
            "expert": effective_sample_size(weight[:num_expert]),
            "supplementary": effective_sample_size(weight[num_expert:]),
        },
        "kept": float(np.mean(weight[num_expert:] >= how.threshold)),
        "warnings": warnings,
        "diagnosis": diagnosis,
        "versions": provenance()["versions"],
    }
    numbers = np.concatenate([source.numbers for source in sources])
    columns = {} if finish is None else {"finish": finish.share}
    if agreement is not None:
        first = agreement.stand_ins()
        order = np.concatenate([first, np.setdiff1d(np.arange(len(agreement.rank)), first)])
        columns |= {name: values[order] for name, values in agreement.columns.items()}
        if isinstance(supplementary, Dataset):
            numbers = order
    fold, num_episodes = found.plan.fold, len(sources[0].episode_ends)
    scored = Scored(weight, spread, fold, num_expert, found.ends, num_episodes, summary, numbers, columns)
    page = page_content(sources, weight, scored.episodes(), samples, how.threshold)
    watch.lap("judge")
    return dataclasses.replace(scored, page=page)


def stand_in(
    whole: RowSource, source: Source | Dataset, seed: int
) -> tuple[Source | Dataset, Source | Dataset, Agreement]:
    """The episodes that agree most, as the expert; the others; and how well each agrees."""
    if len(whole.episode_ends) < FEWEST_EPISODES:
        raise InputError(
            f"{whole.source}: has {len(whole.episode_ends)} episodes; without an expert, episodes are compared with "
            f"each other, which takes at least {FEWEST_EPISODES}"
        )
    agreement = measure_agreement(whole, seed)
    expert, others = split_episodes(source, whole.numbers[agreement.stand_ins()].tolist())
    return expert, others, agreement


def weigh_rows(
    fitted: Fitted,
    coefficients: list[Coefficients],
    plan: Plan,
    normaliser: Normaliser,
    sources: tuple[RowSource, RowSource],
    report: Report,
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Every row's weight, the median over members, and their standard deviation, NaN where there is one member."""
    weight, spread = (np.empty(len(plan.fold)) for _ in range(2))
    position = 0
    for source in sources:
        for obs, action in source.blocks(BLOCK):
            block = slice(position, position + len(obs))
            by_member = weigh_block(fitted, coefficients, plan, block, normaliser.apply(obs), action)
            weight[block] = np.exp(np.median(by_member, axis=0))
            spread[block] = sample_std(np.exp(by_member), axis=0)
            position = block.stop
            report(len(obs))
    return weight, spread


def weigh_block(
    fitted: Fitted, coefficients: list[Coefficients], plan: Plan, block: slice, obs: np.ndarray, action: np.ndarray
) -> Float[np.ndarray, "members rows"]:
    """Log-weights of consecutive rows of the union, each by the member's model that left it out."""
    features = features_by_models(fitted, plan.models_of(block), obs, action)
    return np.stack([own.log_weight(each) for own, each in zip(coefficients, features, strict=True)])


def in_figures(own: Coefficients) -> dict[str, Any]:
    return {"slopes": own.slopes.tolist(), "offset": own.offset, "ceiling": 1 / own.share}


def held_out_quality(weight: Float[np.ndarray, "rows"], plan: Plan, num_expert: int) -> dict[str, Any]:
    """How well held-out expert rows are told from the union's: overall, and fold by fold."""

    def quality(expert: np.ndarray, union: np.ndarray) -> dict[str, float]:
        return {"auc": probability_greater(expert, union), "log_loss": log_loss(np.log(union), len(expert))}

    folds = [weight[plan.fold == k] for k in range(plan.num_folds)]
    sizes = [int((plan.fold[:num_expert] == k).sum()) for k in range(plan.num_folds)]
    return {
        **quality(weight[:num_expert], weight),
        "folds": [quality(own[:size], own) for own, size in zip(folds, sizes, strict=True)],
    }


def find_warnings(union: Union) -> list[str]:
    """What a reader should know before trusting the weights."""
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
    auc = probability_greater(union.alone[: union.num_expert], union.alone)
    if union.useless:
        found.append("held-out expert rows cannot be told from the union's: every weight is about 1")
    elif auc < 0.55 and not inside.all():
        found.append(f"held-out AUC of expert rows against the union is {auc:.2f}: the weights tell little")
    return found


def describe_source(given: Source | Dataset, source: RowSource, known: Survey) -> dict[str, Any]:
    hashes = known.hashes
    if isinstance(source, FeatureRows):  # what is described is the data, whatever was added to it
        source = source.rows
        if isinstance(given, Dataset):
            hashes = np.concatenate([hash_rows(*block) for block in source.blocks(BLOCK)])
    return {
        "path": source.source if isinstance(given, Dataset) else os.fspath(given),
        "digest": hashlib.sha256(hashes.tobytes()).hexdigest() if isinstance(given, Dataset) else digest_source(given),
        "rows": source.num_rows,
        "episodes": len(source.episode_ends),
        "obs_dim": source.obs_dim,
        "action_dim": source.action_dim,
        "discrete": source.discrete,
    }


def describe_dataset(expert: Source | Dataset, supplementary: Source | Dataset) -> dict[str, Any] | None:
    """The dataset that both sets are episodes of, if they are."""
    if isinstance(expert, Dataset) or isinstance(supplementary, Dataset):
        return None
    places = {without_episodes(source) for source in (expert, supplementary) if chosen_episodes(source) is not None}
    if len(places) != 1 or without_episodes(expert) != without_episodes(supplementary):
        return None
    (place,) = places
    return {"path": place, "digest": digest_source(place)}


def describe_bad(bad: Source | Dataset, likeness: Union, supplementary: Source | Dataset) -> dict[str, Any]:
    source, num_bad = likeness.sources[0], likeness.num_expert
    known, pile = likeness.alone[:num_bad], likeness.weight[num_bad:]
    return {
        **describe_source(bad, source, likeness.surveys[0]),
        "in_dataset": describe_dataset(bad, supplementary) is not None,
        "numbers": source.numbers.tolist(),
        "lengths": np.diff(source.episode_ends, prepend=0).tolist(),
        "auc": probability_greater(known, likeness.alone),
        "like_bad": float(np.mean(pile > LIKE_BAD)),
    }
