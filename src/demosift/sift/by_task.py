"""Several tasks in one dataset: each is scored by itself, its expert episodes against the rest of the task.

Rows of one task are never compared with those of another: what is right in one may be wrong in the other. A task of
which nobody named an expert episode is scored by agreement among its own episodes, and one that cannot be scored
either way keeps the weight 1: nothing is known against it. Episodes are ranked by where they stand within their task.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from demosift.data import RowSource, name_episodes, take_episodes, without_episodes
from demosift.data.episodes import Episodes
from demosift.data.formats import Source
from demosift.files import provenance
from demosift.results.scores import TASK
from demosift.sift.calibration import LOG_LIMIT, effective_sample_size
from demosift.sift.diagnosis import TaskPart, join_diagnoses, judge_bad
from demosift.sift.overlap import MOST_EXPERT, MOST_SUPPLEMENTARY, draw_sample
from demosift.sift.page_content import page_content
from demosift.sift.scored import Scored
from demosift.sift.scoring import FEWEST_EPISODES, NOBODY, Labels, describe_dataset, describe_source
from demosift.sift.union import Request
from demosift.types import Dataset, InputError

NAMED = 3  # tasks that a line names
UNSAID = {
    "finish": 1.0,
    "second_look": -LOG_LIMIT,
    "support": 0.0,
}  # an episode came to its end, and the first look decides

ScoreOne = Callable[[Any, Any, Any], Scored]  # of an expert, a supplementary and a bad set


class Task(NamedTuple):
    name: str
    by: str  # the expert, agreement, nothing
    scored: Scored | None  # None: by nothing
    expert: Int[np.ndarray, "episodes"]  # numbers of its episodes in both sets
    supplementary: Int[np.ndarray, "episodes"]


def score_tasks(
    labels: Labels,
    expert: Source | None,
    supplementary: Source,
    bad: Source | Dataset | None,
    how: Request,
    score_one: ScoreOne,
) -> Scored:
    """`expert` None: every task by agreement, and the episodes that stand in for experts are the expert set."""
    if expert is None:
        theirs, pile = np.array([], np.int64), how.open_rows(supplementary).numbers
    else:
        theirs, pile = (each.numbers for each in how.open_pair(expert, supplementary))
    numbers = [numbers_by_task(*each) for each in zip((theirs, pile), labels[:2], strict=True)]
    tasks = []
    for name in sorted({*numbers[0], *numbers[1]}):
        own = [each[name] for each in numbers]
        by = judged_by(expert is not None, *map(len, own))
        scored = None
        if by != "nothing":
            sets = (
                chosen(expert, own[0]) if by == "the expert" else None,
                chosen(supplementary, own[1]),
                bad_of(bad, labels.bad, name, how),
            )
            try:
                scored = score_one(*sets)
            except InputError as error:
                raise InputError(f"task {name!r}: {error}") from None
        tasks.append(Task(name, by, scored, *own))
    if all(task.scored is None for task in tasks):
        few = f"has fewer than {FEWEST_EPISODES} episodes, which is too few to compare them with each other"
        raise InputError(f"{without_episodes(supplementary)}: each of its {len(tasks)} tasks {few}")
    if expert is None:
        first = [task.scored.numbers[: task.scored.num_expert_episodes] for task in tasks if task.scored is not None]
        expert, supplementary = take_episodes(supplementary, Episodes.of(np.concatenate(first).tolist()))
        return merge(tasks, expert, supplementary, bad, how, named=False)
    return merge(tasks, expert, supplementary, bad, how, named=True)


def judged_by(named: bool, num_expert: int, num_supplementary: int) -> str:
    if named and num_expert:
        return "the expert" if num_supplementary else "nothing"
    return "agreement" if num_supplementary >= FEWEST_EPISODES else "nothing"


def numbers_by_task(numbers: Int[np.ndarray, "episodes"], labels: Mapping[int, str]) -> dict[str, np.ndarray]:
    found = defaultdict(list)
    for number in numbers.tolist():
        found[labels.get(number, "no task")].append(number)
    return defaultdict(lambda: np.array([], np.int64), {name: np.array(each) for name, each in found.items()})


def chosen(source: Source | None, numbers: Iterable[int]) -> str:
    assert source is not None
    return name_episodes(without_episodes(source), Episodes.of(numbers))


def bad_of(bad: Source | Dataset | None, labels: Mapping[int, str], name: str, how: Request) -> Source | Dataset | None:
    """The bad episodes of a task; all of them where nobody says of which task they are."""
    if bad is None or isinstance(bad, Dataset) or not labels:
        return bad
    own = [number for number in how.open_rows(bad).numbers.tolist() if labels.get(number) == name]
    return chosen(bad, own) if own else None


def merge(
    tasks: Sequence[Task],
    expert: Source,
    supplementary: Source,
    bad: Source | Dataset | None,
    how: Request,
    named: bool,
) -> Scored:
    """The scores of all tasks as those of one union, in the order of its rows."""
    sources = how.open_pair(expert, supplementary)
    ends = np.concatenate([sources[0].episode_ends, sources[0].num_rows + sources[1].episode_ends])
    first, num_expert = len(sources[0].episode_ends), sources[0].num_rows
    place = [{number: at for at, number in enumerate(each.numbers.tolist())} for each in sources]
    weight, spread, fold = np.ones(len_of(ends)), np.full(len_of(ends), np.nan), np.full(len_of(ends), -1, np.int8)
    task_of = np.empty(len(ends), object)
    columns: dict[str, np.ndarray] = {}
    starts = ends - np.diff(ends, prepend=0)
    for task in tasks:
        episodes = [place[0][n] for n in task.expert.tolist()]
        episodes += [first + place[1][n] if n in place[1] else place[0][n] for n in task.supplementary.tolist()]
        task_of[episodes] = task.name
        scored = task.scored
        if scored is None:
            continue
        assert scored.numbers is not None
        at = []
        for index, number in enumerate(scored.numbers.tolist()):
            # Episodes that stood in for an expert are no expert's where others are named.
            is_expert = index < scored.num_expert_episodes and (not named or task.by == "the expert")
            at.append(place[0][number] if is_expert else first + place[1][number])
        rows = np.concatenate([np.arange(int(starts[there]), int(ends[there])) for there in at])
        weight[rows], spread[rows], fold[rows] = scored.weight, scored.spread, scored.fold
        for name, values in scored.columns.items():
            columns.setdefault(name, np.full(len(ends), UNSAID.get(name, np.nan)))[at] = values
    columns[TASK] = task_of.astype(np.str_)
    summary = summarise(tasks, (expert, supplementary, bad), sources, weight, starts, how, named)
    numbers = np.concatenate([each.numbers for each in sources])
    scored = Scored(weight, spread, fold, num_expert, ends, first, summary, numbers, columns)
    rng = np.random.default_rng([how.seed, 5])
    samples = (draw_sample(sources[0], MOST_EXPERT, rng), draw_sample(sources[1], MOST_SUPPLEMENTARY, rng))
    page = page_content(sources, weight, scored.episodes(), samples, how.threshold, not named)
    return Scored(weight, spread, fold, num_expert, ends, first, summary, numbers, columns, page)


def len_of(ends: Int[np.ndarray, "episodes"]) -> int:
    return int(ends[-1])


def summarise(
    tasks: Sequence[Task],
    given: tuple[Source, Source, Source | Dataset | None],
    sources: tuple[RowSource, RowSource],
    weight: np.ndarray,
    starts: Int[np.ndarray, "episodes"],
    how: Request,
    named: bool,
) -> dict[str, Any]:
    """The summary of all tasks. What belongs to one task alone is in `tasks`."""
    expert, supplementary, bad = given
    num_expert = sources[0].num_rows
    scored = [(task, task.scored) for task in tasks if task.scored is not None]
    parts = [
        TaskPart(task.name, one.summary["diagnosis"], one.num_expert, len(one.supplementary), is_useless(one))
        for task, one in scored
    ]
    diagnosis = join_diagnoses(parts, weight, num_expert, starts, how.seed)
    known_bad = None if bad is None else describe_bad(bad, supplementary, scored, how)
    if known_bad is not None:
        diagnosis["bad"] = judge_bad(known_bad)
    shares = np.array([len(one.weight) for _, one in scored], np.float64)
    shares /= shares.sum()
    quality = [one.summary["held_out"] for _, one in scored]
    finish = [one.summary["finish"] for _, one in scored if one.summary["finish"] is not None]
    base = scored[0][1].summary
    kept_from_base = ("scorer", "members", "seed", "threshold", "actions", "features", "versions")
    return {
        **{key: base[key] for key in kept_from_base if key in base},
        "expert": describe_source(expert, sources[0]),
        "supplementary": describe_source(supplementary, sources[1]),
        "dataset": describe_dataset(expert, supplementary),
        "bad": known_bad,
        "finish": {
            "told": float(np.mean([one["told"] for one in finish])),
            "early": sum(one["early"] for one in finish),
        }
        if finish
        else None,
        "expert_by": "the user" if named else "agreement",
        "folds": max(one.summary["folds"] for _, one in scored),
        "pool_rows": {
            key: sum(one.summary["pool_rows"][key] for _, one in scored) for key in ("expert", "supplementary")
        },
        # Of each task, weighted by its rows: rows of different tasks are not compared.
        "held_out": {
            key: float(sum(share * one[key] for share, one in zip(shares, quality, strict=True)))
            for key in ("auc", "log_loss")
        },
        "effective_sample_size": {
            "expert": effective_sample_size(weight[:num_expert]),
            "supplementary": effective_sample_size(weight[num_expert:]),
        },
        "kept": float(np.mean(weight[num_expert:] >= how.threshold)),
        "warnings": find_warnings(tasks, named),
        "diagnosis": diagnosis,
        "tasks": [describe_task(task) for task in tasks],
        "versions": provenance()["versions"],
    }


def is_useless(scored: Scored) -> bool:
    return all(max(own["slopes"]) <= 0 for own in scored.summary["coefficients"])


def describe_task(task: Task) -> dict[str, Any]:
    known = {"task": task.name, "by": task.by}
    known |= {"expert_episodes": len(task.expert), "supplementary_episodes": len(task.supplementary)}
    if task.scored is None:
        return known
    own = task.scored.summary
    told = {key: own["diagnosis"][key] for key in ("advised", "headline", "reason")}
    alone = ("kept", "held_out", "companions", "coefficients", "context", "scorer")
    share = own["diagnosis"]["expert_like"]["share"]
    return {**known, **{key: own[key] for key in alone}, **told, "expert_like": share}


def describe_bad(
    bad: Source | Dataset, supplementary: Source, scored: Sequence[tuple[Task, Scored]], how: Request
) -> dict[str, Any]:
    rows, first = how.open_rows(bad), scored[0][1].summary["bad"]
    known = [(one.summary["bad"], len(one.supplementary)) for _, one in scored if one.summary["bad"] is not None]
    total = max(sum(count for _, count in known), 1)
    pile = max(sum(len(one.supplementary) for _, one in scored), 1)
    return {
        **(first if isinstance(bad, Dataset) else describe_source(bad, rows)),
        "in_dataset": describe_dataset(bad, supplementary) is not None,
        "numbers": rows.numbers.tolist(),
        "lengths": np.diff(rows.episode_ends, prepend=0).tolist(),
        "auc": sum(one["auc"] * count for one, count in known) / total if known else 0.5,
        "like_bad": sum(one["like_bad"] * count for one, count in known) / pile,
    }


def find_warnings(tasks: Sequence[Task], named: bool) -> list[str]:
    found = [] if named else [NOBODY]
    agreeing = [task for task in tasks if named and task.by == "agreement"]
    if agreeing:
        found.append(
            f"{few_of(agreeing, tasks)} no expert episode: scored by agreement among their own episodes, not by quality"
        )
    unknown = [task for task in tasks if task.by == "nothing" and len(task.supplementary)]
    if unknown:
        found.append(
            f"{few_of(unknown, tasks)} no expert episode and fewer than {FEWEST_EPISODES} others: not scored, every "
            "row weighs 1"
        )
    for task in tasks:
        own = [] if task.scored is None else task.scored.summary["warnings"]
        found += [f"{task.name}: {text}" for text in own if text != NOBODY]
    return found


def few_of(some: Sequence[Task], tasks: Sequence[Task]) -> str:
    names = ", ".join(repr(task.name) for task in some[:NAMED]) + (", ..." if len(some) > NAMED else "")
    return f"{len(some)} of {len(tasks)} tasks ({names}) {'has' if len(some) == 1 else 'have'}"
