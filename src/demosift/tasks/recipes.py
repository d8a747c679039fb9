"""Tasks: recipes that mix recorded trajectories into an expert and a supplementary set, with the origin of every row.

A recipe is a function of its sources and a generator, and returns the parts of both sets; everything else (recording,
reading, origins, attributes) is shared. A task is named `ENV/RECIPE`.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demosift.data import read_dataset, write_dataset
from demosift.data.episodes import episodes_at, join
from demosift.files import atomic_folder
from demosift.policy import Actor, NoisyPolicy, Policy, RandomPolicy
from demosift.ranges import EPISODES, POOL, SEED
from demosift.simulation import environments
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.simulation.shipped import shipped_policy
from demosift.simulation.simulate import Job, episode_seeds, rollout
from demosift.tasks.operators import NUM_EXPERT, record_mixture
from demosift.tasks.record import as_dataset
from demosift.types import Dataset, Demonstrations, EnvironmentSpec, InputError, Origin

# One list for all recipes, so that a code means the same in every file. `clean` is the expert's, but supplementary.
# The second line is that of `mixed`; an episode with pauses has rows that are `idle`, and `interrupted` ones.
ORIGINS = (
    *("expert", "clean", "noisy", "medium", "random", "replay"),
    *("second", "early-stop", "wrong-goal", "idle", "interrupted"),
    "noisy-medium",
)

REPLAY_ROWS = 1_000_000
RANDOM = 100  # random episodes to begin with
HIDDEN, HAYSTACK = 20, 2_000  # expert episodes of a haystack, and all of its episodes
MISSING = 0.5  # share of the steps that `missing-steps` takes out of both sets
MEDIUM_NOISE = 0.3  # standard deviation of the noise on a noisy medium policy's actions, which are in [-1, 1]
AS_GOOD_AS = 10  # episodes whose mean return says how good a replay's agent is at the time
REPLAYED = ("full-replay", "no-expert")  # recipes that use a replay where they are given one


class Part(NamedTuple):
    """Rows of one origin; `drawn` has the indices of their trajectories in the pool they come from."""

    origin: str
    dataset: Dataset
    drawn: tuple[int, ...] | None = None


class Mixture(NamedTuple):
    expert: Part
    supplementary: tuple[Part, ...]


@dataclass(frozen=True)
class Sources:
    """Where a recipe's trajectories come from. Recordings depend on the policy and the environment, not on the seed."""

    env: str
    pool: int = 20
    replay_folder: Path | None = None
    disjoint: bool = False
    recorded: Dataset | None = None  # a stored pool of the expert, since another machine may differ in a bit
    episodes: int = 200  # of a mixed pile
    experts: int | None = None  # expert trajectories; None: as many as the recipe has
    others: Mapping[str, Dataset] = field(default_factory=dict)  # stored pools of the medium policy, by their origin

    @cached_property
    def expert_pool(self) -> Dataset:
        return self.recorded or _shipped_pool(self.env, "expert", self.pool)

    @cached_property
    def medium_pool(self) -> Dataset:
        if self.replay_folder is None:
            return self.others.get("medium") or _shipped_pool(self.env, "medium", self.pool)
        return self.others.get("medium") or self._record(self._replayed_policy("medium"))

    @cached_property
    def noisy_medium_pool(self) -> Dataset:
        """The medium policy with noise on its actions, which are played, so that it comes to other states."""
        if "noisy-medium" in self.others:
            return self.others["noisy-medium"]
        return self._record(NoisyPolicy(shipped_policy(self.env, "medium"), MEDIUM_NOISE))

    @property
    def num_experts(self) -> int:
        return self.experts or 1

    @property
    def pools(self) -> dict[str, Dataset]:
        """The pools of policies that were needed so far, by the policy's name."""
        found = {name: self.__dict__.get(f"{name.replace('-', '_')}_pool") for name in ("medium", "noisy-medium")}
        found["expert"] = self.__dict__["replay"][0] if "replay" in self.__dict__ else self.__dict__.get("expert_pool")
        return {name: pool for name, pool in found.items() if pool is not None}

    def draw(self, pool: Dataset, rng: np.random.Generator, counts: Mapping[str, int]) -> tuple[Part, ...]:
        """Trajectories for each origin, in the given order: independent draws, which may overlap, unless `disjoint`."""
        needed = sum(counts.values()) if self.disjoint else max(counts.values())
        if pool.num_episodes < needed:
            raise InputError(
                f"{self.env}: the recipe needs {needed} trajectories, but the pool has {pool.num_episodes}"
            )
        if self.disjoint:
            chosen = np.split(rng.permutation(pool.num_episodes)[:needed], np.cumsum(list(counts.values()))[:-1])
        else:
            chosen = [rng.permutation(pool.num_episodes)[:count] for count in counts.values()]
        pairs = zip(counts, chosen, strict=True)
        return tuple(Part(origin, episodes_at(pool, drawn), tuple(drawn.tolist())) for origin, drawn in pairs)

    @cached_property
    def random_parts(self) -> list[Dataset]:
        """What was recorded of the random policy so far, the same episodes for every seed."""
        return []

    def random_rows(self, num_rows: int) -> Dataset:
        """As many episodes of the random policy as it takes to have that many rows."""
        spec, parts = environments.resolve(self.env), self.random_parts
        while (known := sum(map(len, parts))) < num_rows:
            episodes = sum(part.num_episodes for part in parts)
            # Processes are started for each part, so parts are few: once lengths are known, one more is about enough.
            more = RANDOM if not parts else math.ceil((num_rows - known) * episodes / known)
            parts.append(_record_pool(RandomPolicy(spec), spec, self.env, range(episodes, episodes + more)))
        whole = join(parts)
        return whole.take(slice(whole.episode_ends[np.searchsorted(whole.episode_ends, num_rows)]))

    @cached_property
    def haystack_pool(self) -> Dataset:
        """The random episodes of a haystack, the same for every seed, recorded bit by bit to spare memory."""
        spec = environments.resolve(self.env)
        edges = [*range(0, HAYSTACK - HIDDEN, 200), HAYSTACK - HIDDEN]
        parts = (range(*pair) for pair in pairwise(edges))
        return join([_record_pool(RandomPolicy(spec), spec, self.env, part) for part in parts])

    @cached_property
    def replay(self) -> tuple[Dataset, Dataset]:
        """The expert's pool and the replay of one agent, from a folder that `demosift collect` wrote."""
        policy = self._replayed_policy("expert")
        replay = read_dataset(self._replayed("replay.hdf5"))
        spec = environments.resolve(self.env)
        self._check_made_for("replay.hdf5", replay.environment)
        longest = int(np.max(replay.episode_ends - replay.episode_starts))
        if longest > environments.max_episode_steps(spec):
            raise InputError(f"{replay.source}: has an episode of {longest} rows; {spec.id} ends before that")
        return self.recorded or self._record(policy), replay

    def _record(self, policy: Actor) -> Dataset:
        return _record_pool(policy, environments.resolve(self.env), self.env, range(self.pool))

    def _replayed_policy(self, level: str) -> Policy:
        """What `collect` kept beside the replay."""
        name = f"{level}.safetensors"
        policy = Policy.load(self._replayed(name))
        self._check_made_for(name, policy.environment)
        return policy

    def _replayed(self, name: str) -> Path:
        command = f"demosift collect {self.env} --out {self.replay_folder or 'DIR'}"
        if self.replay_folder is None:
            raise InputError(f"{self.env}/full-replay needs a replay folder (--replay DIR); make one with: {command}")
        if not (self.replay_folder / name).is_file():
            raise InputError(f"{self.replay_folder / name}: no such file; make it with: {command}")
        return self.replay_folder / name

    def _check_made_for(self, name: str, found: EnvironmentSpec | None) -> None:
        if found is not None and environments.short_name(found) != self.env:
            assert self.replay_folder is not None
            needed = environments.resolve(self.env).id
            raise InputError(f"{self.replay_folder / name}: made for {found.id}, but the task is in {needed}")


Recipe = Callable[[Sources, np.random.Generator], Mixture]


def noisy_expert(sources: Sources, rng: np.random.Generator) -> Mixture:
    """As in the paper: 1 expert, 10 clean and 5 noisy trajectories, drawn in the order of its code.

    The draws may overlap, which puts noisy actions on the expert's own states, except in the disjoint variant.
    """
    counts = {"noisy": 5, "clean": 10, "expert": sources.num_experts}
    noisy, clean, expert = sources.draw(sources.expert_pool, rng, counts)
    return Mixture(expert, (noisy._replace(dataset=redraw_actions(noisy.dataset, rng)), clean))


def full_replay(sources: Sources, rng: np.random.Generator) -> Mixture:
    """As in the paper: 1 expert trajectory, and the first million rows of the agent's replay in stored order."""
    pool, replay = sources.replay
    (expert,) = sources.draw(pool, rng, {"expert": sources.num_experts})
    return Mixture(expert, (Part("replay", _first_rows(replay, REPLAY_ROWS)),))


def medium_expert(sources: Sources, rng: np.random.Generator) -> Mixture:
    """1 expert trajectory; supplementary, 10 more and 10 by a policy that reaches about a third of the return."""
    clean, expert = sources.draw(sources.expert_pool, rng, {"clean": 10, "expert": sources.num_experts})
    return Mixture(expert, (*sources.draw(sources.medium_pool, rng, {"medium": 10}), clean))


def random_expert(sources: Sources, rng: np.random.Generator) -> Mixture:
    """1 expert trajectory; supplementary, 1% of the rows by the expert and 99% random."""
    clean, expert = sources.draw(sources.expert_pool, rng, {"clean": 1, "expert": sources.num_experts})
    return Mixture(expert, (Part("random", sources.random_rows(99 * len(clean.dataset))), clean))


def haystack(sources: Sources, rng: np.random.Generator) -> Mixture:
    """1 expert trajectory; supplementary, 20 others of the expert among 1,980 random episodes. No draw overlaps."""
    counts = {"clean": HIDDEN, "expert": sources.num_experts}
    clean, expert = replace(sources, disjoint=True).draw(sources.expert_pool, rng, counts)
    return Mixture(expert, (Part("random", sources.haystack_pool), clean))


def no_expert(sources: Sources, rng: np.random.Generator) -> Mixture:
    """1 expert trajectory; supplementary, 10 by the medium policy and, where there is a replay, what its agent did
    until it was as good as that policy; else 10 by the medium policy with noise on its actions."""
    if sources.replay_folder is None:
        pool, rest = sources.expert_pool, sources.draw(sources.noisy_medium_pool, rng, {"noisy-medium": 10})
    else:
        pool, replay = sources.replay
        rest = (Part("replay", _until_as_good(replay, float(sources.medium_pool.returns().mean()))),)
    (expert,) = sources.draw(pool, rng, {"expert": sources.num_experts})
    return Mixture(expert, (*sources.draw(sources.medium_pool, rng, {"medium": 10}), *rest))


def missing_steps(sources: Sources, rng: np.random.Generator) -> Mixture:
    """`medium-expert`, with the same draws, of whose trajectories half of the steps are missing, in both sets."""
    whole = medium_expert(sources, rng)
    expert, *pile = (
        part._replace(dataset=_without_steps(part.dataset, MISSING, rng))
        for part in (whole.expert, *whole.supplementary)
    )
    return Mixture(expert, tuple(pile))


def mixed(sources: Sources, rng: np.random.Generator) -> Mixture:
    """5 expert episodes; supplementary, operators of mixed quality: 60% clean, 10% a second one, 30% bad."""
    count = sources.experts or NUM_EXPERT
    experts, pile = record_mixture(environments.resolve(sources.env), sources.episodes, rng, count)
    expert = Part("expert", join([rows.dataset for rows in experts]))
    return Mixture(expert, tuple(Part(*rows) for rows in pile))


RECIPES: Mapping[str, Recipe] = {
    "noisy-expert": noisy_expert,
    "full-replay": full_replay,
    "medium-expert": medium_expert,
    "random-expert": random_expert,
    "haystack": haystack,
    "no-expert": no_expert,
    "missing-steps": missing_steps,
    "mixed": mixed,
}


def usual_experts(recipe: str) -> int:
    """Expert trajectories of a recipe where nobody says how many."""
    return NUM_EXPERT if recipe == "mixed" else 1


def pool_size(recipe: str, pool: int, experts: int | None) -> int:
    """A haystack draws no trajectory twice, so its pool holds at least as many as it needs."""
    return max(pool, HIDDEN + (experts or 1)) if recipe == "haystack" else pool


def task_label(task: str, experts: int | None = None, expert_actions: bool = True) -> str:
    """The name of a task in results, which tells how much is known of the expert where that is not the usual."""
    changes = [] if experts in (None, usual_experts(task.partition("/")[2])) else [f"{experts} experts"]
    changes += [] if expert_actions else ["expert observations"]
    return ", ".join([task, *changes])


def make_task(
    task: str,
    seed: int,
    pool: int = 20,
    replay: str | os.PathLike[str] | None = None,
    disjoint: bool = False,
    episodes: int = 200,
    experts: int | None = None,
) -> Demonstrations:
    """The expert and supplementary sets of `ENV/RECIPE`, the same for the same arguments.

    `episodes` is the size of a mixed pile; `experts`, how many expert trajectories there are (None: the recipe's).
    """
    env, _, recipe = task.partition("/")
    if recipe not in RECIPES or env not in (SCRIPTED if recipe == "mixed" else environments.SHORT_NAMES):
        recipes = [recipe for recipe in RECIPES if recipe != "mixed"]
        raise InputError(
            f"unknown task {task!r}: tasks are ENV/RECIPE, ENV one of {', '.join(environments.SHORT_NAMES)}, "
            f"RECIPE one of {', '.join(recipes)}; or ENV/mixed, ENV one of {', '.join(SCRIPTED)}"
        )
    POOL.check("task: pool", pool)
    EPISODES.check("task: episodes", episodes)
    if experts is not None:
        POOL.check("task: expert trajectories", experts)
    folder = None if replay is None or recipe not in REPLAYED else Path(replay)
    size = pool_size(recipe, pool, experts)
    return draw_task(Sources(env, size, folder, disjoint, episodes=episodes, experts=experts), recipe, seed)


def draw_task(sources: Sources, recipe: str, seed: int) -> Demonstrations:
    """Like `make_task`, from given sources: the seeds of a grid share their recordings."""
    SEED.check("task: seed", seed)
    task = f"{sources.env}/{recipe}"
    mixture = RECIPES[recipe](sources, np.random.default_rng(seed))
    attributes: dict[str, Any] = {"task": task, "seed": seed}
    if recipe == "mixed":
        attributes["episodes"] = sources.episodes
    else:
        attributes |= {"pool": sources.pool, "disjoint": sources.disjoint or recipe == "haystack"}
    if sources.experts not in (None, usual_experts(recipe)):
        attributes["experts"] = sources.experts
    return Demonstrations(
        _assemble((mixture.expert,), attributes, f"{task} expert"),
        _assemble(mixture.supplementary, attributes, f"{task} supplementary"),
    )


def write_task(demonstrations: Demonstrations, folder: str | os.PathLike[str]) -> None:
    """`expert.hdf5` and `supplementary.hdf5` in a new folder."""
    with atomic_folder(folder) as temporary:
        write_dataset(demonstrations.expert, temporary / "expert.hdf5")
        if demonstrations.supplementary is not None:
            write_dataset(demonstrations.supplementary, temporary / "supplementary.hdf5")


def _assemble(parts: Sequence[Part], attributes: Mapping[str, Any], source: str) -> Dataset:
    codes = [np.full(len(part.dataset), ORIGINS.index(part.origin), np.int8) for part in parts]
    return replace(
        join([part.dataset for part in parts]),
        origin=Origin(np.concatenate(codes), ORIGINS),
        attributes={**attributes, "drawn": {part.origin: part.drawn for part in parts if part.drawn is not None}},
        source=source,
    )


def _first_rows(dataset: Dataset, num_rows: int) -> Dataset:
    """The first rows; an episode that is cut ends with a timeout."""
    part = dataset.take(slice(num_rows))
    timeout = part.timeout.copy()
    timeout[-1] = not part.transitions.terminal[-1]
    return replace(part, timeout=timeout)


def _until_as_good(replay: Dataset, enough: float) -> Dataset:
    """The episodes of a replay before the first ten in a row whose mean return is enough; never those ten."""
    returns = replay.returns()
    if len(returns) < AS_GOOD_AS:
        raise InputError(f"{replay.source}: has {len(returns)} episodes; no-expert needs at least {AS_GOOD_AS}")
    running = np.convolve(returns, np.full(AS_GOOD_AS, 1 / AS_GOOD_AS), mode="valid")
    good = np.flatnonzero(running >= enough)
    count = int(good[0]) if len(good) else len(returns)
    if count == 0:
        raise InputError(f"{replay.source}: its agent is as good as the medium policy from the start")
    return replay.take(slice(replay.episode_ends[count - 1]))


def _without_steps(dataset: Dataset, share: float, rng: np.random.Generator) -> Dataset:
    """Leaves steps out at random. Those that stay keep their next states; an episode keeps its first step, and where
    its last is gone it ends without a terminal."""
    kept = rng.uniform(size=len(dataset)) >= share
    kept[dataset.episode_starts] = True
    rows = np.flatnonzero(kept)
    episode = np.searchsorted(dataset.episode_ends, rows, side="right")
    last = np.append(episode[1:] != episode[:-1], True)
    part = dataset.take(rows)
    return replace(part, timeout=last & ~part.transitions.terminal)


def redraw_actions(dataset: Dataset, rng: np.random.Generator) -> Dataset:
    """Uniform actions on the same states. Rewards and next states stay those of the actions taken."""
    shape = dataset.transitions.action.shape
    if dataset.discrete:
        action = np.eye(shape[1], dtype=dataset.transitions.action.dtype)[rng.integers(shape[1], size=shape[0])]
    else:
        action = rng.uniform(-1, 1, shape).astype(np.float32)
    return replace(dataset, transitions=dataset.transitions._replace(action=action))


@lru_cache(maxsize=32)  # seeds and tasks of an environment draw from the same pools
def _shipped_pool(env: str, level: str, size: int) -> Dataset:
    return _record_pool(shipped_policy(env, level), environments.resolve(env), env, range(size))


def _record_pool(policy: Actor, spec: EnvironmentSpec, env: str, indices: range) -> Dataset:
    """Episode `i` of an environment's pool has a seed of its own, so pools of different sizes agree."""
    seeds = episode_seeds(indices.stop, f"pool of {env}")[indices.start :]
    return as_dataset(rollout(policy, spec, [Job(0, seed) for seed in seeds], record=True), spec, {})
