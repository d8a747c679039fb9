"""Facts that hold for every row: environment, action bounds, names of origins, attributes.

The native file keeps them as attributes. Other formats have no place for them, so they are JSON: a file of its own in a
folder, an attribute in a robomimic file. The libraries of those formats ignore it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from demosift.data.checks import one_line
from demosift.data.recording import Recording
from demosift.files import write_json
from demosift.types import Bounds, Dataset, InputError, Origin

SIDECAR = "demosift.json"


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
        """Raises ValueError, TypeError or AttributeError where the content is not what demosift writes."""
        num_actions, environment_id = content.get("num_actions"), content.get("env_id")
        if num_actions is not None and not (isinstance(num_actions, int | np.integer) and num_actions > 0):
            raise ValueError(f"num_actions: {num_actions!r} is not a positive integer")
        return cls(
            None if environment_id is None else str(environment_id),
            dict(content.get("env_kwargs", {})),
            _parse_bounds(content.get("action_low"), content.get("action_high")),
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


def _parse_bounds(low: Any, high: Any) -> Bounds | None:
    if all(side is None for side in (low, high)):
        return None
    try:
        low, high = np.atleast_1d(low).astype(np.float64), np.atleast_1d(high).astype(np.float64)
        if low.ndim == 1 and low.shape == high.shape and np.isfinite([low, high]).all() and (low <= high).all():
            return Bounds(tuple(low.tolist()), tuple(high.tolist()))
    except (TypeError, ValueError):
        pass
    raise ValueError("action_low, action_high: not two equally long lists of numbers, low below high")


def observation_keys(dataset: Dataset, default: str, prefix: str = "") -> dict[str, int]:
    """The parts of an observation and their widths, as in the file it was read from, under names with a prefix.

    Readers join parts in sorted order. Where columns have another order, or nothing is known, there is one part.
    """
    stated = dataset.attributes.get("obs_keys")
    if isinstance(stated, dict):
        named = {key if key.startswith(prefix) else f"{prefix}.{key}": width for key, width in stated.items()}
        whole = all(isinstance(width, int) and width > 0 for width in named.values())
        usable = list(named) == sorted(named) and "/" not in "".join(named)
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
    if not path.is_file():
        return Sidecar()
    try:
        return parse_sidecar(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read: {one_line(error)}") from error


def parse_sidecar(source: str, text: str | bytes) -> Sidecar:
    try:
        return Sidecar.parse(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{source}: not what demosift writes: {one_line(error)}") from error
