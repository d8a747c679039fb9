"""`demosift bench scores`: the scorers against the truth, on piles whose every row's origin is known.

Three measures, each with its target. None of what they are judged by is shown to a scorer.

    noisy-expert   AUC of clean against noisy rows
    haystack       precision among the best 20 of 2,000 episodes; 20 are the expert's, the rest medium and random
    full-replay    Spearman correlation of an episode's mean log-weight and its return

A full replay takes hours to collect (`--replay` names a folder with one for each environment). Without it, a ladder of
policies stands in: the expert's and the medium one's networks, each with its weights disturbed a little more than the
one before it, whose episodes cover the range of returns from random to expert.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from demosift import environments
from demosift.collect.record import as_dataset, record
from demosift.collect.tasks import ORIGINS, make_task
from demosift.policy import Layer, Policy, RandomPolicy
from demosift.runs import provenance
from demosift.shipped import shipped_policy
from demosift.sift.calibration import area_under_curve
from demosift.sift.scorers import DEFAULT, SCORERS
from demosift.sift.scoring import Scored, score
from demosift.simulate import Job, episode_seeds, rollout
from demosift.types import Dataset, Demonstrations, InputError, Origin, Transitions

TARGETS = {"noisy-expert": 0.97, "haystack": 0.95, "full-replay": 0.8, "ladder": 0.8}
HIGHER = {("noisy-expert", "halfcheetah"): 0.99, ("noisy-expert", "ant"): 0.99}
NEEDLES, HAY = 20, 990  # episodes of the expert's; of the medium and of the random policy each
RUNGS, DISTURBED = 40, 0.6
REPEATED = (DEFAULT, "neighbours")  # measured with every seed; the others with the first

Row = dict[str, Any]


def target(measure: str, env: str) -> float:
    return HIGHER.get((measure, env), TARGETS[measure])


def separation(scored: Scored, pile: Dataset) -> float:
    """AUC of clean against noisy rows."""
    assert pile.origin is not None
    clean, noisy = (scored.supplementary[pile.origin.code == ORIGINS.index(name)] for name in ("clean", "noisy"))
    return area_under_curve(clean, noisy)


def pile_scores(scored: Scored) -> np.ndarray:
    return scored.episodes()["log_weight"][scored.num_expert_episodes :]


def precision(scored: Scored, pile: Dataset) -> float:
    """The share of the expert's among the best episodes, as many as there are of it."""
    best = np.argsort(-pile_scores(scored), kind="stable")[:NEEDLES]
    assert pile.origin is not None
    return float(np.mean(pile.origin.code[pile.episode_starts[best]] == ORIGINS.index("clean")))


def correlation(scored: Scored, pile: Dataset) -> float:
    return float(spearmanr(pile_scores(scored), pile.returns())[0])  # type: ignore[arg-type]


def haystack(env: str, seed: int) -> Demonstrations:
    """One expert episode, and a pile with 20 others of the expert's among 2,000."""
    spec = environments.resolve(env)
    expert = record(shipped_policy(env, "expert"), NEEDLES + 1, spec, seed=seed)
    first = int(expert.episode_ends[0])
    parts = [
        (expert.take(slice(first, None)), "clean"),
        (record(shipped_policy(env, "medium"), HAY, spec, seed=seed), "medium"),
        (record(RandomPolicy(spec), HAY, spec, seed=seed), "random"),
    ]
    code = np.concatenate([np.full(len(part), ORIGINS.index(name), np.int8) for part, name in parts])
    pile = _join([part for part, _ in parts])
    return Demonstrations(expert.take(slice(first)), replace(pile, origin=Origin(code, ORIGINS)))


def ladder(env: str, seed: int, episodes: int = 5) -> Demonstrations:
    """One expert episode, and episodes of policies that are further and further from it."""
    spec, rng = environments.resolve(env), np.random.default_rng(seed)
    expert = record(shipped_policy(env, "expert"), 1, spec, seed=seed)
    parts = []
    for level in ("expert", "medium"):
        policy = disturb(shipped_policy(env, level), np.linspace(0, DISTURBED, RUNGS), rng)
        seeds = episode_seeds(RUNGS * episodes, f"ladder of {env}", seed)
        jobs = [Job(index % RUNGS, episode_seed) for index, episode_seed in enumerate(seeds)]
        parts.append(as_dataset(rollout(policy, spec, jobs, record=True), spec, {}))
    return Demonstrations(expert, _join(parts))


def disturb(policy: Policy, amounts: np.ndarray, rng: np.random.Generator) -> Policy:
    """A member for each amount: every kernel with noise of that many of its own deviations."""
    many = policy.members([0] * len(amounts))
    layers = []
    for kernel, bias in many.layers:
        noise = rng.standard_normal(kernel.shape) * amounts[:, None, None] * kernel[0].std()
        layers.append(Layer((kernel + noise).astype(np.float32), bias))
    return replace(many, layers=tuple(layers))


def _join(datasets: Sequence[Dataset]) -> Dataset:
    transitions = Transitions(*map(np.concatenate, zip(*(each.transitions for each in datasets), strict=True)))
    return Dataset(transitions, np.concatenate([each.timeout for each in datasets]), datasets[0].environment)


JUDGES = {"noisy-expert": separation, "haystack": precision, "full-replay": correlation, "ladder": correlation}


def make_data(measure: str, env: str, seed: int, replay: str | None) -> Demonstrations:
    match measure:
        case "haystack":
            return haystack(env, seed)
        case "ladder":
            return ladder(env, seed)
        case "full-replay":
            return make_task(f"{env}/full-replay", seed, replay=Path(replay or "", env))
        case _:
            return make_task(f"{env}/{measure}", seed)


def measure_scorer(measure: str, env: str, seed: int, scorer: str, data: Demonstrations) -> Row:
    assert data.supplementary is not None
    began = time.perf_counter()
    scored = score(data.expert, data.supplementary, scorer=scorer, seed=seed)
    seconds = time.perf_counter() - began
    return {
        "measure": measure,
        "env": env,
        "seed": seed,
        "scorer": scorer,
        "value": JUDGES[measure](scored, data.supplementary),
        "target": target(measure, env),
        "rows": len(data.supplementary),
        "episodes": data.supplementary.num_episodes,
        "held_out_auc": scored.summary["held_out"]["auc"],
        "kept": scored.summary["kept"],
        "seconds": round(seconds, 1),
    }


def bench_scores(
    scorers: Sequence[str] | None = None,
    envs: Sequence[str] | None = None,
    seeds: int = 3,
    replay: str | None = None,
) -> tuple[Row, str]:
    """Every scorer on every pile. With `replay`, a folder that holds what `collect` wrote for each environment."""
    scorers, envs = list(scorers or SCORERS), list(envs or environments.SHORT_NAMES)
    for name in scorers:
        if name not in SCORERS:
            raise InputError(f"bench: unknown scorer {name!r}; there are {', '.join(SCORERS)}")
    piles = [("noisy-expert", env) for env in envs]
    piles += [("full-replay" if replay else "ladder", env) for env in envs]
    piles += [("haystack", env) for env in envs if env == "hopper"]  # the others' 2,000 episodes take minutes to record
    rows = []
    for measure, env in piles:
        for seed in range(seeds if measure == "noisy-expert" else 1):
            chosen = [name for name in scorers if seed == 0 or name in REPEATED]
            data = make_data(measure, env, seed, replay) if chosen else None
            rows += [measure_scorer(measure, env, seed, name, data) for name in chosen if data is not None]
    answer = {"results": rows, "default": DEFAULT, **provenance()}
    return answer, table(rows)


def table(rows: Sequence[Row]) -> str:
    """A line per scorer in Markdown: means over seeds, those below the target marked with an asterisk."""
    columns = list(dict.fromkeys((row["measure"], row["env"]) for row in rows))
    lines = [
        "| scorer | " + " | ".join(f"{measure} {env}" for measure, env in columns) + " | seconds |",
        "| --- |" + " --- |" * (len(columns) + 1),
        "| *target* | " + " | ".join(f"*{target(*column):g}*" for column in columns) + " | |",
    ]
    for scorer in dict.fromkeys(row["scorer"] for row in rows):
        own = [row for row in rows if row["scorer"] == scorer]
        cells = []
        for column in columns:
            values = [row["value"] for row in own if (row["measure"], row["env"]) == column]
            missed = "\\*" if values and np.mean(values) < target(*column) else ""
            cells.append(f"{np.mean(values):.4f}{missed}" if values else "")
        seconds = np.median([row["seconds"] for row in own])
        lines.append(f"| {scorer} | " + " | ".join(cells) + f" | {seconds:.0f} |")
    return "\n".join(lines)
