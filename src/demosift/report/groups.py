"""Which members belong together: the seeds of one method and setting are a series, those of one environment a panel."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from demosift.errors import printable
from demosift.files import canonical
from demosift.learning.about import About
from demosift.results.measured import MeasuredRun, Member, is_number, label

LAST_EVALUATIONS = 10  # the paper's number is the mean of the last ten evaluations

Scale = Literal["score", "return"]
Methods = Mapping[str, About]
"""What is known of methods, by name, in the order in which they are shown. The report's callers pass it in, because the
methods themselves need JAX."""

COLOURS = 16
GIVEN = {"weight_sha256": "weights", "bad": "bad data"}  # by the key in the description of a run's data


@dataclass(frozen=True)
class Series:
    """The seeds of one method and setting on one environment."""

    method: str
    identity: Mapping[str, Any]
    members: tuple[Member, ...]
    about: About
    setting: str = ""  # the part of the identity in which the series of a method differ
    variant: int = 0  # its place among those

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def title(self) -> str:
        return f"{self.name} ({self.setting})" if self.setting else self.name

    @cached_property
    def returns(self) -> Float[np.ndarray, "seeds evaluations"]:
        return np.stack([member.returns for member in self.members])

    @cached_property
    def scores(self) -> Float[np.ndarray, "seeds evaluations"] | None:
        scores = [member.score for member in self.members]
        return None if any(score is None for score in scores) else np.stack(scores)  # type: ignore[arg-type]

    def measured(self, scale: Scale) -> Float[np.ndarray, "seeds evaluations"]:
        if scale == "return":
            return self.returns
        assert self.scores is not None
        return self.scores

    def final(self, scale: Scale, last: int = LAST_EVALUATIONS) -> Float[np.ndarray, "seeds"]:
        """The number reported for each seed: the mean of its last evaluations, never its best."""
        return self.measured(scale)[:, -self.num_averaged(last) :].mean(axis=1)

    @property
    def last_iteration(self) -> int:
        return int(self.members[0].iteration[-1])

    def num_averaged(self, last: int = LAST_EVALUATIONS) -> int:
        return num_averaged(self.returns.shape[1], last)


@dataclass(frozen=True)
class Panel:
    """All series of one environment and task, on the scale that all of them have."""

    name: str
    scale: Scale
    series: tuple[Series, ...]
    task: str | None = None  # ENV/RECIPE

    @property
    def recipe(self) -> str | None:
        return self.task.partition("/")[2] if self.task else None


def num_averaged(evaluations: int, last: int = LAST_EVALUATIONS) -> int:
    """How many evaluations the reported number averages: ten, but never any of the first half of training."""
    return max(1, min(last, evaluations // 2))


def group(runs: Sequence[MeasuredRun], methods: Methods) -> tuple[list[Panel], list[str]]:
    """The panels, and a line for every member that was left out because it repeats another."""
    members: dict[str, dict[str, list[Member]]] = {}
    identities: dict[str, tuple[str, Mapping[str, Any]]] = {}
    names: dict[str, tuple[str, str | None]] = {}
    seen: dict[str, str] = {}
    repeats = []
    for run in runs:
        if not run.evaluated:
            continue
        panel = canonical([environment_of(run.config), run.config.get("task")])
        names[panel] = (panel_name(run.config), run.config.get("task"))
        for index, member in enumerate(run.members):
            identity = identify(run.config, member)
            key = canonical([panel, identity])
            once = canonical([key, member.settings["seed"], data_of(run.config, index)])
            if once in seen:
                where, seed = label(run.name), member.settings["seed"]
                repeats.append(f"{where}: seed {seed} repeats {seen[once]} (same method, setting and data); left out")
                continue
            seen[once] = label(run.name)
            identities[key] = (str(member.settings["algorithm"]), identity)
            members.setdefault(panel, {}).setdefault(key, []).append(member)
    panels = []
    for panel, keys in members.items():
        series = []
        for key, of_key in keys.items():
            method, identity = identities[key]
            series.append(Series(method, identity, tuple(of_key), about(method, methods)))
        scale: Scale = "return" if any(one.scores is None for one in series) else "score"
        name, task = names[panel]
        panels.append(Panel(name, scale, tuple(tell_apart(series, methods)), task))
    return sorted(panels, key=lambda panel: panel.name), repeats


def identify(config: Mapping[str, Any], member: Member) -> dict[str, Any]:
    """What two members must share to be seeds of one series.

    A task's name stands for its data, which may be drawn anew for each seed; without one, data has a fingerprint. No
    name tells what was given beside them.
    """
    settings = {key: value for key, value in member.settings.items() if key != "seed"}
    data = None if config.get("task") else fingerprint(config.get("data"))
    schedule = [len(member.iteration), fingerprint(member.iteration.tolist())]
    rest = {key: config.get(key) for key in ("iterations", "normalise")}
    rest["precision"] = config.get("precision") or "float32"
    rest["expert_actions"] = "known" if config.get("expert_actions", True) else "unknown"
    rest["ensemble"] = config.get("ensemble", 1)
    rest |= {"held_out": config.get("held_out") or "none", "patience": config.get("patience") or "never"}
    rest["given"] = given_with(config.get("data"))
    return {**settings, **rest, "data": data, "evaluations": schedule}


def given_with(data: Any) -> str:
    """What training was given beside the two sets: whether, not which, for each draw of a task has its own."""
    described = data if isinstance(data, list) else [data]
    keys = {key for each in described if isinstance(each, dict) for key in each}
    return " and ".join(name for key, name in GIVEN.items() if key in keys) or "nothing"


def about(method: str, methods: Methods) -> About:
    """What is known of a method; an unknown one goes by its own name."""
    return methods.get(method) or About(printable(method))


def tell_apart(series: Sequence[Series], methods: Methods) -> list[Series]:
    """Order the series, and name the settings in which those of one method differ."""
    told = []
    known = {method: place for place, method in enumerate(methods)}
    for method in sorted({one.method for one in series}, key=lambda method: (known.get(method, len(known)), method)):
        own = [one for one in series if one.method == method]
        keys = sorted({key for one in own for key in one.identity if key != "evaluations"})
        varying = [key for key in keys if len({canonical(one.identity.get(key)) for one in own}) > 1]
        own.sort(key=lambda one: [sortable(one.identity.get(key)) for key in varying])
        for variant, one in enumerate(own):
            parts = [f"{key.replace('_', ' ')} {brief(one.identity.get(key))}" for key in varying]
            told.append(replace(one, setting=printable(", ".join(parts)), variant=variant))
    return told


def colours(used: Iterable[str], methods: Methods) -> dict[str, int]:
    """A colour for every method, the same wherever it appears; those without one take what is left, in order."""
    own = {name: each.colour for name, each in methods.items() if each.colour is not None}
    others = [*(name for name in methods if name not in own), *sorted(set(used) - set(methods))]
    left = [colour for colour in range(COLOURS) if colour not in own.values()] or range(COLOURS)
    return own | {name: left[place % len(left)] for place, name in enumerate(others)}


def environment_of(config: Mapping[str, Any]) -> Any:
    environment = config.get("environment")
    return environment and {"id": environment["id"], "kwargs": environment.get("kwargs")}


def panel_name(config: Mapping[str, Any]) -> str:
    environment = config.get("environment")
    parts = [config.get("task"), environment and environment["id"]]
    return printable(" · ".join(part for part in parts if part)) or "environment not recorded"


def data_of(config: Mapping[str, Any], index: int) -> Any:
    """The member's own data: one set for all members, or one for each seed in turn."""
    data = config.get("data")
    return data[index % len(data)] if isinstance(data, list) and data else data


def fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


def sortable(value: Any) -> tuple[bool, float, str]:
    return (not is_number(value), float(value) if is_number(value) else 0.0, canonical(value))


def brief(value: Any) -> str:
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
