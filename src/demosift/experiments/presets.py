"""The grids by name: the paper's tables and figures, and what a user may change about them.

`comparisons` has the grids of the wider field.
"""

import dataclasses
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demosift.algorithms import REGISTRY, About, facts, make_algorithm
from demosift.experiments.cells import Cell, DataKey, Schedule, TrainedOn
from demosift.learning.about import ROBUST
from demosift.learning.algorithm import check_expert_actions, setting_fields
from demosift.learning.cloning import RECIPES
from demosift.learning.fit import check_setting, with_horizon
from demosift.learning.members import Precision, check_precision
from demosift.ranges import NOT_NEGATIVE, POOL, SEED, check_once
from demosift.simulation import environments
from demosift.tasks.recipes import REPLAYED
from demosift.types import InputError

ORACLE = "oracle"  # BC on all truly clean rows: a row of a table, not an algorithm
ABOUT_ORACLE = About(
    "Oracle", "clones all truly clean samples: the ceiling, not a contender", colour=6, contender=False
)
IN_THE_PAPER = ("bc", "demodice", "dwbc", "nbcu", "wbcu")
METHODS: Mapping[str, tuple[str, ...]] = {"noisy-expert": (*IN_THE_PAPER, ORACLE), "full-replay": IN_THE_PAPER}
PENALTIES = (0.0, 1.0, 10.0)
GRIDS = ("noisy-expert", "full-replay", "gradient-penalty")
COMPARISONS = ("successors", "d4rl")
PRESETS = (*GRIDS, "coverage", "sac-curves", "all", *COMPARISONS)

ITERATIONS = 1_000_000
EVALUATE_EVERY = 10_000


@dataclass(frozen=True)
class Request:
    """What to run. The defaults are the paper's: four environments, five seeds, a million iterations."""

    envs: tuple[str, ...] = environments.IN_THE_PAPER
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    iterations: int = ITERATIONS
    schedule: Schedule = field(default_factory=Schedule)
    methods: tuple[str, ...] | None = None  # None: the preset's
    penalties: tuple[float, ...] = PENALTIES  # none: each method's own
    settings: Mapping[str, Any] = field(default_factory=dict)  # FIELD or ALGORITHM.FIELD -> value
    pool: int = 20
    disjoint: bool = False
    replay: str | None = None
    precision: Precision = "float32"
    ensemble: int | None = None  # None: the method's own
    expert_actions: bool = True  # False: of the expert, only observations are known
    experts: int | None = None  # expert trajectories; None: as is usual for the recipe
    piles: tuple[str, ...] | None = None  # of `successors` and `d4rl`; None: all
    recipes: tuple[str, ...] = ("paper", "robust")  # of `successors`: how each method clones
    files: str | None = None  # a folder of D4RL's files, for `d4rl`

    def __post_init__(self) -> None:
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(map(own_row, self.methods)))


def row_facts() -> dict[str, About]:
    """How every method that a result may name is shown: the algorithms, last the oracle, each with its robust row."""
    shown: dict[str, About] = {}
    for name, about in {**facts(), ORACLE: ABOUT_ORACLE}.items():
        shown |= {name: about, name + ROBUST: robust(about)}
    return shown


def robust(about: About) -> About:
    """How a method's robust row is shown."""
    networks = REGISTRY["sift"].about.ensemble
    return dataclasses.replace(about, name=f"{about.name}, robust cloner", ensemble=networks, penalised=False)


def default_schedule(iterations: int, every: int | None, episodes: int, early_episodes: int) -> Schedule:
    """Evaluate every 10,000 iterations, or a shorter run four times."""
    if every is None:
        every = max(1, min(EVALUATE_EVERY, iterations // 4))
        while iterations % every:
            every -= 1
    return Schedule(every=every, episodes=episodes, early_episodes=early_episodes)


def grids(preset: str, request: Request) -> dict[str, list[Cell]]:
    """The grids of a preset by name; none for a preset that trains nothing."""
    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}: there are {', '.join(PRESETS)}")
    check(request)
    named = {recipe: table(recipe, request) for recipe in METHODS if preset in (recipe, "all")}
    if preset == "gradient-penalty":
        penalised = tuple(name for name in IN_THE_PAPER if REGISTRY[name].about.penalised)
        only = dataclasses.replace(request, methods=request.methods or penalised)
        recipes = METHODS if request.replay else ("noisy-expert",)
        named[preset] = [cell for recipe in recipes for cell in table(recipe, only)]
    return named


def check(request: Request) -> None:
    check_precision(request.precision)
    request.schedule.check(request.iterations)
    for env in request.envs:
        if env not in environments.SHORT_NAMES:
            raise InputError(f"unknown environment {env!r}: the tasks are in {', '.join(environments.SHORT_NAMES)}")
    for method in request.methods or ():
        if (plain := method.removesuffix(ROBUST)) not in REGISTRY and plain != ORACLE:
            raise InputError(f"unknown method {method!r}: there are {', '.join([*REGISTRY, ORACLE])}")
    if not request.envs or not request.seeds:
        raise InputError("reproduce: needs environments and seeds")
    if request.experts is not None:
        POOL.check("reproduce: expert trajectories", request.experts)
    for name in ("envs", "seeds", "methods", "penalties", "piles"):
        check_once(f"reproduce: {name}", getattr(request, name) or ())
    SEED.check("reproduce: seeds", *request.seeds)
    NOT_NEGATIVE.check("reproduce: penalties", *request.penalties)
    POOL.check("reproduce: pool", request.pool)


def table(recipe: str, request: Request) -> list[Cell]:
    """The cells of one of the paper's two tables, environment by environment, row by row."""
    if recipe == "full-replay" and request.replay is None:
        raise InputError(
            "full-replay needs a replay folder (--replay DIR); make one with: "
            f"demosift collect {' '.join(request.envs)} --out DIR"
        )
    methods = request.methods or METHODS[recipe]
    if recipe == "full-replay" and any(method.removesuffix(ROBUST) == ORACLE for method in methods):
        raise InputError("full-replay has no oracle: nobody knows which rows of a replay are clean")
    pairs = itertools.product(request.envs, methods)
    return [cell for env, method in pairs for cell in cells_of(env, recipe, method, request)]


def cells_of(env: str, recipe: str, method: str, request: Request) -> list[Cell]:
    """The cells of one method on one task: its rows, each with all seeds."""
    cells = []
    trained_on: TrainedOn = "clean" if method.removesuffix(ROBUST) == ORACLE else "task"
    replay = replay_folder(recipe, env, request)
    check_expert_actions(REGISTRY[algorithm_of(method)], request.expert_actions)
    for settings, seed in itertools.product(rows(method, request), request.seeds):
        source = (request.pool, request.disjoint, replay, request.expert_actions)
        data = DataKey(env, recipe, seed, trained_on, *source, experts=request.experts, files=request.files)
        algorithm = with_horizon(make_algorithm(algorithm_of(method), settings), request.iterations)
        check_setting(algorithm, discrete=False)
        cells.append(
            Cell(
                data,
                method,
                algorithm,
                request.iterations,
                request.schedule,
                precision=request.precision,
                ensemble=ensemble_of(method) if request.ensemble is None else request.ensemble,
            )
        )
    return cells


def algorithm_of(method: str) -> str:
    plain = method.removesuffix(ROBUST)
    return "bc" if plain == ORACLE else plain


def own_row(method: str) -> str:
    """The row's name with the method's own, where it is given by another."""
    plain = method.removesuffix(ROBUST)
    return REGISTRY.own_name(plain) + method[len(plain) :]


def ensemble_of(method: str) -> int:
    """A robust row has as many networks as sift, so that it differs from sift in the weights alone."""
    return REGISTRY["sift" if method.endswith(ROBUST) else algorithm_of(method)].about.ensemble


def replay_folder(recipe: str, env: str, request: Request) -> str | None:
    """`collect` writes a folder for each of several environments, and a single one into the folder itself."""
    if recipe not in REPLAYED or request.replay is None:
        return None
    own = Path(request.replay, env)
    return str(own if own.is_dir() else Path(request.replay))


def rows(method: str, request: Request) -> list[dict[str, Any]]:
    """The settings of a method's rows: one row for each penalty where the paper has them, all with the user's own."""
    name = algorithm_of(method)
    given = {}
    for key, value in {**(RECIPES["robust"] if method.endswith(ROBUST) else {}), **request.settings}.items():
        algorithm, _, setting = key.rpartition(".")
        if algorithm == name or (not algorithm and setting in field_types(name)):
            given[setting] = value
    penalties: list[dict[str, Any]] = [{}]
    if method in REGISTRY and REGISTRY[method].about.penalised and request.penalties:
        penalties = [{"gradient_penalty": value} for value in request.penalties]
    return [{**penalty, **given} for penalty in penalties]


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Read `NAME=VALUE`, for every algorithm that has the setting, and `ALGORITHM.NAME=VALUE`, for one."""
    parsed = {}
    for text in texts:
        key, separator, value = text.partition("=")
        algorithm, _, setting = key.rpartition(".")
        if algorithm and algorithm not in REGISTRY:
            raise InputError(f"--set {text}: unknown algorithm {algorithm!r}; there are {', '.join(REGISTRY)}")
        key = f"{REGISTRY.own_name(algorithm)}.{setting}" if algorithm else key
        kinds = [
            types[setting]
            for name in ([algorithm] if algorithm else REGISTRY.loaded())
            if setting in (types := field_types(name))
        ]
        if not separator or not kinds:
            raise InputError(f"--set {text}: write NAME=VALUE or ALGORITHM.NAME=VALUE, NAME a setting of an algorithm")
        try:
            parsed[key] = read_value(kinds[0], value)
        except ValueError:
            raise InputError(f"--set {text}: {value!r} is not a value for {setting}") from None
    return parsed


def read_value(kind: Any, text: str) -> Any:
    if kind == float | None:
        kind = float
    if typing.get_origin(kind) is tuple:
        number = typing.get_args(kind)[0]
        return tuple(number(part) for part in text.split(",") if part)
    if typing.get_origin(kind) is typing.Literal:
        if text not in typing.get_args(kind):
            raise ValueError
        return text
    value = kind(text)
    if kind is str:
        return value
    if not math.isfinite(value):
        raise ValueError
    return value


def field_types(algorithm: str) -> dict[str, Any]:
    cls = REGISTRY[algorithm]
    return {each.name: each.type for each in setting_fields(cls) if each.metadata.get("flag", True)}
