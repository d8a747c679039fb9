"""Cells that train together: one compiled program, evaluated while it goes on, killed and continued at any point.

A chunk of iterations runs on the device while the simulating processes evaluate earlier policies and a thread writes
the last checkpoint. What is random follows from (seed, iteration), so pieces of a run are the run.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from demosift.algorithms import State
from demosift.experiments.cells import Cell
from demosift.experiments.prepare import DECIMALS, Prepared
from demosift.files import plain
from demosift.learning.members import (
    Members,
    Precision,
    advance,
    episode_starts,
    fill,
    init_members,
    load_data,
    named_arrays,
)
from demosift.learning.padding import (
    Padded,
    Sizes,
    axis_kinds,
    mask_of,
    pad_data,
    pad_state,
    policy_axis_kinds,
    unpad_leaf,
)
from demosift.policy import Layer, Policy
from demosift.results.run import Row
from demosift.simulation.evaluation import Evaluation, evaluation_jobs
from demosift.simulation.simulate import Episode, Rollouts

CHUNK = {"cpu": 100}  # iterations in one call; elsewhere:
CHUNK_ON_DEVICE = 1000
IN_FLIGHT = 2  # chunks that may wait on the device, so that it never waits for the host
MOST_PENDING = 4  # evaluations that may lag behind training
CHECKPOINT_SECONDS = 60.0


class Planned(NamedTuple):
    """A cell with its id and its data."""

    cell: Cell
    id: str
    data: Prepared


class Checkpoints(Protocol):
    """Where a program's checkpoints go (`demosift.experiments.store.Keeper` is one)."""

    def load(self) -> tuple[int, dict[str, np.ndarray], dict[str, Any]] | None: ...

    def keep(self, iteration: int, arrays: Mapping[str, np.ndarray], progress: Mapping[str, Any]) -> None: ...


@dataclass
class Measured:
    """What is known of one member: its evaluations, or why there are no more of them."""

    evaluations: list[Row] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True)
class Outcome:
    finished: bool
    iteration: int
    members: list[Measured]
    wall_seconds: float


class Group(NamedTuple):
    """The members of one environment: their places in the program, and what their policies need."""

    members: list[int]
    planned: list[Planned]
    sizes: Sizes


class Program:
    """The members' data and networks on the device."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self.planned = list(planned)
        self.algorithm = planned[0].cell.algorithm
        self.precision: Precision = planned[0].cell.precision
        self.groups = group_by_environment(self.planned)
        self.common = Sizes(*(max(size) for size in zip(*(group.sizes for group in self.groups), strict=True)))
        self.padded = len(self.groups) > 1
        self.kinds = axis_kinds(self.algorithm) if self.padded else []
        self.policy_kinds = policy_axis_kinds(self.algorithm) if self.padded else []
        self.normalisers = [each.data.normaliser(each.cell.normalise) for each in self.planned]
        self.members, self.state = self._place()

    def _place(self) -> tuple[Members, State]:
        needed = [each.data.needed(self.algorithm.needs_supplementary) for each in self.planned]
        num_rows = max(len(source.expert) + len(source.supplementary or ()) for source in needed)
        num_starts = max(len(episode_starts(source)) for source in needed)
        loaded: dict[Any, Any] = {}  # settings of one seed share their data on the host
        placed = []
        for each, source, normaliser in zip(self.planned, needed, self.normalisers, strict=True):
            key = (each.cell.data, each.cell.normalise)
            if key not in loaded:
                loaded[key] = load_data(source, normaliser, num_rows, num_starts)
            placed.append(loaded[key])
        settings = [each.cell.algorithm for each in self.planned]
        seeds = [each.cell.seed for each in self.planned]
        if not self.padded:
            members = stack(settings, seeds, placed)
            return members, init_members(members)
        states, masks = [], []
        for group in self.groups:
            picked = group.members
            own = stack([settings[i] for i in picked], [seeds[i] for i in picked], [placed[i] for i in picked])
            states.append(pad_state(init_members(own), self.kinds, group.sizes, self.common))
            masks += [[mask_of(k, group.sizes, self.common) for k in self.kinds]] * len(group.members)
            for i in group.members:
                placed[i] = pad_data(placed[i], group.sizes, self.common)
        members = stack(settings, seeds, placed)
        stacked = [None if mask[0] is None else jnp.asarray(np.stack(mask)) for mask in zip(*masks, strict=True)]
        state = jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *states)
        return members._replace(algorithm=Padded(members.algorithm, stacked)), state  # type: ignore[arg-type]

    def advance(self, position: int, steps: int) -> dict[str, jax.Array]:
        self.state, metrics = advance(self.members, self.state, position, steps, self.precision)
        return {name: value for name, value in metrics.items() if not (self.padded and name == "policy_loss")}

    def policies(self) -> list[tuple[Group, Policy]]:
        """The policy of each environment's members, as NumPy. Only their networks leave the device."""
        layers = jax.device_get(self.algorithm.policy(self.state)).layers
        found = []
        for group in self.groups:
            own = [Layer(*(np.asarray(array)[np.array(group.members)] for array in layer)) for layer in layers]
            if self.padded:
                pairs = zip(own, self.policy_kinds, strict=True)
                own = [
                    Layer(*(unpad_leaf(a, k, group.sizes, self.common) for a, k in zip(*p, strict=True))) for p in pairs
                ]
            normalisers = [self.normalisers[i] for i in group.members]
            shift, scale = (np.stack(parts) for parts in zip(*normalisers, strict=True))
            environment = group.planned[0].data.environment
            limit = self.algorithm.mean_limit
            found.append((group, Policy("tanh-gaussian", tuple(own), shift, scale, limit, environment)))
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        return named_arrays(self.state)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.state = fill(self.state, arrays)


def group_by_environment(planned: Sequence[Planned]) -> list[Group]:
    groups = []
    for env in dict.fromkeys(each.cell.data.env for each in planned):
        members = [i for i, each in enumerate(planned) if each.cell.data.env == env]
        expert = planned[members[0]].data.demonstrations.expert
        groups.append(Group(members, [planned[i] for i in members], Sizes(expert.obs_dim, expert.action_dim)))
    return groups


def stack(settings: Sequence[Any], seeds: Sequence[int], data: Sequence[Any]) -> Members:
    """Members with data of their own each, or one set for all where they share it."""
    own_data = any(each is not data[0] for each in data)
    if own_data:
        placed = jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays)), *data)
    else:
        placed = jax.tree.map(jnp.asarray, data[0])
    algorithm = jax.tree.map(lambda *values: jnp.asarray(values, jnp.float32), *settings)
    return Members(algorithm, jnp.asarray(list(seeds)), placed, own_data)


class PendingEvaluation(NamedTuple):
    """Episodes under way; `rows` waits for them."""

    iteration: int
    parts: list[tuple[Group, list[int], Future[list[Episode]]]]
    metrics: dict[str, np.ndarray]

    def done(self) -> bool:
        return all(future.done() for _, _, future in self.parts)

    def rows(self) -> dict[int, Row]:
        """An evaluation for each member that was alive."""
        found = {}
        for group, alive, future in self.parts:
            evaluation = Evaluation.of(group.planned[0].data.environment, future.result())
            for place, member in enumerate(alive):
                found[member] = {
                    "iteration": self.iteration,
                    "returns": evaluation.returns[place].round(DECIMALS).tolist(),
                    "lengths": evaluation.lengths[place].tolist(),
                    "metrics": {name: plain(float(f"{value[member]:.6g}")) for name, value in self.metrics.items()},
                }
        return found


def run_program(
    planned: Sequence[Planned],
    checkpoints: Checkpoints,
    pool: Rollouts,
    advanced: Callable[[int], None] = lambda position: None,
    stopped: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Outcome:
    """Train and evaluate the cells, from their checkpoint if there is one.

    When `stopped` says so, the program is checkpointed and left unfinished. `advanced` hears of every chunk.
    """
    cell = planned[0].cell
    iterations, schedule = cell.iterations, cell.schedule
    began = time.monotonic()
    program = Program(planned)
    members = [Measured() for _ in planned]
    position, earlier = 0, 0.0
    if (checkpoint := checkpoints.load()) is not None:
        position, arrays, progress = checkpoint
        program.restore(arrays)
        members = [Measured(**member) for member in progress["members"]]
        earlier = progress["wall_seconds"]
    chunk = chunk_length(schedule.every)
    pending: deque[PendingEvaluation] = deque()
    in_flight: deque[Any] = deque()
    kept = time.monotonic()
    write: Future[None] | None = None

    def settle(evaluation: PendingEvaluation) -> None:
        for member, row in evaluation.rows().items():
            members[member].evaluations.append(row)

    def wall_seconds() -> float:
        return earlier + time.monotonic() - began

    def keep() -> Callable[[], None]:
        """A checkpoint of this moment, to be written once the evaluations that belong to it have ended."""
        arrays, at, waiting = program.arrays(), position, list(pending)
        known = [Measured(list(member.evaluations), member.failure) for member in members]

        def write_it() -> None:
            for evaluation in waiting:
                for member, row in evaluation.rows().items():
                    known[member].evaluations.append(row)
            told = [{"evaluations": member.evaluations, "failure": member.failure} for member in known]
            checkpoints.keep(at, arrays, {"members": told, "wall_seconds": wall_seconds()})

        return write_it

    with ThreadPoolExecutor(1) as writer:
        while position < iterations:
            steps = min(chunk, schedule.every - position % schedule.every)
            metrics = program.advance(position, steps)
            position += steps
            in_flight.append(metrics)
            while len(in_flight) > IN_FLIGHT:
                jax.block_until_ready(in_flight.popleft())
            advanced(position)
            if position % schedule.every == 0:
                episodes = schedule.episodes_at(position, iterations)
                pending.append(submit(program, pool, members, position, episodes, schedule.seed, metrics))
            while pending and (pending[0].done() or len(pending) > MOST_PENDING):
                settle(pending.popleft())
            if position < iterations and stopped():
                if write is not None:
                    write.result()
                keep()()
                return Outcome(False, position, members, wall_seconds())
            if time.monotonic() - kept > checkpoint_seconds and (write is None or write.done()):
                if write is not None:
                    write.result()
                write, kept = writer.submit(keep()), time.monotonic()
        while pending:
            settle(pending.popleft())
        if write is not None:
            write.result()
    return Outcome(True, position, members, wall_seconds())


def submit(
    program: Program,
    pool: Rollouts,
    members: Sequence[Measured],
    iteration: int,
    episodes: int,
    seed: int,
    metrics: Mapping[str, Any],
) -> PendingEvaluation:
    """Start the episodes of every member whose policy is finite; the others have failed, and say when."""
    parts = []
    for group, policy in program.policies():
        finite = finite_members(policy)
        for place, member in enumerate(group.members):
            if not finite[place] and members[member].failure is None:
                members[member].failure = f"diverged: by iteration {iteration:,} the policy's parameters are not finite"
        alive = [place for place, member in enumerate(group.members) if members[member].failure is None]
        if alive:
            jobs = evaluation_jobs(len(alive), episodes, seed, iteration)
            environment = group.planned[0].data.environment
            future = pool.submit(policy.members(tuple(alive)), environment, jobs)
            parts.append((group, [group.members[place] for place in alive], future))
    return PendingEvaluation(iteration, parts, {name: np.asarray(value) for name, value in metrics.items()})


def finite_members(policy: Policy) -> np.ndarray:
    finite = np.ones(policy.num_members, bool)
    for layer in policy.layers:
        for array in layer:
            finite &= np.isfinite(array).reshape(policy.num_members, -1).all(axis=1)
    return finite


def chunk_length(every: int) -> int:
    """The longest piece, up to the device's, that divides the time between evaluations: one program compiles once."""
    longest = CHUNK.get(jax.default_backend(), CHUNK_ON_DEVICE)
    divisors = [steps for steps in range(1, min(longest, every) + 1) if every % steps == 0]
    return divisors[-1] if divisors[-1] * 4 > longest else min(longest, every)
