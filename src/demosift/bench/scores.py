"""`demosift bench scores`: the scorers against the truth, on supplementary sets with rows of known origin.

There are three measures, each with a target. A scorer never sees what it is judged by.

    noisy-expert   AUC of clean against noisy rows
    haystack       precision among the best 20 of 2,000 episodes; 20 are the expert's, the rest medium and random
    full-replay    Spearman correlation of an episode's mean log-weight and its return

Beside the scorers stand the measures of agreement that `score --expert none` ranks by: of each episode, from the
supplementary set alone. A row then has its episode's number.

The last needs replays (`--replay DIR`, with what `demosift collect` wrote for an environment in DIR/ENV), and is left
out for environments without one.

Results are rows of a file (`--out FILE.json`), each with the digest of its data and the scorer's settings. A row that
is there already is not measured again, so that an interrupted bench continues and parts of it may run at other times.
Tables of all rows are written beside it, to FILE.md.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from demosift.bench import check_out, known, write_with_tables
from demosift.data.episodes import join
from demosift.data.rows import DatasetRows
from demosift.files import Unusable, digest, plain, provenance, read_json
from demosift.policy import RandomPolicy
from demosift.registry import SCORERS
from demosift.report.statistics import probability_greater
from demosift.sift.agreement import measure_agreement
from demosift.sift.scorers import DEFAULT, make_scorer
from demosift.sift.scoring import score
from demosift.simulation import environments
from demosift.simulation.shipped import shipped_policy
from demosift.tasks.recipes import ORIGINS, make_task
from demosift.tasks.record import record
from demosift.types import Dataset, Demonstrations, InputError, Origin

TARGETS = {"noisy-expert": 0.97, "haystack": 0.95, "full-replay": 0.8}
HIGHER = {("noisy-expert", "halfcheetah"): 0.99, ("noisy-expert", "ant"): 0.99}
NEEDLES, HAY = 20, 990  # episodes of the expert; of the medium and the random policy, each
REPEATED = (DEFAULT, "neighbours")  # measured with every seed and three members; the others with one of each
AGREEMENT = ("agreement", "predictability", "information")  # without an expert; with every seed
HAYSTACKS = ("hopper",)  # elsewhere 2,000 episodes take minutes to record

Row = dict[str, Any]
Key = tuple[str, str, int, str]  # measure, environment, seed, scorer


def target(measure: str, env: str) -> float:
    return HIGHER.get((measure, env), TARGETS[measure])


class Judged(NamedTuple):
    """What a scorer says of the supplementary set: larger is better."""

    row: np.ndarray
    episode: np.ndarray


def separation(found: Judged, supplementary: Dataset) -> float:
    """AUC of clean against noisy rows."""
    assert supplementary.origin is not None
    clean, noisy = (found.row[supplementary.origin.code == ORIGINS.index(name)] for name in ("clean", "noisy"))
    return probability_greater(clean, noisy)


def precision(found: Judged, supplementary: Dataset) -> float:
    """The share of expert episodes among the best, taking as many as the expert has."""
    best = np.argsort(-found.episode, kind="stable")[:NEEDLES]
    assert supplementary.origin is not None
    return float(np.mean(supplementary.origin.code[supplementary.episode_starts[best]] == ORIGINS.index("clean")))


def correlation(found: Judged, supplementary: Dataset) -> float:
    """Spearman's, of an episode's number and its return; zero where all episodes have the same."""
    if np.ptp(found.episode) == 0:
        return 0.0
    return float(spearmanr(found.episode, supplementary.returns())[0])  # type: ignore[arg-type]


def haystack(env: str, seed: int) -> Demonstrations:
    """One expert episode, and a supplementary set of 2,000 with 20 others of the expert among them."""
    spec = environments.resolve(env)
    expert = record(shipped_policy(env, "expert"), NEEDLES + 1, spec, seed=seed)
    first = int(expert.episode_ends[0])
    parts = [
        (expert.take(slice(first, None)), "clean"),
        (record(shipped_policy(env, "medium"), HAY, spec, seed=seed), "medium"),
        (record(RandomPolicy(spec), HAY, spec, seed=seed), "random"),
    ]
    code = np.concatenate([np.full(len(part), ORIGINS.index(name), np.int8) for part, name in parts])
    supplementary = join([part for part, _ in parts])
    return Demonstrations(expert.take(slice(first)), replace(supplementary, origin=Origin(code, ORIGINS)))


JUDGES = {"noisy-expert": separation, "haystack": precision, "full-replay": correlation}


def make_data(measure: str, env: str, seed: int, replay: str | None) -> Demonstrations:
    match measure:
        case "haystack":
            return haystack(env, seed)
        case "full-replay":
            return make_task(f"{env}/full-replay", seed, replay=Path(replay or "", env))
        case _:
            return make_task(f"{env}/{measure}", seed)


def key(row: Row) -> Key:
    return row["measure"], row["env"], row["seed"], row["scorer"]


def request(measure: str, env: str, seed: int, scorer: str, data: Demonstrations) -> Row:
    """What identifies a result: its key, the data's digest and the scorer's settings."""
    assert data.supplementary is not None
    arrays = {
        f"{name}/{field}": array
        for name, part in (("expert", data.expert), ("supplementary", data.supplementary))
        for field, array in (*part.transitions._asdict().items(), ("timeout", part.timeout))
    }
    origin = data.supplementary.origin
    settings = {} if scorer in AGREEMENT else asdict(make_scorer(scorer))  # type: ignore[call-overload]
    return {
        "measure": measure,
        "env": env,
        "seed": seed,
        "scorer": scorer,
        "members": 3 if scorer in REPEATED else 0 if scorer in AGREEMENT else 1,
        "settings": {name: plain(value) for name, value in settings.items()},
        "data": digest(arrays if origin is None else {**arrays, "origin": origin.code}),
    }


def measure_scorer(asked: Row, data: Demonstrations) -> Row:
    supplementary = data.supplementary
    assert supplementary is not None
    began = time.perf_counter()
    found, about = (by_agreement if asked["scorer"] in AGREEMENT else by_weight)(asked, data.expert, supplementary)
    return {
        **asked,
        "value": JUDGES[asked["measure"]](found, supplementary),
        "target": target(asked["measure"], asked["env"]),
        "rows": len(supplementary),
        "episodes": supplementary.num_episodes,
        **about,
        "seconds": round(time.perf_counter() - began, 1),
    }


def by_weight(asked: Row, expert: Dataset, supplementary: Dataset) -> tuple[Judged, Row]:
    """A row's weight, and the mean log-weight of an episode."""
    scored = score(expert, supplementary, scorer=asked["scorer"], members=asked["members"], seed=asked["seed"])
    episode = scored.episodes()["log_weight"][scored.num_expert_episodes :]
    about = {"held_out_auc": scored.summary["held_out"]["auc"], "kept": scored.summary["kept"]}
    return Judged(scored.supplementary, episode), about


def by_agreement(asked: Row, expert: Dataset, supplementary: Dataset) -> tuple[Judged, Row]:
    """How well an episode agrees with the others; the expert is not looked at."""
    found = measure_agreement(DatasetRows(supplementary), asked["seed"])
    episode = found.columns[asked["scorer"]]
    return Judged(np.repeat(episode, np.diff(supplementary.episode_ends, prepend=0)), episode), {}


class Results:
    """Finished rows, in memory and, with a path, in a file that other processes may add to meanwhile."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[Key, Row] = {}
        self.read()

    def read(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            self.rows = {key(row): row for row in read_json(self.path)["results"]}
            self.ordered()  # every name is known
        except (Unusable, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: not results of demosift bench scores") from error

    def has(self, asked: Row) -> bool:
        row = self.rows.get(key(asked), {})
        return all(row.get(name) == value for name, value in asked.items())

    def add(self, row: Row) -> None:
        self.read()
        self.rows[key(row)] = row
        if self.path is not None:
            write_with_tables(self.path, self.answer(), tables(self.ordered()))

    def ordered(self) -> list[Row]:
        places = [list(TARGETS), list(environments.SHORT_NAMES), [*SCORERS, *AGREEMENT]]

        def place(row: Row) -> tuple[int, ...]:
            names = zip(places, (row["measure"], row["env"], row["scorer"]), strict=True)
            # A scorer of a package that is not installed here comes last.
            return (*([*known, name].index(name) for known, name in names), row["seed"])

        return sorted(self.rows.values(), key=place)

    def answer(self) -> Row:
        return {"results": self.ordered(), "default": DEFAULT, **provenance()}


def bench_scores(
    scorers: Sequence[str] | None = None,
    envs: Sequence[str] | None = None,
    seeds: int = 3,
    replay: str | None = None,
    measures: Sequence[str] | None = None,
    out: str | None = None,
) -> tuple[Row, str]:
    """Every scorer on every task. `replay` is a folder that holds what `collect` wrote for each environment."""
    scorers = known("scorer", scorers, [*(SCORERS if scorers else SCORERS.loaded()), *AGREEMENT])
    envs = known("environment", envs or environments.IN_THE_PAPER, environments.SHORT_NAMES)
    measures = known("measure", measures, TARGETS)
    if replay is not None and not any(Path(replay, env).is_dir() for env in envs):
        raise InputError(f"--replay {replay}: holds no folder of {', '.join(envs)}; collect writes them")
    check_out(out)
    results = Results(None if out is None else Path(out))
    for measure, env in itertools.product(measures, envs):
        if measure == "haystack" and env not in HAYSTACKS:
            continue
        if measure == "full-replay" and not (replay and Path(replay, env).is_dir()):
            continue
        for seed in range(seeds if measure == "noisy-expert" else 1):
            chosen = [name for name in scorers if seed == 0 or name in (*REPEATED, *AGREEMENT)]
            if not chosen:
                continue
            data = make_data(measure, env, seed, replay)
            for name in chosen:
                asked = request(measure, env, seed, name, data)
                if not results.has(asked):
                    results.add(measure_scorer(asked, data))
                    report(results.rows[key(asked)])
    return results.answer(), tables(results.ordered())


def report(row: Row) -> None:
    """Print a finished row for somebody waiting at a terminal."""
    if sys.stderr.isatty():
        where = f"{row['measure']} {row['env']} {row['seed']}"
        print(f"{where}: {row['scorer']} {row['value']:.4f} in {row['seconds']:.0f} s", file=sys.stderr)


TITLES = {
    "noisy-expert": "Noisy expert: AUC of clean against noisy rows",
    "haystack": f"Haystack: the expert's among the best {NEEDLES} of {NEEDLES + 2 * HAY:,} episodes",
    "full-replay": "Full replay: rank correlation of an episode's mean log-weight and its return",
}


NOTE = (
    f"What `demosift bench scores` measured. {' and '.join(REPEATED)} score noisy experts with every seed (the mean, "
    "then the lowest) and everything with three members; the others, whose training is slow, with the first seed and "
    "one member. Those without members are measures of agreement among the episodes, which know no expert; they have "
    "every seed, too. An asterisk: below the target. Seconds: the median; compiling, training and scoring."
)


def tables(rows: Sequence[Row]) -> str:
    """A table for each measure in Markdown."""
    measures = dict.fromkeys(row["measure"] for row in rows)
    parts = [f"**{TITLES[each]}**\n\n{table([r for r in rows if r['measure'] == each])}" for each in measures]
    return "\n\n".join([NOTE, *parts])


def table(rows: Sequence[Row]) -> str:
    """One measure with a line per scorer: means over seeds, then the lowest; an asterisk marks a missed target."""
    columns = list(dict.fromkeys((row["measure"], row["env"]) for row in rows))
    lines = [
        "| scorer | members | " + " | ".join(env for _, env in columns) + " | seconds |",
        "| --- |" + " --- |" * (len(columns) + 2),
        "| *target* | | " + " | ".join(f"*{target(*column):g}*" for column in columns) + " | |",
    ]
    for scorer in dict.fromkeys(row["scorer"] for row in rows):
        own = [row for row in rows if row["scorer"] == scorer]
        cells = [cell([row for row in own if (row["measure"], row["env"]) == column]) for column in columns]
        seconds = np.median([row["seconds"] for row in own])
        lines.append(f"| {scorer} | {own[0]['members'] or ''} | " + " | ".join(cells) + f" | {seconds:.0f} |")
    return "\n".join(lines)


def cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    values = [row["value"] for row in rows]
    lowest = f" ({min(values):.3f})" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{lowest}" + ("\\*" if min(values) < rows[0]["target"] else "")
