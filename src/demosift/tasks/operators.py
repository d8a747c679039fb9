"""A pile by operators of mixed quality, in an environment that comes with a program, and what each row truly is.

An episode that succeeds ends soon after; one that does not is cut to the length of some clean episode, since whoever
fails gives up at some time. So length alone tells little.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, get_args

import numpy as np

from demosift.policy import Operator, ScriptedPolicy
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.simulation.scripted.operators import idle_steps
from demosift.simulation.simulate import Job, Rollouts
from demosift.simulation.workers import Episode
from demosift.types import Dataset, EnvironmentSpec, InputError, Transitions

OPERATORS: tuple[Operator, ...] = get_args(Operator)
# How an operator's episode should end, to be an example of its kind. The noisy one's may end either way.
SUCCEEDS: Mapping[Operator, bool] = {"expert": True, "second": True, "wrong-goal": False, "idle": True}

NUM_EXPERT = 5
SECOND, BAD = 0.1, 0.3
BAD_KINDS = ("noisy", "early-stop", "wrong-goal", "idle")
STOPS = (0.3, 0.7)  # which share of the way an early stop comes at
ROUNDS = 20


class Rows(NamedTuple):
    """Rows of one origin, in a row; an episode with pauses has several."""

    origin: str
    dataset: Dataset


def shares(num_episodes: int) -> dict[str, int]:
    """Episodes of each kind in a pile of that many."""
    bad = round(BAD * num_episodes)
    counts = {kind: bad // len(BAD_KINDS) + (place < bad % len(BAD_KINDS)) for place, kind in enumerate(BAD_KINDS)}
    second = round(SECOND * num_episodes)
    return {"clean": num_episodes - second - bad, "second": second, **counts}


def record_mixture(
    spec: EnvironmentSpec, num_episodes: int, rng: np.random.Generator, num_expert: int = NUM_EXPERT
) -> tuple[list[Rows], list[Rows]]:
    """The expert's episodes and the pile's, the latter in random order."""
    counts = shares(num_episodes)
    if counts["clean"] < 1:
        raise InputError(f"a mixed pile of {num_episodes} episodes: it needs at least one")
    clean = num_expert + counts["clean"]
    counts["expert"] = clean + counts["early-stop"]
    recorded = _record(spec, {operator: counts[operator] for operator in OPERATORS}, rng)
    lengths = [episode.length for episode in recorded["expert"][:clean]]
    pile = [
        *([Rows("clean", _whole(episode, spec))] for episode in recorded["expert"][num_expert:clean]),
        *(
            [Rows("early-stop", _first(episode, max(1, round(rng.uniform(*STOPS) * episode.length)), spec))]
            for episode in recorded["expert"][clean:]
        ),
        *([Rows("second", _whole(episode, spec))] for episode in recorded["second"]),
        *(
            [Rows(kind, _whole(episode, spec) if episode.success else _first(episode, rng.choice(lengths), spec))]
            for kind in ("noisy", "wrong-goal")
            for episode in recorded[kind]
        ),
        *(_phases(episode, spec) for episode in recorded["idle"]),
    ]
    experts = [Rows("expert", _whole(episode, spec)) for episode in recorded["expert"][:num_expert]]
    return experts, [rows for place in rng.permutation(len(pile)) for rows in pile[place]]


def _record(
    spec: EnvironmentSpec, wanted: Mapping[Operator, int], rng: np.random.Generator
) -> dict[Operator, list[Episode]]:
    """That many episodes of each operator, of those that end as they should."""
    policy = ScriptedPolicy(spec, OPERATORS)
    found: dict[Operator, list[Episode]] = {operator: [] for operator in OPERATORS}
    with Rollouts() as pool:
        for _ in range(ROUNDS):
            missing = {operator: wanted[operator] - len(found[operator]) for operator in OPERATORS}
            if not any(missing.values()):
                return found
            jobs = [
                Job(member, int(seed))
                for member, operator in enumerate(OPERATORS)
                for seed in rng.integers(2**31, size=missing[operator])
            ]
            for episode in pool.submit(policy, spec, jobs, record=True).result():
                operator = OPERATORS[episode.member]
                if SUCCEEDS.get(operator, episode.success) == episode.success:
                    found[operator].append(episode)
    short = next(operator for operator in OPERATORS if len(found[operator]) < wanted[operator])
    raise InputError(f"{spec.id}: too few episodes of the operator {short!r} end as they should")


def _whole(episode: Episode, spec: EnvironmentSpec) -> Dataset:
    return _first(episode, episode.length, spec)


def _first(episode: Episode, num_rows: int, spec: EnvironmentSpec) -> Dataset:
    """The first rows of an episode, which end it."""
    assert episode.transitions is not None
    transitions = Transitions(*(array[:num_rows] for array in episode.transitions))
    timeout = np.zeros(len(transitions.reward), bool)
    timeout[-1] = not transitions.terminal[-1]
    return Dataset(transitions, timeout, spec)


def _phases(episode: Episode, spec: EnvironmentSpec) -> Sequence[Rows]:
    """An episode with pauses, cut where they begin and end."""
    whole = _whole(episode, spec)
    idle = idle_steps(episode.seed, SCRIPTED[spec.id].pause)[: len(whole)]
    idle = np.concatenate([idle, np.zeros(len(whole) - len(idle), bool)])
    edges = [0, *(np.flatnonzero(np.diff(idle)) + 1).tolist(), len(whole)]
    return [Rows("idle" if idle[a] else "interrupted", whole.take(slice(a, b))) for a, b in pairwise(edges)]
