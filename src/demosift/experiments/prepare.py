"""The data of a cell: how it is made from its recipe, and what a result records about it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demosift.data import read_dataset, write_dataset
from demosift.data.episodes import join
from demosift.data.normaliser import NormaliseOver, Normaliser, fit_normaliser
from demosift.experiments.cells import DataKey
from demosift.experiments.d4rl import read_d4rl
from demosift.files import Unusable, digest_file, read_json
from demosift.learning.fit import describe_data, with_bounds_of
from demosift.simulation import environments
from demosift.tasks.recipes import ORIGINS, Sources, draw_task, pool_size
from demosift.types import Dataset, Demonstrations, EnvironmentSpec, InputError

DECIMALS = 4  # of a return, which is in the thousands: more would only fill files

# The parts of a collecting run's configuration that are needed to make the replay again.
COLLECTED = ("command", "steps", "seeds", "num_envs", "random_steps", "settings", "versions", "commit", "device")


@dataclass(frozen=True, eq=False)
class Prepared:
    key: DataKey
    demonstrations: Demonstrations
    recipe: Mapping[str, Any]
    reference: Mapping[str, Any]  # the returns that scores are measured by: 0 is random, 1 the expert

    @cached_property
    def description(self) -> dict[str, Any]:
        """Sizes, and the digests that cell ids hash."""
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
        """The part that an algorithm reads: for BC a million rows of replay stay on the host."""
        return self.demonstrations if supplementary else replace(self.demonstrations, supplementary=None)


class Preparation:
    """Makes the data of cells. Seeds share recordings, which are kept in a folder.

    A recording depends chaotically on the policy's last bits, and those on the processor. So that a grid can be
    continued on another machine, the trajectories of policies are written beside the results and read from there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._sources: dict[Any, Sources] = {}
        self._files: dict[Any, tuple[Demonstrations, dict[str, Any]]] = {}
        self._written: list[Path] = []

    def discard(self) -> None:
        """Remove the recordings that were made here, as long as nothing refers to them."""
        for path in self._written:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def __call__(self, key: DataKey) -> Prepared:
        if key.files is not None:
            return self.from_files(key, key.files)
        sources = self.sources(key)
        task = draw_task(sources, key.recipe, key.seed)
        self.keep(key, sources)
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
        if key.experts is not None:
            recipe["experts"] = key.experts
        if key.replay is not None:
            recipe["replay"] = collected(Path(key.replay))
        if key.trained_on == "clean":
            # The supplementary set stays for its states' statistics: the oracle's normaliser is everybody's.
            task = replace(task, expert=with_clean_rows(task.expert, task.supplementary))
        if not key.expert_actions:
            recipe["expert_actions"] = False
            task = replace(task, expert_actions=False)
        return Prepared(key, task, recipe, self.reference(key))

    def reference(self, key: DataKey) -> dict[str, Any]:
        """The returns of the shipped policies, measured once; the expert of a replay is the agent that collected it."""
        name = "demosift" if key.files is None else "d4rl"
        known = environments.reference_returns()[name][key.env]
        measured = {who: known[who]["mean"] for who in ("random", "expert")}
        if key.files is not None:
            return {"name": "D4RL", **measured}
        if key.replay is None:
            return {"name": "demosift", **measured}
        returns = self.sources(key).replay[0].returns()
        return {"name": "the replay's expert", **measured, "expert": round(float(returns.mean()), DECIMALS)}

    def from_files(self, key: DataKey, folder: str) -> Prepared:
        """A user's file, which is the same for every seed."""
        shared = (folder, key.env, key.recipe, key.experts)
        if shared not in self._files:
            self._files[shared] = read_d4rl(Path(folder), key.env, key.recipe, key.experts or 1)
        task, recipe = self._files[shared]
        if not key.expert_actions:
            task, recipe = replace(task, expert_actions=False), {**recipe, "expert_actions": False}
        return Prepared(key, task, {"task": key.task, "seed": key.seed, **recipe}, self.reference(key))

    def sources(self, key: DataKey) -> Sources:
        shared = (key.env, key.recipe, key.pool, key.replay, key.disjoint, key.experts)
        if shared not in self._sources:
            kept = {name: read_dataset(path) for name, path in self.kept(key).items() if path.is_file()}
            replay = None if key.replay is None else Path(key.replay)
            size = pool_size(key.recipe, key.pool, key.experts)
            recorded = kept.pop("expert", None)
            self._sources[shared] = Sources(
                key.env, size, replay, key.disjoint, recorded, experts=key.experts, others=kept
            )
        return self._sources[shared]

    def kept(self, key: DataKey) -> dict[str, Path]:
        """Where the pools that a task may draw from are kept, by the policy's name. Random episodes are not.

        Those of a replay's own policies are named after these, too: another replay has others. Grids of before did not
        say whose they are, and go on with what they have.
        """
        size = pool_size(key.recipe, key.pool, key.experts)
        own = "-replay" if key.replay is not None and key.recipe != "full-replay" else ""  # its agent's policies
        names = {"expert": "", "medium": "-medium", "noisy-medium": "-noisy-medium"}
        paths = {}
        for who, end in names.items():
            stem = f"{key.env}-{key.recipe}{own}-{size}{end}"
            policy = None if key.replay is None else Path(key.replay, f"{who}.safetensors")
            paths[who] = self.folder / f"{stem}.hdf5"
            if policy is not None and policy.is_file() and not paths[who].is_file():
                paths[who] = self.folder / f"{stem}-{digest_file(policy).hex()[:8]}.hdf5"
        return paths

    def keep(self, key: DataKey, sources: Sources) -> None:
        """Write the pools that were recorded for this task."""
        for name, path in self.kept(key).items():
            pool = sources.pools.get(name)
            if pool is not None and not path.is_file():
                write_dataset(pool, path)
                self._written.append(path)


def with_clean_rows(expert: Dataset, supplementary: Dataset) -> Dataset:
    """The expert set together with the supplementary rows that are the expert's own."""
    if supplementary.origin is None:
        raise InputError(f"{supplementary.source}: does not say where its rows come from, so there is no oracle")
    clean = supplementary.take(np.flatnonzero(supplementary.origin.code == ORIGINS.index("clean")))
    both = join([expert, clean])
    return replace(expert, transitions=both.transitions, timeout=both.timeout, origin=None)


def collected(folder: Path) -> dict[str, Any]:
    """Which `collect` made the replay: seeds, steps, versions, hardware."""
    try:
        config = read_json(folder / "config.json")
        chosen = {name: config["expert"][name] for name in ("setting", "seed")}
        return {name: config[name] for name in COLLECTED if name in config} | chosen
    except (Unusable, KeyError, TypeError):
        return {}
