"""Facts that hold for every row: environment, action bounds, names of origins, attributes.

The native file keeps them as attributes. Other formats have no place for them, so they are JSON: a file of its own in a
folder, an attribute in a robomimic file. The libraries of those formats ignore it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from demosift.data.checks import one_line
from demosift.data.recording import Recording
from demosift.files import Unusable, mismatch, parse_json, read_json, write_json
from demosift.types import Bounds, Dataset, Origin

SIDECAR = "demosift.json"

_BOUND = (None, float, int, [(float, int)])
SCHEMA = {
    "env_id": (None, str),
    "env_kwargs?": dict,
    "action_low": _BOUND,
    "action_high": _BOUND,
    "num_actions": (None, int),
    "origin_names?": [str],
    "attributes?": dict,
}
MOST_ACTIONS = 1 << 20


@dataclass(frozen=True)
class Sidecar:
    environment_id: str | None = None
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bounds: Bounds | None = None
    num_actions: int | None = None
    origin_names: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Raises ValueError where the content is not what demosift writes."""
        num_actions, environment_id = content.get("num_actions"), content.get("env_id")
        if num_actions is not None and not (isinstance(num_actions, int | np.integer) and num_actions > 0):
            raise ValueError(f"num_actions: {num_actions!r} is not a positive integer")
        if num_actions is not None and num_actions > MOST_ACTIONS:
            raise ValueError(f"num_actions: {num_actions} is more than any environment has")
        low, high = content.get("action_low"), content.get("action_high")
        return cls(
            None if environment_id is None else str(environment_id),
            dict(content.get("env_kwargs", {})),
            None if low is None and high is None else Bounds.parse(low, high),
            None if num_actions is None else int(num_actions),
            tuple(map(str, content.get("origin_names", ()))),
            dict(content.get("attributes", {})),
        )

    def recording(
        self, source: str, code: np.ndarray | None = None, attributes: Mapping[str, Any] | None = None, /, **arrays: Any
    ) -> Recording:
        """Arrays of rows with these facts. Origin codes without names mean nothing and are left out."""
        return Recording(
            source=source,
            origin=Origin(code, self.origin_names) if code is not None and self.origin_names else None,
            environment_id=self.environment_id,
            environment_kwargs=self.environment_kwargs,
            bounds=self.bounds,
            num_actions=self.num_actions,
            attributes={**self.attributes, **(attributes or {})},
            **arrays,
        )


def observation_keys(dataset: Dataset, default: str, prefix: str = "") -> dict[str, int]:
    """The parts of an observation and their widths, as in the file it was read from, under names with a prefix.

    Readers join parts in sorted order. Where columns have another order, or nothing is known, there is one part.
    """
    stated = dataset.attributes.get("obs_keys")
    if isinstance(stated, dict):
        named = {key if key.startswith(prefix) else f"{prefix}.{key}": width for key, width in stated.items()}
        whole = all(isinstance(width, int) and width > 0 for width in named.values())
        usable = list(named) == sorted(named) and all(re.fullmatch(r"[\w .-]*\w[\w .-]*", name) for name in named)
        if whole and usable and sum(named.values()) == dataset.obs_dim:
            return named
    return {default: dataset.obs_dim}


def describe(dataset: Dataset) -> dict[str, Any]:
    bounds, environment = dataset.bounds, dataset.environment
    content: dict[str, Any] = {"attributes": dict(dataset.attributes)}
    if environment is not None:
        content |= {"env_id": environment.id, "env_kwargs": dict(environment.kwargs)}
    if bounds is not None:
        content |= {"action_low": list(bounds.low), "action_high": list(bounds.high)}
    if dataset.discrete:
        content["num_actions"] = dataset.action_dim
    if dataset.origin is not None:
        content["origin_names"] = list(dataset.origin.names)
    return content


def write_sidecar(path: Path, dataset: Dataset) -> None:
    write_json(path, describe(dataset))


def read_sidecar(path: Path) -> Sidecar:
    where = f"{path}: not what demosift writes"
    return _parse(where, read_json(path, where)) if path.exists() else Sidecar()


def parse_sidecar(source: str, text: Any) -> Sidecar:
    where = f"{source}: not what demosift writes"
    return _parse(where, parse_json(text, where))


def _parse(where: str, content: Any) -> Sidecar:
    place = mismatch(content, SCHEMA)
    if place is not None:
        raise Unusable(f"{where}: {place or 'it'} is of the wrong type")
    try:
        return Sidecar.parse(content)
    except ValueError as error:
        raise Unusable(f"{where}: {one_line(error)}") from error
