"""The grids of the wider field: its methods side by side on many piles, and on a user's D4RL files.

`successors` has every method as published and with the robust cloner, to tell what is due to the weights and what to
the cloner. A pile is a recipe, perhaps with five expert trajectories (`medium-expert:5`) or an expert of whom nobody
knows the actions (`haystack:observations`). What cannot be run is told in a line, never left out in silence.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from demosift.algorithms import REGISTRY
from demosift.experiments import d4rl
from demosift.experiments.cells import Cell
from demosift.experiments.presets import ORACLE, Request, algorithm_of, cells_of, check
from demosift.learning.about import ROBUST
from demosift.report.anchors import anchored_methods
from demosift.tasks.recipes import RECIPES
from demosift.types import InputError

METHODS = (
    *("bc", "nbcu", "wbcu", "demodice", "dwbc", "sift"),
    *("smodice", "lobsdice", "ilid", "tailo", "seabo", "otr"),
    ORACLE,
)
PILES = (
    *("noisy-expert", "full-replay", "medium-expert", "random-expert", "haystack", "no-expert", "missing-steps"),
    *("medium-expert:5", "medium-expert:observations", "haystack:observations"),
)
OBSERVATIONS = "observations"
WITHOUT_CLEAN = ("full-replay", "no-expert")  # piles in which no row is known to be the expert's


class Pile(NamedTuple):
    recipe: str
    experts: int | None
    expert_actions: bool


class Comparison(NamedTuple):
    grids: dict[str, list[Cell]]
    left_out: list[str]  # a line for everything that was asked for, or is usual, and is not run


def comparison(preset: str, request: Request) -> Comparison:
    """The cells of `successors` or `d4rl`."""
    check(request)
    return successors(request) if preset == "successors" else on_d4rl(request)


def parse_pile(text: str) -> Pile:
    recipe, *options = text.split(":")
    known = [name for name in RECIPES if name != "mixed"]
    experts, expert_actions = None, True
    for option in options:
        if option == OBSERVATIONS and expert_actions:
            expert_actions = False
        elif option.isdecimal() and int(option) > 0 and experts is None:
            experts = int(option)
        else:
            raise InputError(
                f"pile {text!r}: write RECIPE, RECIPE:5 for five expert trajectories, RECIPE:{OBSERVATIONS}"
            )
    if recipe not in known:
        raise InputError(f"unknown pile {text!r}: there are {', '.join(known)}")
    return Pile(recipe, experts, expert_actions)


def successors(request: Request) -> Comparison:
    left_out: list[str] = []
    names = list(request.piles or PILES)
    if request.piles is None and request.replay is None:
        names.remove("full-replay")
        left_out.append("full-replay: needs a folder that collect wrote (--replay DIR)")
    elif request.replay is None and any(parse_pile(name).recipe == "full-replay" for name in names):
        raise InputError(
            "full-replay needs a replay folder (--replay DIR); make one with: "
            f"demosift collect {' '.join(request.envs)} --out DIR"
        )
    rows = rows_of(request, METHODS, left_out)
    cells: list[Cell] = []
    for name in names:
        pile = parse_pile(name)
        known = pile.expert_actions and request.expert_actions
        own = dataclasses.replace(request, expert_actions=known, experts=pile.experts or request.experts)
        fit, unfit = sort_out(rows, pile.recipe, known)
        left_out += [f"{name}: {reason}: {', '.join(methods)}" for reason, methods in unfit.items()]
        pairs = itertools.product(request.envs, fit)
        cells += [cell for env, method in pairs for cell in cells_of(env, pile.recipe, method, own)]
    return finished("successors", cells, left_out)


def on_d4rl(request: Request) -> Comparison:
    if request.files is None:
        raise InputError("d4rl needs a folder with D4RL's files, such as hopper_medium_expert-v2.hdf5 (--data DIR)")
    folder, left_out = Path(request.files), []
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    for env in request.envs:
        if env not in d4rl.ENVS:
            raise InputError(f"d4rl: {env}: the files are those of {', '.join(d4rl.ENVS)}")
    for dataset in request.piles or ():
        if dataset not in d4rl.KNOWN:
            raise InputError(f"d4rl: unknown dataset {dataset!r}: there are {', '.join(d4rl.KNOWN)}")
    rows = rows_of(dataclasses.replace(request, recipes=("paper",)), anchored_methods(), left_out)
    if any(row.removesuffix(ROBUST) == ORACLE for row in rows):
        raise InputError("d4rl has no oracle: nobody knows which rows of a file are clean")
    cells: list[Cell] = []
    fit, unfit = sort_out(rows, "", request.expert_actions)
    left_out += [f"{reason}: {', '.join(methods)}" for reason, methods in unfit.items()]
    for env, dataset in itertools.product(request.envs, request.piles or d4rl.DATASETS):
        name = d4rl.file_name(env, dataset)
        if not (folder / name).is_file():
            left_out.append(f"{name}: not in {folder}")
            continue
        cells += [cell for method in fit for cell in cells_of(env, d4rl.RECIPE + dataset, method, request)]
    return finished("d4rl", cells, left_out)


def rows_of(request: Request, usual: Sequence[str], left_out: list[str]) -> list[str]:
    """The rows by name: each method as published and with the robust cloner, or as `--recipe` and `--methods` say."""
    if request.methods is None:
        missing = [method for method in usual if method not in REGISTRY and method != ORACLE]
        if missing:
            left_out.append(f"not in this installation: {', '.join(missing)}")
        usual = [method for method in usual if method not in missing]
    rows = []
    for method in request.methods or usual:
        if method.endswith(ROBUST):
            rows.append(method)
        else:
            rows += [method + (ROBUST if recipe == "robust" else "") for recipe in request.recipes]
    same = [row for row in rows if row == f"sift{ROBUST}"]
    if same:
        left_out.append("sift clones robustly as published: its row stands for both")
        rows = ["sift" if row in same else row for row in rows]
    return list(dict.fromkeys(rows))


def sort_out(rows: Iterable[str], recipe: str, expert_actions: bool) -> tuple[list[str], dict[str, list[str]]]:
    """The rows that can be run on a pile, and the others by reason."""
    fit: list[str] = []
    unfit: dict[str, list[str]] = {}
    for row in rows:
        if not expert_actions and REGISTRY[algorithm_of(row)].needs_expert_actions:
            unfit.setdefault("left out, for they need the expert's actions", []).append(row)
        elif row.removesuffix(ROBUST) == ORACLE and recipe in WITHOUT_CLEAN:
            unfit.setdefault("left out, for no row is known to be the expert's", []).append(row)
        else:
            fit.append(row)
    return fit, unfit


def finished(name: str, cells: list[Cell], left_out: list[str]) -> Comparison:
    if not cells:
        raise InputError(f"{name}: nothing to run ({'; '.join(left_out)})")
    return Comparison({name: cells}, left_out)
