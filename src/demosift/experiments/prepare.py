"""The data of a cell: made from its recipe, recognised by a digest, and with everything a result says of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demosift.data import read_dataset, write_dataset
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.experiments.cells import DataKey
from demosift.learning.fit import describe_data, with_bounds_of
from demosift.simulation import environments
from demosift.tasks.recipes import ORIGINS, Sources, draw_task
from demosift.types import Dataset, Demonstrations, EnvironmentSpec, InputError, Transitions

DECIMALS = 4  # of a return, which is in the thousands: what is beyond would only fill files

# What of a collecting run's configuration a reader needs to make the replay again.
COLLECTED = ("command", "steps", "seeds", "num_envs", "random_steps", "settings", "versions", "commit", "device")


@dataclass(frozen=True, eq=False)
class Prepared:
    key: DataKey
    demonstrations: Demonstrations
    recipe: Mapping[str, Any]
    reference: Mapping[str, Any]  # the returns that scores are measured by: 0 is random, 1 the expert

    @cached_property
    def description(self) -> dict[str, Any]:
        """Sizes, and the digest that cell ids hash."""
        return describe_data(self.demonstrations)

    @property
    def sha256(self) -> str:
        return self.description["sha256"]

    @cached_property
    def environment(self) -> EnvironmentSpec:
        spec = with_bounds_of(self.demonstrations, environments.resolve(self.key.env))
        assert spec is not None
        return spec

    def normaliser(self, over: NormaliseOver) -> Normaliser:
        return fit_normaliser(self.demonstrations, over)

    def needed(self, supplementary: bool) -> Demonstrations:
        """What an algorithm reads: BC leaves a million rows of replay on the host."""
        return self.demonstrations if supplementary else Demonstrations(self.demonstrations.expert)


class Preparation:
    """Makes the data of cells; seeds share their recordings, and recordings are kept in a folder.

    A recording is a chaotic function of the policy's last bits, which depend on the processor. So that a grid can be
    continued on another machine, the expert's trajectories are written beside the results and read from there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._sources: dict[Any, Sources] = {}

    def __call__(self, key: DataKey) -> Prepared:
        task = draw_task(self.sources(key), key.recipe, key.seed)
        assert task.supplementary is not None
        drawn = {**task.expert.attributes["drawn"], **task.supplementary.attributes["drawn"]}
        recipe: dict[str, Any] = {
            "task": key.task,
            "seed": key.seed,
            "pool": key.pool,
            "disjoint": key.disjoint,
            "drawn": {origin: list(indices) for origin, indices in drawn.items()},
            "trained_on": key.trained_on,
        }
        if key.replay is not None:
            recipe["replay"] = collected(Path(key.replay))
        if key.trained_on == "clean":
            # The pile stays beside it for its states' statistics: the oracle's normaliser is everybody's.
            task = Demonstrations(with_clean_rows(task.expert, task.supplementary), task.supplementary)
        return Prepared(key, task, recipe, self.reference(key))

    def reference(self, key: DataKey) -> dict[str, Any]:
        """Of the shipped expert, measured once; a replay's expert is the collecting agent's, measured by its pool."""
        known = environments.reference_returns()["demosift"][key.env]
        measured = {who: known[who]["mean"] for who in ("random", "expert")}
        if key.replay is None:
            return {"name": "demosift", **measured}
        returns = self.sources(key).replay[0].returns()
        return {"name": "the replay's expert", **measured, "expert": round(float(returns.mean()), DECIMALS)}

    def sources(self, key: DataKey) -> Sources:
        shared = (key.env, key.recipe, key.pool, key.replay, key.disjoint)
        if shared not in self._sources:
            path = self.folder / f"{key.env}-{key.recipe}-{key.pool}.hdf5"
            recorded = read_dataset(path) if path.is_file() else None
            replay = None if key.replay is None else Path(key.replay)
            sources = Sources(key.env, key.pool, replay, key.disjoint, recorded)
            if recorded is None:
                write_dataset(sources.expert_pool if replay is None else sources.replay[0], path)
            self._sources[shared] = sources
        return self._sources[shared]


def with_clean_rows(expert: Dataset, pile: Dataset) -> Dataset:
    """The expert set and the rows of the pile that are the expert's own, which only the maker of the pile knows."""
    if pile.origin is None:
        raise InputError(f"{pile.source}: does not say where its rows come from, so there is no oracle")
    clean = pile.take(np.flatnonzero(pile.origin.code == ORIGINS.index("clean")))
    pairs = zip(expert.transitions, clean.transitions, strict=True)
    return replace(
        expert,
        transitions=Transitions(*(np.concatenate(pair) for pair in pairs)),
        timeout=np.concatenate([expert.timeout, clean.timeout]),
        origin=None,
    )


def collected(folder: Path) -> dict[str, Any]:
    """Which `collect` made the replay: seeds, steps, versions, hardware."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        chosen = {name: config["expert"][name] for name in ("setting", "seed")}
        return {name: config[name] for name in COLLECTED if name in config} | chosen
    except (OSError, ValueError, KeyError, TypeError):
        return {}
