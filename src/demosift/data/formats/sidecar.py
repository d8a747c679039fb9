"""What formats of other makers have no place for, as JSON: environment, bounds, origin's names, attributes.

A file of its own in a folder, an attribute in a robomimic file. Their own libraries pass over it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demosift.data.actions import Bounds
from demosift.data.checks import one_line
from demosift.data.formats.hdf5 import action_bounds
from demosift.files import write_json
from demosift.types import Dataset, InputError

SIDECAR = "demosift.json"


@dataclass(frozen=True)
class Sidecar:
    environment_id: str | None = None
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bounds: Bounds | None = None
    num_actions: int | None = None
    origin_names: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def of_all(self) -> dict[str, Any]:
        """The fields of a `Recording` that are the same in every part."""
        names = ("environment_id", "environment_kwargs", "bounds", "num_actions", "attributes")
        return {name: getattr(self, name) for name in names}


def observation_keys(dataset: Dataset, default: str, prefix: str = "") -> dict[str, int]:
    """The observation's parts and their columns, as the file it was read from had them, under names with a prefix.

    Readers join parts in sorted order. Where that is not the order of the columns, or nothing is known, it is one part.
    """
    stated = dataset.attributes.get("obs_keys")
    if isinstance(stated, dict):
        named = {key if key.startswith(prefix) else f"{prefix}.{key}": width for key, width in stated.items()}
        whole = all(isinstance(width, int) and width > 0 for width in named.values())
        if (
            whole
            and sum(named.values()) == dataset.obs_dim
            and list(named) == sorted(named)
            and "/" not in "".join(named)
        ):
            return named
    return {default: dataset.obs_dim}


def describe(dataset: Dataset) -> dict[str, Any]:
    bounds, environment = action_bounds(dataset), dataset.environment
    content: dict[str, Any] = {
        "attributes": {key: value for key, value in dataset.attributes.items() if key != "action_bounds"}
    }
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
    """What the file says, and nothing where there is none."""
    if not path.is_file():
        return Sidecar()
    try:
        return parse_sidecar(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read: {one_line(error)}") from error


def parse_sidecar(source: str, text: str | bytes) -> Sidecar:
    try:
        content = json.loads(text)
        low, high = content.get("action_low"), content.get("action_high")
        bounds = None
        if low is not None:
            bounds = Bounds(tuple(map(float, low)), tuple(map(float, high)))
            if len(bounds.low) != len(bounds.high) or not all(a <= b for a, b in zip(*bounds, strict=True)):
                raise ValueError("action_low and action_high are not two equally long lists, low below high")
        num_actions, environment_id = content.get("num_actions"), content.get("env_id")
        if num_actions is not None and (not isinstance(num_actions, int) or num_actions < 1):
            raise ValueError(f"num_actions: {num_actions!r} is not a positive integer")
        return Sidecar(
            None if environment_id is None else str(environment_id),
            dict(content.get("env_kwargs", {})),
            bounds,
            num_actions,
            tuple(map(str, content.get("origin_names", ()))),
            dict(content.get("attributes", {})),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{source}: not what demosift writes: {one_line(error)}") from error
