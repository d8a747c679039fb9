"""Configuration files of `train`: TOML whose keys are the names of its flags, and `algorithm`.

Every run writes one, `run.toml`, from which it can be repeated. A relative path in a file is relative to the file's own
folder, so that data and runs can be moved together and read from anywhere. TOML because Python reads it by itself; a
YAML reader would be one more dependency. A file is data: nothing in it is imported or run.
"""

import argparse
import difflib
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demosift.cli.flags import not_empty, within
from demosift.cli.parsers import flags
from demosift.errors import InputError

if TYPE_CHECKING:
    from demosift.learning.algorithm import Algorithm

PATHS = ("expert", "supplementary", "bad", "scores", "replay", "out", "tensorboard")
LIST = "bad-episodes"  # numbers, or a file of them
OF_FILES = ("expert", "supplementary", "bad", LIST)
WHICH_DATA = ("task", *OF_FILES, "expert-observations", "scores", "actions")
WHICH_DATA += ("pool", "disjoint", "replay", "expert-trajectories")
# Not repeated: where it went, and what does not change a run. The recipe is told by the settings that it names.
UNTOLD = ("out", "resume", "json", "debug", "tensorboard", "wandb", "recipe")
COMMENT = (
    "What demosift train was asked to do. To repeat it: demosift train --from FOLDER_OF_THIS_FILE --out NEW_FOLDER"
)


@dataclass(frozen=True)
class Request:
    """What a file asks for, by the flags' names. `origin` is the folder of the run to repeat."""

    where: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str | None = None
    origin: str | None = None

    def set_defaults(self, parser: argparse.ArgumentParser) -> None:
        """Make the file's values the parser's defaults, so that flags of the command line win."""
        own = ("help", "config", "from")
        known = {k: action for k, action in flags(parser).items() if k not in own and not k.startswith("no-")}
        found = {}
        for name, value in self.values.items():
            if name not in known:
                raise InputError(f"{self.where}: unknown key {reprlib.repr(name)}{nearest(name, known)}")
            action = known[name]
            found[action.dest] = read_value(action, value, f"{self.where}: {name}")
            action.required = False
        parser.set_defaults(**found)

    def asks_for_data_of(self, options: argparse.Namespace) -> bool:
        """Whether the command line left the file's choice of data as it is."""
        names = (*WHICH_DATA, *(("seed", "seeds") if options.task else ()))  # a task is drawn anew for each seed
        # An earlier release told no flag that is off now.
        told = {name.replace("-", "_"): self.values.get(name) for name in names}
        return all((vars(options).get(name) or None) == (value or None) for name, value in told.items())


def read_request(arguments: Sequence[str]) -> Request:
    """What the file asks for that `--config` or `--from` names, if one does."""
    peek = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS, exit_on_error=False)
    for name in ("config", "from", "task", *OF_FILES, "recipe", "env"):
        peek.add_argument(f"--{name}", type=not_empty)
    peek.add_argument("--env-arg", dest="env-arg", nargs="+")
    try:
        given = {name.replace("_", "-"): value for name, value in vars(peek.parse_known_args(arguments)[0]).items()}
    except argparse.ArgumentError:  # the parser of all flags will say it
        return Request()
    config, origin = given.get("config"), given.get("from")
    if config is None and origin is None:
        return Request()
    if config is not None and origin is not None:
        raise InputError("train: give --config or --from, not both")
    from demosift.learning.cloning import RECIPES

    path = run_file(Path(origin)) if origin is not None else Path(str(config))
    values = read_file(path)
    if origin is not None and (own := [name for name in UNTOLD if name in values]):
        raise InputError(f"{path}: {own[0]}: a run does not say that; give --{own[0]} yourself")
    algorithm = values.pop("algorithm", None)
    if algorithm is not None:
        algorithm = check_algorithm(algorithm, str(path))
    # What the command line names, and what of the file it replaces.
    instead = {"task": OF_FILES, "expert": ("task",), "supplementary": ("task",)}
    instead |= {"bad": (LIST,), LIST: ("bad",), "env": ("env", "env-arg"), "env-arg": ("env-arg",)}
    instead["recipe"] = tuple(name.replace("_", "-") for recipe in RECIPES.values() for name in recipe)
    dropped = {other for name in given.keys() & instead.keys() for other in instead[name]}
    return Request(str(path), {k: v for k, v in values.items() if k not in dropped}, algorithm, origin)


def run_file(folder: Path) -> Path:
    from demosift.results.run import RunFolder

    run = RunFolder(folder)
    run.read_config()
    if not run.request.is_file():
        raise InputError(
            f"{folder}: has no {run.request.name}, so give its flags again; demosift train writes that file"
        )
    return run.request


def read_file(path: Path) -> dict[str, Any]:
    """The file's values, with paths as the command line would have them."""
    from demosift.files import read_toml

    values = read_toml(path)
    moved = {
        name: move(value, path.parent, Path()) for name in PATHS if isinstance(value := values.get(name), str) and value
    }
    listed = values.get(LIST)
    if isinstance(listed, str) and (path.parent / listed).is_file():
        moved[LIST] = move(listed, path.parent, Path())
    return {**values, **moved}


def check_algorithm(name: Any, where: str) -> str:
    """The algorithm's own name."""
    from demosift.registry import ALGORITHMS

    if not isinstance(name, str) or name not in ALGORITHMS:
        raise InputError(f"{where}: algorithm: must be one of {', '.join(ALGORITHMS)}, not {reprlib.repr(name)}")
    return ALGORITHMS.own_name(name)


def move(source: str, old: Path, new: Path) -> str:
    """A relative path that was written in one folder, as it is written in another. `minari:ID` names no path."""
    prefix, path, options = re.fullmatch(r"((?:\w{2,}:)?)(.*?)((?:::.*)?)", source, re.DOTALL).groups()  # type: ignore
    if prefix == "minari:" or os.path.isabs(path) or path.startswith("~"):
        return source
    return prefix + os.path.relpath(old / path, new) + options


def read_value(action: argparse.Action, value: Any, where: str) -> Any:
    """A value as the flag would have read it."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise InputError(f"{where}: must be true or false, not {reprlib.repr(value)}")
        return value
    if action.nargs not in ("+", "*"):
        return read_one(action, value, where)
    several = value if isinstance(value, list) else [value]
    if not several and action.nargs == "+":
        raise InputError(f"{where}: needs at least one value")
    return [read_one(action, each, where) for each in several]


def read_one(action: argparse.Action, value: Any, where: str) -> Any:
    kinds, name = (str, "text")
    if isinstance(action.type, within):
        kinds, name = (int, "a whole number") if action.type.allowed.whole else (int | float, "a number")
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"{where}: must be {name}, not {reprlib.repr(value)}")
    try:
        read = (action.type or not_empty)(str(value))  # type: ignore[operator]
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise InputError(f"{where}: {error}") from None
    if action.choices is not None and read not in action.choices:
        raise InputError(f"{where}: must be one of {', '.join(map(str, action.choices))}, not {reprlib.repr(value)}")
    return read


def nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name[:80].replace("_", "-").lower(), known, n=1, cutoff=0.5)
    return f"; the nearest is {close[0]!r}" if close else ""


def write_request(options: argparse.Namespace, settings: "Sequence[Algorithm]") -> None:
    """Write what was asked into the run's folder: every flag that can change the result, given or not."""
    from demosift.files import write_toml
    from demosift.learning.algorithm import member_fields, settings_by_name
    from demosift.results.run import RunFolder

    request = RunFolder(options.out).request
    hyper = settings_by_name(settings[0])
    if len(settings) > 1:  # of some there are several values
        hyper |= {
            name: given for name in member_fields(type(settings[0])) if len(given := vars(options).get(name, ())) > 1
        }
    internal = ("verb", "algorithm", "exit_code", "request", "config", "origin", *UNTOLD)
    others = {name: value for name, value in vars(options).items() if name not in internal and name not in hyper}
    told = {name: value for name, value in {**others, **hyper}.items() if value is not None}
    moved = {name: move(told[name], Path(), request.parent) for name in PATHS if name in told}
    named = {name.replace("_", "-"): value for name, value in {**told, **moved}.items()}
    write_toml(request, {"algorithm": options.algorithm, **named}, COMMENT)
