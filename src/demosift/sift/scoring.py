"""`score`: how much every row of the union looks like the expert's, and a folder that says so.

    scores.parquet     a row per transition of the union, expert first: source, episode, step, weight, spread, fold
    episodes.parquet   a row per episode: rows, mean and quantiles of the weight, the share of kept steps, rank
    summary.json       what was scored and how, held-out AUC and log loss, effective sample size, warnings, diagnosis
    page.json          what the page shows besides: histograms, strips, a map of states
    report.html        the page

The weight is an estimate of d_E(s,a)/d_U(s,a), the paper's c/(1-c): the median over members, each of whose models was
trained without the row. It is at least 1 where a row is as common in the expert's data as in the union.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from demosift.data import RowSource, digest_source, open_pair
from demosift.data.actions import ActionMode
from demosift.data.formats import Source
from demosift.data.normaliser import Normaliser
from demosift.files import atomic_folder, provenance, write_json
from demosift.progress import Stopwatch, progress_bar
from demosift.report.sift_page import write_sift_page
from demosift.sift.calibration import (
    Coefficients,
    area_under_curve,
    effective_sample_size,
    fit_coefficients,
    log_loss,
    segment_quantiles,
)
from demosift.sift.diagnosis import diagnose, in_words
from demosift.sift.display import page_content
from demosift.sift.folds import Copies, Plan, find_copies, make_plan, repeated_episodes
from demosift.sift.sample import BLOCK, Pool, Survey, sample_pool, survey
from demosift.sift.scorers import DEFAULT, Fitted, Scorer, features_by_models, held_out_features, make_scorer
from demosift.sift.training import Report
from demosift.types import Dataset, InputError

THRESHOLD = 0.5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW_ROWS = 100
ROW_GROUP = 1 << 20


@dataclass(frozen=True)
class Scored:
    """The scores of a union, expert rows first."""

    weight: Float[np.ndarray, "rows"]
    spread: Float[np.ndarray, "rows"]
    fold: Int[np.ndarray, "rows"]
    num_expert: int
    episode_ends: Int[np.ndarray, "episodes"]  # of the expert's episodes, then of the pile's; rows of the union
    num_expert_episodes: int
    summary: Mapping[str, Any]
    page: Mapping[str, Any] = field(default_factory=dict)  # what `page.json` holds
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage; in no file, whose bytes it would change

    @property
    def expert(self) -> Float[np.ndarray, "rows"]:
        return self.weight[: self.num_expert]

    @property
    def supplementary(self) -> Float[np.ndarray, "rows"]:
        return self.weight[self.num_expert :]

    def __str__(self) -> str:
        summary, quality = self.summary, self.summary["held_out"]
        lines = [
            f"supplementary: {summary['kept']:.1%} of {len(self.supplementary):,} transitions weigh at least "
            f"{summary['threshold']:g}",
            f"held out: expert against union AUC {quality['auc']:.3f}, log loss {quality['log_loss']:.3f}",
        ]
        lines += in_words(summary["diagnosis"])
        return "\n".join([*lines, *(f"warning: {warning}" for warning in summary["warnings"])])

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
        for part in (slice(self.num_expert_episodes), slice(self.num_expert_episodes, None)):
            own = mean_log[part]
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
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder, whole or not at all."""
        with atomic_folder(path) as folder:
            self.write(folder)

    def write(self, folder: Path) -> None:
        _write_rows(self, folder / "scores.parquet")
        table = pa.table({name: _as_arrow(name, values) for name, values in self.episodes().items()})
        pq.write_table(table, folder / "episodes.parquet")
        write_json(folder / "summary.json", dict(self.summary))
        write_json(folder / "page.json", dict(self.page))
        write_sift_page(folder)


SOURCES = np.array(["expert", "supplementary"])


def _as_arrow(name: str, values: np.ndarray) -> pa.Array:
    return pa.array(values).dictionary_encode() if name == "source" else pa.array(values)


def _write_rows(scored: Scored, path: Path) -> None:
    """In row groups, so that columns which follow from others exist a piece at a time."""
    lengths = np.diff(scored.episode_ends, prepend=0)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, len(scored.weight), ROW_GROUP):
            rows = np.arange(start, min(start + ROW_GROUP, len(scored.weight)))
            episode = np.searchsorted(scored.episode_ends, rows, side="right")
            step = rows - (scored.episode_ends - lengths)[episode]
            of_pile = rows >= scored.num_expert
            columns = {
                "source": pa.DictionaryArray.from_arrays(pa.array(of_pile.astype(np.int8)), pa.array(SOURCES)),
                "episode": episode - of_pile * scored.num_expert_episodes,
                "step": step,
                "weight": scored.weight[rows],
                "spread": scored.spread[rows],
                "fold": scored.fold[rows],
            }
            writer.write_table(pa.table(columns, schema=SCHEMA))


SCHEMA = pa.schema(
    {
        "source": pa.dictionary(pa.int8(), pa.string()),
        "episode": pa.int64(),
        "step": pa.int64(),
        "weight": pa.float64(),
        "spread": pa.float64(),
        "fold": pa.int8(),
    }
)


def score(
    expert: Source | Dataset,
    supplementary: Source | Dataset,
    *,
    out: str | os.PathLike[str] | None = None,
    scorer: str | Scorer = DEFAULT,
    members: int = 3,
    folds: int = 5,
    seed: int = 0,
    threshold: float = THRESHOLD,
    actions: ActionMode = "check",
    progress: bool | None = None,
) -> Scored:
    """Weigh every row of the union of two sources by models that were not trained on it.

    `scorer`: a name of `SCORERS`, or a scorer with settings of your own. `members` independent answers give the spread;
    `folds` is how many parts the rows are split into. With `out`, the folder is written. Rows that weigh `threshold`
    are counted as kept. `progress`: None shows a bar on a terminal.
    """
    _check_request(members, folds, seed, threshold)
    scorer = make_scorer(scorer) if isinstance(scorer, str) else scorer
    if out is not None:
        with atomic_folder(out) as folder:  # from the start: a folder that is taken is refused before any work
            scored = score(
                expert,
                supplementary,
                scorer=scorer,
                members=members,
                folds=folds,
                seed=seed,
                threshold=threshold,
                actions=actions,
                progress=progress,
            )
            watch = Stopwatch()
            scored.write(folder)
            watch.lap("write")
        return dataclasses.replace(scored, seconds={**scored.seconds, **watch.seconds})
    watch = Stopwatch()
    sources = open_pair(expert, supplementary, actions)
    folds = _fitting_folds(folds, sources[0])
    total = sources[0].num_rows + sources[1].num_rows
    with progress_bar(progress) as bar:
        surveys = [survey(source, bar("reading", total)) for source in sources]
        watch.lap("survey")
        hashes = np.concatenate([each.hashes for each in surveys])
        copies = find_copies(hashes, sources[0].num_rows)
        plan = make_plan(*sources, copies, folds, members, seed)
        normaliser = surveys[1].normaliser()
        pool = sample_pool(*sources, normaliser, plan, seed)
        watch.lap("plan")
        fitted = scorer.fit(pool, seed, bar(f"training {scorer.name}", scorer.work))
        features = held_out_features(fitted, pool)
        coefficients = [fit_coefficients(each, pool.num_expert) for each in features]
        watch.lap("train")
        weight, spread = weigh_rows(fitted, coefficients, plan, normaliser, sources, bar("scoring", total))
        watch.lap("weigh")
    quality = held_out_quality(features, coefficients, pool)
    warnings = find_warnings(sources, surveys, copies, coefficients, quality)
    ends = np.concatenate([sources[0].episode_ends, sources[0].num_rows + sources[1].episode_ends])
    diagnosis = diagnose(sources, weight, copies, all(own.useless for own in coefficients), seed)
    summary = {
        "expert": describe_source(expert, sources[0], surveys[0]),
        "supplementary": describe_source(supplementary, sources[1], surveys[1]),
        "scorer": {"name": scorer.name, **dataclasses.asdict(scorer), **fitted.describe()},  # type: ignore[call-overload]
        "members": members,
        "folds": folds,
        "seed": seed,
        "threshold": threshold,
        "actions": actions,
        "pool_rows": {"expert": pool.num_expert, "supplementary": len(pool.obs) - pool.num_expert},
        "coefficients": [
            {"slopes": own.slopes.tolist(), "offset": own.offset, "ceiling": 1 / own.share} for own in coefficients
        ],
        "held_out": quality,
        "effective_sample_size": {
            "expert": effective_sample_size(weight[: sources[0].num_rows]),
            "supplementary": effective_sample_size(weight[sources[0].num_rows :]),
        },
        "kept": float(np.mean(weight[sources[0].num_rows :] >= threshold)),
        "warnings": warnings,
        "diagnosis": diagnosis.summary,
        "versions": provenance()["versions"],
    }
    scored = Scored(weight, spread, plan.fold, sources[0].num_rows, ends, len(sources[0].episode_ends), summary)
    page = page_content(sources, weight, scored.episodes(), diagnosis, threshold)
    watch.lap("judge")
    return dataclasses.replace(scored, page=page, seconds=watch.seconds)


def _check_request(members: int, folds: int, seed: int, threshold: float) -> None:
    if members < 1:
        raise InputError(f"score: members: {members} is not a positive number")
    if not 2 <= folds <= 100:
        raise InputError(f"score: folds: {folds} is not between 2 and 100")
    if not 0 <= seed < 2**31:
        raise InputError(f"score: seed: {seed} is not between 0 and 2**31 - 1")
    if not threshold > 0:
        raise InputError(f"score: threshold: {threshold} is not a positive number")


def _fitting_folds(folds: int, expert: RowSource) -> int:
    if expert.num_rows < 2:
        raise InputError(f"{expert.source}: has one row; a row is scored by what was learned from others: give more")
    return min(folds, expert.num_rows)


def weigh_rows(
    fitted: Fitted,
    coefficients: list[Coefficients],
    plan: Plan,
    normaliser: Normaliser,
    sources: tuple[RowSource, RowSource],
    report: Report,
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """Every row's weight, the median over members, and their standard deviation, block by block."""
    weight, spread = (np.empty(len(plan.fold)) for _ in range(2))
    position = 0
    for source in sources:
        for obs, action in source.blocks(BLOCK):
            block = slice(position, position + len(obs))
            by_member = weigh_block(fitted, coefficients, plan, block, normaliser.apply(obs), action)
            weight[block] = np.exp(np.median(by_member, axis=0))
            spread[block] = np.exp(by_member).std(axis=0)
            position = block.stop
            report(len(obs))
    return weight, spread


def weigh_block(
    fitted: Fitted, coefficients: list[Coefficients], plan: Plan, block: slice, obs: np.ndarray, action: np.ndarray
) -> Float[np.ndarray, "members rows"]:
    """Log-weights of consecutive rows of the union, each by the member's model that left it out."""
    model_of = np.stack([plan.model_of(member, block) for member in range(plan.num_members)])
    features = features_by_models(fitted, model_of, obs, action)
    return np.stack([own.log_weight(each) for own, each in zip(coefficients, features, strict=True)])


def held_out_quality(features: np.ndarray, coefficients: list[Coefficients], pool: Pool) -> dict[str, Any]:
    """How well held-out rows of the expert's are told from those of the union: overall, and fold by fold."""
    by_member = [own.log_weight(each) for each, own in zip(features, coefficients, strict=True)]
    value = np.median(by_member, axis=0)

    def quality(rows: np.ndarray) -> dict[str, float]:
        expert = value[rows & pool.expert]
        return {
            "auc": area_under_curve(expert, value[rows]),
            "log_loss": log_loss(np.concatenate([expert, value[rows & ~pool.expert]]), len(expert)),
        }

    everything = np.ones(len(value), bool)
    return {**quality(everything), "folds": [quality(pool.plan.fold == k) for k in range(pool.plan.num_folds)]}


def find_warnings(
    sources: tuple[RowSource, RowSource],
    surveys: list[Survey],
    copies: Copies,
    coefficients: list[Coefficients],
    quality: Mapping[str, Any],
) -> list[str]:
    """What a reader must know before believing the weights."""
    found = []
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
    if all(own.useless for own in coefficients):
        found.append("held-out rows of the expert's cannot be told from those of the union: every weight is about 1")
    elif quality["auc"] < 0.55 and not inside.all():
        found.append(f"held-out AUC of expert rows against the union is {quality['auc']:.2f}: the weights tell little")
    return found


def describe_source(given: Source | Dataset, source: RowSource, known: Survey) -> dict[str, Any]:
    in_memory = isinstance(given, Dataset)
    return {
        "path": source.source if in_memory else os.fspath(given),
        "digest": hashlib.sha256(known.hashes.tobytes()).hexdigest() if in_memory else digest_source(given),
        "rows": source.num_rows,
        "episodes": len(source.episode_ends),
        "obs_dim": source.obs_dim,
        "action_dim": source.action_dim,
        "discrete": source.discrete,
    }
