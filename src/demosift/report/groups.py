"""Which members belong together: the seeds of one method and setting are a series, those of one environment a panel."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from demosift.results.reading import Member, Results, Run, is_number, label

LAST_EVALUATIONS = 10  # the paper's number is the mean of the last ten evaluations

Scale = Literal["score", "return"]


@dataclass(frozen=True)
class Method:
    name: str
    idea: str
    colour: int


METHODS: Mapping[str, Method] = {
    "bc": Method("BC", "clones the expert's data only", 0),
    "nbcu": Method("NBCU", "clones the whole union, every sample alike", 1),
    "wbcu": Method("WBCU", "clones the union, weighted by the discriminator", 2),
    "wbcu-two-stage": Method("Two-stage WBCU", "clones the union, weighted by a discriminator trained first", 3),
    "demodice": Method("DemoDICE", "clones the union, weighted by a learned advantage", 4),
    "dwbc": Method("DWBC", "clones with the discriminator's output as the weight", 5),
    "oracle": Method("Oracle", "clones all truly clean samples: the ceiling, not a contender", 6),
}
COLOURS = 8


@dataclass(frozen=True)
class Series:
    """The seeds of one method and setting on one environment."""

    method: str
    identity: Mapping[str, Any]
    members: tuple[Member, ...]
    setting: str = ""  # the part of the identity that tells this series from others of its method
    variant: int = 0  # its place among them

    @property
    def name(self) -> str:
        return METHODS[self.method].name if self.method in METHODS else printable(self.method)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.setting})" if self.setting else self.name

    @property
    def idea(self) -> str:
        return METHODS[self.method].idea if self.method in METHODS else ""

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
        """The number reported of each seed: the mean of its last evaluations, never its best."""
        return self.measured(scale)[:, -self.num_averaged(last) :].mean(axis=1)

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


def group(results: Results) -> tuple[list[Panel], list[str]]:
    """The panels, and a line for every member that was left out because it repeats another."""
    return group_runs(results.every_run)


def group_runs(runs: Sequence[Run]) -> tuple[list[Panel], list[str]]:
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
        series = [Series(*identities[key], tuple(of_key)) for key, of_key in keys.items()]
        scale: Scale = "return" if any(one.scores is None for one in series) else "score"
        name, task = names[panel]
        panels.append(Panel(name, scale, tuple(tell_apart(series)), task))
    return sorted(panels, key=lambda panel: panel.name), repeats


def identify(config: Mapping[str, Any], member: Member) -> dict[str, Any]:
    """What makes two members seeds of the same thing.

    A task's name stands for its data, which may be drawn anew for each seed; without one, data is known by fingerprint.
    """
    settings = {key: value for key, value in member.settings.items() if key != "seed"}
    data = None if config.get("task") else fingerprint(config.get("data"))
    schedule = [len(member.iteration), fingerprint(member.iteration.tolist())]
    rest = {key: config.get(key) for key in ("iterations", "normalise")}
    rest["precision"] = config.get("precision") or "float32"
    return {**settings, **rest, "data": data, "evaluations": schedule}


def tell_apart(series: Sequence[Series]) -> list[Series]:
    """Order the series, and name the settings in which those of one method differ."""
    told = []
    for method in sorted({one.method for one in series}, key=method_order):
        own = [one for one in series if one.method == method]
        keys = sorted({key for one in own for key in one.identity if key != "evaluations"})
        varying = [key for key in keys if len({canonical(one.identity.get(key)) for one in own}) > 1]
        own.sort(key=lambda one: [sortable(one.identity.get(key)) for key in varying])
        for variant, one in enumerate(own):
            parts = [f"{key.replace('_', ' ')} {brief(one.identity.get(key))}" for key in varying]
            told.append(replace(one, setting=printable(", ".join(parts)), variant=variant))
    return told


def method_order(method: str) -> tuple[int, str]:
    known = list(METHODS)
    return (known.index(method) if method in METHODS else len(known), method)


def colours(panels: Sequence[Panel]) -> dict[str, int]:
    """A colour for every method, the same wherever it appears; unknown methods take those that are left, in order."""
    methods = {one.method for panel in panels for one in panel.series}
    unknown = sorted(methods - set(METHODS))
    first = len(METHODS)
    other = {method: first + index % (COLOURS - first) for index, method in enumerate(unknown)}
    return {name: method.colour for name, method in METHODS.items()} | other


def environment_of(config: Mapping[str, Any]) -> Any:
    environment = config.get("environment")
    return environment and {"id": environment["id"], "kwargs": environment.get("kwargs")}


def panel_name(config: Mapping[str, Any]) -> str:
    environment = config.get("environment")
    parts = [config.get("task"), environment and environment["id"]]
    return printable(" · ".join(part for part in parts if part)) or "environment not recorded"


def data_of(config: Mapping[str, Any], index: int) -> Any:
    """The member's own data: one set for all members, or one a seed, in turn."""
    data = config.get("data")
    return data[index % len(data)] if isinstance(data, list) and data else data


def fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def sortable(value: Any) -> tuple[bool, float, str]:
    return (not is_number(value), float(value) if is_number(value) else 0.0, canonical(value))


def brief(value: Any) -> str:
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else canonical(value)


def printable(text: str) -> str:
    """Without control, direction and surrogate characters, which can rewrite a terminal's screen or a page's order."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
