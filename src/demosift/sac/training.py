"""The agents act, simulate and learn, a round at a time; and how fast that goes.

A round steps `num_envs` environments per agent and makes as many updates: act, send the actions to the simulating
processes, start the updates on the device, and only then wait for the simulators. So simulation and learning run at the
same time; the rows of a round are first learned from in the next. The whole replay is on the device, and the compiled
functions change it and the agents' parameters in place.
"""

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from demosift.learning.acting import numpy_policy
from demosift.learning.members import fill, named_arrays
from demosift.learning.networks import Layer, TanhGaussian
from demosift.learning.runner import Group, Trainee
from demosift.policy import Policy
from demosift.results.checkpoint import Arrays, Checkpoint
from demosift.sac.agent import RUNNING, SAC, TERMINAL, TIMEOUT, Layout, Metrics, State
from demosift.sac.checkpoint import OBS, ROWS, SIMULATOR
from demosift.simulation import environments
from demosift.simulation.simulate import Simulators
from demosift.types import EnvironmentSpec, InputError

MAX_TRAINING_SEED = 1_000_000
"""Training resets its environments with seeds below this, evaluation with this and higher ones."""


class Member(NamedTuple):
    """One agent: the index of its environment, the index of its setting in that environment, and its seed."""

    environment: int
    setting: int
    seed: int


class Training(Trainee):
    """The agents and their environments, which advance a round at a time. Files are left to others."""

    def __init__(
        self,
        settings: Sequence[Sequence[SAC]],
        specs: Sequence[EnvironmentSpec],
        seeds: Sequence[int],
        num_envs: int,
        capacity_rounds: int,
        random_steps: int,
        num_workers: int | None = None,
        annealed_share: float = 0.0,
    ):
        """Agents for every environment, each of its settings, and every seed.

        Over the last `annealed_share` of the `capacity_rounds`, the learning rate falls to zero.
        """
        self.specs, self.num_envs = tuple(specs), num_envs
        self.members = [
            Member(environment, setting, seed)
            for environment, own in enumerate(settings)
            for setting, seed in itertools.product(range(len(own)), seeds)
        ]
        self.sac: SAC = jax.tree.map(
            lambda *values: jnp.asarray(values, jnp.float32),
            *(settings[member.environment][member.setting] for member in self.members),
        )
        self._total_rounds, self._annealed_rounds = capacity_rounds, annealed_share * capacity_rounds
        self.sizes = [Layout(*environments.spaces(spec)) for spec in specs]
        self.padded = Layout(*(max(size) for size in zip(*self.sizes, strict=True)))
        self.random_rounds = -(-random_steps // num_envs)
        self.num_rounds = 0
        # Agents vary fastest: neighbours share a worker, so that each worker has some of every kind of environment.
        member_specs = [specs[member.environment] for member in self.members]
        self.simulators = Simulators(member_specs * num_envs, num_workers)
        self.close = self.simulators.close
        self.on_snapshot: Callable[[int, Arrays], object] = lambda num_rounds, snapshot: None

        self._keys = jax.vmap(jax.random.key)(jnp.asarray([member.seed for member in self.members], jnp.uint32))
        action_dims = np.array([self.sizes[member.environment].action_dim for member in self.members])
        self._mask = jnp.asarray(np.arange(self.padded.action_dim)[None] < action_dims[:, None], jnp.float32)
        counts = [len(own) * len(seeds) for own in settings]
        self.state: State = _init(self.sac, self.sizes, counts, self.padded, self._keys)
        self.metrics: Metrics | None = None
        self._replay = jnp.zeros((len(self.members), capacity_rounds * num_envs, self.padded.width))
        self._obs: np.ndarray | None = None
        self._last_rows: np.ndarray | None = None
        self._new_rows: list[np.ndarray] = []
        self._seconds = dict.fromkeys(("simulating", "learning", "total"), 0.0)
        self._rounds_timed = 0
        self._ended = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.members)

    def advance(self, position: int, steps: int) -> dict[str, Any]:
        """Play the next rounds. The metrics are in the snapshots instead, beside the evaluations."""
        for _ in range(steps):
            self.play_round()
        return {}

    def play_round(self) -> None:
        """`num_envs` steps of every agent, and as many updates once the random steps are over."""
        began = time.perf_counter()
        timed = self.metrics is not None  # before the first updates there is nothing to time, and they compile
        shape = (self.num_envs, len(self.members))
        if self._obs is None:
            self._obs = self.simulators.reset(self._reset_seeds()).reshape(*shape, -1)
        number = np.int32(self.num_rounds)
        if self.num_rounds < self.random_rounds:
            pending = _explore(self.num_envs, self._mask, self._keys, number)
        else:
            pending = _act(self.state.policy.params, self._obs, self._mask, self._keys, number)
        action = np.asarray(pending)  # waits for the updates of the round before, too
        self.simulators.send(action.reshape(-1, self.padded.action_dim))
        if self._last_rows is not None:
            if self.num_rounds < self.random_rounds:
                self._replay = _absorb(self._replay, self._last_rows, number)
            else:
                self.state, self._replay, self.metrics = _learn(
                    self.sac, self.state, self._replay, self._last_rows, self._mask, self._keys, number, self._pace()
                )
        started = time.perf_counter()
        step = self.simulators.receive()
        received = time.perf_counter()

        rows = np.empty((*shape, self.padded.width), np.float32)
        rows[..., self.padded.obs] = self._obs
        rows[..., self.padded.action] = action
        rows[..., self.padded.next_obs] = step.next_obs.reshape(*shape, -1)
        rows[..., self.padded.reward] = step.reward.reshape(shape)
        end = np.where(step.terminal, TERMINAL, np.where(step.timeout, TIMEOUT, RUNNING))
        rows[..., self.padded.end] = end.reshape(shape)
        self._obs = step.obs.reshape(*shape, -1)
        self._last_rows = rows
        self._new_rows.append(rows)
        self.num_rounds += 1
        ended = time.perf_counter()
        if timed:
            self._seconds["learning"] += started - began
            self._seconds["simulating"] += received - started
            self._seconds["total"] += ended - self._ended  # with what was done between the rounds
            self._rounds_timed += 1
        self._ended = ended

    def _pace(self) -> np.float32:
        left = self._total_rounds - self.num_rounds
        return np.float32(min(1.0, left / self._annealed_rounds) if self._annealed_rounds else 1.0)

    def resume_clock(self) -> float:
        """The time now, from which `speed` continues to count: what happened since the last round does not count."""
        self._ended = time.perf_counter()
        return self._ended

    def _reset_seeds(self) -> list[int]:
        """A reset seed for every environment, from its member's seed and the round in which it starts."""
        sequences = [np.random.SeedSequence((member.seed, self.num_rounds)) for member in self.members]
        seeds = np.stack([sequence.generate_state(self.num_envs) for sequence in sequences], axis=1)
        return (seeds.ravel() % MAX_TRAINING_SEED).tolist()

    def take_rows(self) -> Float[np.ndarray, "rounds envs members width"]:
        """The rows of the rounds since the last call."""
        rows, self._new_rows = self._new_rows, []
        shape = (0, self.num_envs, len(self.members), self.padded.width)
        return np.stack(rows) if rows else np.zeros(shape, np.float32)

    def capture(self) -> Arrays:
        """The agents' arrays by name, the rows since the last call, and the environments where their state is told."""
        arrays = {**named_arrays(self.state), ROWS: self.take_rows()}
        states = self.simulators.capture()
        if states is None or self._obs is None:
            return arrays
        told = {f"{SIMULATOR}{place}": np.frombuffer(state, np.uint8) for place, state in enumerate(states)}
        return {**arrays, **told, OBS: self._obs}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Environments whose state it does not hold begin anew: see `goes_on`."""
        arrays = checkpoint.arrays
        self.state = fill(self.state, arrays)
        self.num_rounds = checkpoint.position
        self._obs = arrays.get(OBS)
        if self._obs is not None:
            width = self._obs.shape == (self.num_envs, len(self.members), self.padded.obs_dim)
            if not width or any(f"{SIMULATOR}{place}" not in arrays for place in range(len(self.simulators))):
                raise InputError("the checkpoint does not fit this run: the states of its environments")
            self.simulators.restore([arrays[f"{SIMULATOR}{i}"].tobytes() for i in range(len(self.simulators))])

    @property
    def goes_on(self) -> bool:
        """Whether the environments are amid their episodes; otherwise the next round resets them."""
        return self._obs is not None

    def restore_rows(self, segments: Iterable[np.ndarray]) -> None:
        """Fill the replay, piece by piece."""
        first = 0
        for rows in segments:
            if rows.shape[1:] != (self.num_envs, len(self.members), self.padded.width) or rows.dtype != np.float32:
                raise InputError(f"the checkpoint does not fit this run: a piece of the replay has shape {rows.shape}")
            flat = np.moveaxis(rows, 2, 0).reshape(len(self.members), -1, self.padded.width)
            self._replay = _insert(self._replay, flat, np.int32(first * self.num_envs))
            first += len(rows)
            self._last_rows = rows[-1]  # the next round writes them again, in the same place

    def policies(self) -> list[Group]:
        """Every environment's agents as they are now; `on_snapshot` is called first."""
        snapshot = self.snapshot()
        self.on_snapshot(self.num_rounds, snapshot)
        every = ((index, self.places(index)) for index in range(len(self.specs)))
        return [Group(places, self.policy(snapshot, index, places)) for index, places in every]

    def places(self, environment: int) -> list[int]:
        """Where the environment's agents are among all."""
        return [place for place, member in enumerate(self.members) if member.environment == environment]

    def snapshot(self) -> Arrays:
        """All members' policies, and what the last updates measured."""
        policy, metrics = jax.device_get((self.state.policy.params, self.metrics))
        named = {
            f"layers/{i}/{name}": array for i, layer in enumerate(policy) for name, array in layer._asdict().items()
        }
        if metrics is not None:
            named |= {f"metrics/{name}": array for name, array in metrics._asdict().items()}
        return {name: np.asarray(array) for name, array in named.items()}

    def fits(self, snapshot: Arrays) -> bool:
        """Whether this is a snapshot of agents like these."""

        def shapes(arrays: Arrays) -> dict[str, Any]:
            return {name: (array.shape, array.dtype) for name, array in arrays.items() if name.startswith("layers/")}

        measured = {array.shape for name, array in snapshot.items() if name.startswith("metrics/")}
        return shapes(snapshot) == shapes(self.snapshot()) and measured <= {(len(self.members),)}

    def policy(self, snapshot: Arrays, environment: int, rows: list[int]) -> Policy:
        """The policy of some of an environment's agents, given by their places, in its own sizes."""
        size = self.sizes[environment]
        heads = [*range(size.action_dim), *range(self.padded.action_dim, self.padded.action_dim + size.action_dim)]
        num_layers = len(self.sac.hidden) + 1
        kernels = [snapshot[f"layers/{i}/kernel"][rows] for i in range(num_layers)]
        biases = [snapshot[f"layers/{i}/bias"][rows] for i in range(num_layers)]
        kernels[0] = kernels[0][:, : size.obs_dim]
        kernels[-1], biases[-1] = kernels[-1][..., heads], biases[-1][..., heads]
        layers = tuple(Layer(*layer) for layer in zip(kernels, biases, strict=True))  # type: ignore[arg-type]
        network = TanhGaussian(layers, mean_limit=None)
        shift = np.zeros((len(rows), size.obs_dim), np.float32)
        return numpy_policy(network, shift, np.ones_like(shift), self.specs[environment])

    def speed(self) -> dict[str, Any]:
        """Steps per second of one agent, and where the time of a round went, over the rounds that learned."""
        total = self._seconds["total"] or 1.0
        simulating, learning = self._seconds["simulating"] / total, self._seconds["learning"] / total
        return {
            "steps_per_second": self._rounds_timed * self.num_envs / total,
            "num_members": len(self.members),
            "waiting_for_simulation": simulating,
            "waiting_for_learning": learning,
            "bound_by": "simulation" if simulating > learning else "learning",
        }


def _init(sac: SAC, sizes: Sequence[Layout], counts: Sequence[int], padded: Layout, keys: Array) -> State:
    """Every environment's agents, which stand together."""
    agents, first = [], 0
    for size, count in zip(sizes, counts, strict=True):
        own_sac, own_keys = jax.tree.map(operator.itemgetter(slice(first, first + count)), (sac, keys))
        agents.append(_init_agents(size, padded, own_sac, own_keys))
        first += count
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *agents)


@partial(jax.jit, static_argnums=(0, 1))
def _init_agents(size: Layout, padded: Layout, sac: SAC, keys: Array) -> State:
    """Compiled once per size: one program for all sizes takes minutes to compile on a GPU."""
    return jax.vmap(lambda sac, key: sac.init(jax.random.fold_in(key, 0), size, padded))(sac, keys)


def _stream(keys: Array, stream: int, number: Array) -> Array:
    """A key per member for one purpose in one round. Stream 0 initialises the networks."""
    return jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, stream), number))(keys)


@partial(jax.jit, static_argnums=0)
def _explore(num_envs: int, mask: Array, keys: Array, number: Array) -> Float[Array, "envs members action"]:
    explore = partial(SAC.explore, num_envs)
    return jax.vmap(explore, out_axes=1)(mask, _stream(keys, 1, number))


@jax.jit
def _act(policy: Any, obs: Array, mask: Array, keys: Array, number: Array) -> Float[Array, "envs members action"]:
    return jax.vmap(SAC.act, in_axes=(0, 1, 0, 0), out_axes=1)(policy, obs, mask, _stream(keys, 1, number))


@partial(jax.jit, donate_argnums=0)
def _insert(replay: Array, rows: Float[Array, "members rows width"], first: Array) -> Array:
    return jax.lax.dynamic_update_slice(replay, rows, (0, first, 0))


@partial(jax.jit, donate_argnums=0)
def _absorb(replay: Array, rows: Float[Array, "envs members width"], number: Array) -> Array:
    """Put the rows of the round before `number` behind those of the earlier rounds."""
    return _insert(replay, jnp.swapaxes(rows, 0, 1), (number - 1) * len(rows))


@partial(jax.jit, donate_argnums=(1, 2))
def _learn(
    sac: SAC, state: State, replay: Array, rows: Array, mask: Array, keys: Array, number: Array, pace: Array
) -> tuple[State, Array, Metrics]:
    """Absorb the last round's rows, then one update per step of a round. State and replay are changed in place."""
    replay = _absorb(replay, rows, number)
    sizes = {"num_rows": number * len(rows), "num_updates": len(rows)}
    state, metrics = jax.vmap(lambda a, s, r, k, m: a.advance(s, r, key=k, action_mask=m, pace=pace, **sizes))(
        sac, state, replay, _stream(keys, 2, number), mask
    )
    return state, replay, metrics


def measure_speed(
    name: str = "halfcheetah", seconds: float = 10.0, num_members: int = 1, num_envs: int = 16
) -> dict[str, Any]:
    """How fast `collect` trains here, compared with the rate of the same machine's matrix products.

    `ratio` divides the floating-point rate of the updates' matrix products by that of XLA's own products of the hidden
    size. Both are timed in turns, so that other work on the machine slows both alike.
    """
    sac = SAC()
    random_steps, capacity = 4 * sac.batch_size, 1_000_000 // num_envs
    with Training(
        [[sac]], [environments.resolve(name)], range(num_members), num_envs, capacity, random_steps
    ) as training:
        while training.num_rounds <= training.random_rounds + 1:
            training.play_round()
        product_rates, elapsed, rounds = [], 0.0, 0
        while elapsed < seconds:
            jax.block_until_ready(training.state)
            product_rates.append(_product_rate(sac.hidden[-1], num_members))
            began = training.resume_clock()
            while time.perf_counter() - began < seconds / 8:
                training.play_round()
                rounds += 1
            jax.block_until_ready(training.state)
            elapsed += time.perf_counter() - began
        updates = rounds * num_envs * num_members / elapsed
        flop, product_rate = sac.update_flop(training.sizes[0]), float(np.mean(product_rates))
        return {
            **training.speed(),
            "environment": name,
            "steps_per_second": updates / num_members,
            "updates_per_second": updates,
            "flop_per_update": flop,
            "flop_per_second": flop * updates,
            "product_flop_per_second": product_rate,
            "ratio": flop * updates / product_rate,
            "device": jax.devices()[0].device_kind,
        }


def _product_rate(size: int, num_members: int) -> float:
    """Floating-point operations per second of XLA's product of square matrices, one per member."""
    repeats = 200
    x = jax.random.normal(jax.random.key(0), (num_members, size, size)) / size**0.5
    _multiply(x, x, repeats).block_until_ready()
    began = time.perf_counter()
    for _ in range(5):
        _multiply(x, x, repeats).block_until_ready()
    return 5 * repeats * num_members * 2 * size**3 / (time.perf_counter() - began)


@partial(jax.jit, static_argnums=2)
def _multiply(x: Array, w: Array, repeats: int) -> Array:
    return jax.lax.fori_loop(0, repeats, lambda _, x: x @ w, x)
