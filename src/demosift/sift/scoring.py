"""`score` weighs the rows of two sources (`union`), says what they can be used for, and writes a folder of results."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from demosift.cluster import Engine as EngineName
from demosift.data import RowSource, digest_source, split_episodes, tasks_of, without_episodes
from demosift.data.actions import ActionMode
from demosift.data.folds import hash_rows
from demosift.data.formats import Source, chosen_episodes
from demosift.data.rows import WrappedRows
from demosift.files import atomic_folder, provenance
from demosift.progress import Stopwatch
from demosift.ranges import FOLDS, MEMBERS, POSITIVE, SEED
from demosift.report.statistics import probability_greater
from demosift.results.scores import EARLY, merit
from demosift.sift.agreement import Agreement, measure_agreement
from demosift.sift.calibration import LOG_LIMIT, Coefficients, effective_sample_size
from demosift.sift.diagnosis import diagnose, judge_bad, without_expert
from demosift.sift.engines import BLOCK, Here, open_engine
from demosift.sift.films import make_films
from demosift.sift.finish import measure_finish
from demosift.sift.page_content import page_content
from demosift.sift.scored import Scored, episode_means
from demosift.sift.scorers import DEFAULT, Scorer, make_scorer
from demosift.sift.second_look import SUPPORT, look_again, possible
from demosift.sift.training_sample import Survey
from demosift.sift.union import Request, Union, find_warnings, held_out_quality, weigh_beside_companions, weigh_union
from demosift.types import Dataset, InputError
from demosift.vision.embedding import Cameras, Joiner, prepare_features

THRESHOLD = 0.5
BAD_STRENGTH = 2.0  # power of a row's likeness to bad ones by which its weight is divided
LIKE_BAD = 1.5  # a row that is this much more common among bad ones looks bad
FEWEST_EPISODES = 5  # that can be compared with each other
NOBODY = (
    "nobody has said which episodes are good: those that agree most with the others stand in for an expert. This "
    "measures agreement, not quality; look at the best and the worst episodes before you believe it"
)
COMPANY = (
    "the expert's episodes ({expert}) know little but themselves, so the {companions} episodes of the supplementary "
    "set that are most like them helped to weigh all rows"
)


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
    expert_observations: bool = False,
    task_column: str | None = None,
    progress: bool | None = None,
    engine: EngineName = "local",
    address: str | None = None,
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

    `expert_observations`: nobody knows the expert's actions. Rows are then compared by their states and by where these
    lead, and no action is looked at.

    A dataset of several tasks is scored task by task (`by_task`): LeRobot's own tasks, or those that `task_column`
    tells apart. "none" scores all of it together.

    `engine`: "ray" has the rows read and weighed by tasks on the Ray cluster at `address`, or on one started on this
    machine; models are trained here. The result is the same to the last byte.
    """
    _check_request(members, folds, seed, threshold)
    if expert_observations and features is not None:
        raise InputError("score: expert_observations: not together with pictures or features")
    if expert_observations and expert is None:
        raise InputError("score: expert_observations: there is no expert whose observations they could be")
    scorer = make_scorer(scorer) if isinstance(scorer, str) else scorer
    # From the start, so that a folder that exists is refused before any work.
    with nullcontext() if out is None else atomic_folder(out) as folder:
        watch = Stopwatch()
        joiner = make_joiner(expert, supplementary, bad, features, state, progress)
        watch.lap("features")
        with open_engine(engine, address) as on:
            watch.lap("connect")
            chosen = (threshold, actions, progress, joiner, expert_observations, on)
            how = Request(scorer, members, folds, seed, *chosen)
            tasks = find_tasks(expert, supplementary, bad, task_column)
            if tasks is None:
                scored = _score(expert, supplementary, bad, how, watch)
            else:
                from demosift.sift.by_task import score_tasks  # which merges what this module makes

                assert not isinstance(expert, Dataset)
                assert not isinstance(supplementary, Dataset)
                one = partial(_score, how=how, watch=watch)
                scored = score_tasks(tasks, expert, supplementary, bad, how, one)
        watch.lap("connect")
        if expert is None:
            said = {"diagnosis": without_expert(scored.summary["diagnosis"])}
            scored = dataclasses.replace(scored, summary={**scored.summary, **said})
        scored = with_named(scored)
        if not isinstance(expert, Dataset) and not isinstance(supplementary, Dataset):
            scored = with_films(scored, features.names if isinstance(features, Cameras) else ())
        if folder is not None:
            scored.write(folder)
            watch.lap("write")
    return scored


def with_named(scored: Scored) -> Scored:
    """The scores with the episodes of a dataset that were named as the expert's or as bad: decisions of before."""
    summary, numbers = scored.summary, scored.numbers
    if summary["dataset"] is None or numbers is None:
        return scored
    by_user, bad = summary["expert_by"] == "the user", summary["bad"]
    named = {
        "keep": numbers[: scored.num_expert_episodes].tolist() if by_user else [],
        "drop": bad["numbers"] if bad is not None and bad["in_dataset"] else [],
    }
    return dataclasses.replace(scored, page={**scored.page, "named": named})


def with_films(scored: Scored, names: Sequence[str]) -> Scored:
    """The scores with pictures for their page, where the data have some; a video that is broken is a warning."""
    summary = dict(scored.summary)
    films, wrong = make_films(scored.page, summary["expert"]["path"], summary["supplementary"]["path"], names)
    if films is None and wrong is None:
        return scored
    if wrong is not None:
        summary["warnings"] = [*summary["warnings"], wrong]
    page = scored.page if films is None else {**scored.page, "films": films}
    return dataclasses.replace(scored, summary=summary, page=page)


def _check_request(members: int, folds: int, seed: int, threshold: float) -> None:
    MEMBERS.check("score: members", members)
    FOLDS.check("score: folds", folds)
    SEED.check("score: seed", seed)
    POSITIVE.check("score: threshold", threshold)


class Labels(NamedTuple):
    """The tasks of the episodes of each set, by the episodes' numbers."""

    expert: Mapping[int, str]
    supplementary: Mapping[int, str]
    bad: Mapping[int, str]


def find_tasks(
    expert: Source | Dataset | None,
    supplementary: Source | Dataset,
    bad: Source | Dataset | None,
    column: str | None,
) -> Labels | None:
    """None where there is one task, or nobody says which there are. Data in memory name no tasks."""
    if column == "none":
        return None
    sets = (expert, supplementary, bad)
    known = [{} if each is None or isinstance(each, Dataset) else tasks_of(each, column) for each in sets]
    together = set(known[1].values()) | set(known[0].values())
    if not known[1] or len(together) < 2 or (expert is not None and not known[0]):
        if column is not None:
            raise InputError(f"score: {column}: tells no tasks apart in the data")
        return None
    return Labels(*known)


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
    found, companions = weigh_union(how.open_pair(expert, supplementary), how, watch), None
    if agreement is None:
        found, companions = weigh_beside_companions(found, how, watch)
    sources, num_expert, weight, spread = found.sources, found.num_expert, found.weight, found.spread
    quality = held_out_quality(found.alone, found.plan, num_expert)
    warnings = find_warnings(found, quality["auc"])
    if companions is not None and companions["believed"]:
        warnings.append(COMPANY.format(expert=len(sources[0].episode_ends), companions=len(companions["episodes"])))
    known_bad, factor = None, np.ones(len(weight))
    if bad is not None and beside_bad is not None:
        likeness = weigh_union(beside_bad, how, watch, " bad")
        pile = likeness.weight[likeness.num_expert :]
        # No row gains by being unlike the bad ones: that a row is not bad does not make it good.
        factor[num_expert:] = 1.0 if likeness.useless else np.maximum(pile, 1.0) ** -BAD_STRENGTH
        weight, spread = np.maximum(weight * factor, np.exp(-LOG_LIMIT)), spread * factor
        known_bad = describe_bad(bad, likeness, supplementary)
        if likeness.useless:
            warnings.append("rows that are known to be bad cannot be told from the pile's: they changed no weight")
    known = not how.expert_observations
    diagnosis, samples = diagnose(sources, weight, found.copies, found.useless, how.seed, known)
    if known_bad is not None:
        diagnosis["bad"] = judge_bad(known_bad)
    if agreement is not None:
        warnings.insert(0, NOBODY)
    finish, second = measure_finish(sources, how.seed), None
    if agreement is not None and agreement.finish is not None:
        finish = agreement.finish._replace(share=agreement.finish.share[agreement.order])
    if agreement is None and not found.useless and possible(sources):
        first = episode_means(np.log(weight), found.ends)[len(sources[0].episode_ends) :]
        own = None if finish is None else finish.share[len(sources[0].episode_ends) :]
        here = how._replace(engine=Here())  # a part of the rows, in memory
        second = look_again(
            sources, merit(first, own), lambda pair: weigh_union(pair, here, watch, " again").weight, how.seed
        )
        finish = second.finish
    early = 0 if finish is None else int((finish.share[len(sources[0].episode_ends) :] < EARLY).sum())
    if early:
        others = "the expert's" if agreement is None else "the others"
        warnings.append(f"{early} episodes of the supplementary set stop before {others} do: they rank lower")
    summary = {
        "expert": describe_source(expert, sources[0], found.surveys[0]),
        "supplementary": describe_source(supplementary, sources[1], found.surveys[1]),
        "dataset": describe_dataset(expert, supplementary),
        "bad": known_bad,
        "finish": None if finish is None else {"told": finish.told, "early": early},
        "companions": companions,
        "second_look": None if second is None else {"trusted": second.trusted},
        "expert_by": "the user" if agreement is None else "agreement",
        "scorer": {"name": how.scorer.name, **dataclasses.asdict(how.scorer), **found.about},  # type: ignore[call-overload]
        "members": how.members,
        "folds": found.plan.num_folds,
        "seed": how.seed,
        "threshold": how.threshold,
        "actions": how.actions,
        **({} if known else {"expert_observations": True}),
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
    if second is not None:
        # What is known to be bad counts in both looks.
        columns["second_look"] = second.log_weight + episode_means(np.log(factor), found.ends)
        columns["support"] = second.support
    if agreement is not None:
        columns |= {name: values[agreement.order] for name, values in agreement.columns.items()}
        columns["support"] = SUPPORT * columns["agreement"]
        if isinstance(supplementary, Dataset):
            numbers = agreement.order
    fold, num_episodes = found.plan.fold, len(sources[0].episode_ends)
    page: dict[str, Any] = {}
    rows = weight, spread, fold, num_expert, found.ends, num_episodes
    scored = Scored(*rows, summary, numbers, columns, page, watch.seconds, how.engine.usage)
    page |= page_content(sources, weight, scored.episodes(), samples, how.threshold, agreement is not None)
    watch.lap("judge")
    return scored


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


def in_figures(own: Coefficients) -> dict[str, Any]:
    return {"slopes": own.slopes.tolist(), "offset": own.offset, "ceiling": 1 / own.share}


def describe_source(given: Source | Dataset, source: RowSource, known: Survey | None = None) -> dict[str, Any]:
    """`known`: what was seen of a source that is in memory."""
    hashes = np.array([]) if known is None else known.hashes
    if isinstance(source, WrappedRows):  # what is described is the data, whatever was made of it
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
