"""`demosift bench`: how fast training runs, as a fraction of what this machine's matrix products allow.

For each algorithm the matrix-product FLOPs of one iteration are counted on paper (its method `work`;
benchmarks/README.md has the reasoning), and the rate of XLA's own dot is measured in the same run at the same shapes.
The two give a bound. The result is the ratio of the measured speed to that bound: unlike seconds, it carries over
between machines.
"""

import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from demosift.algorithms import REGISTRY, Algorithm
from demosift.bench import check_out, known, write_with_tables
from demosift.data.normaliser import Normaliser
from demosift.files import provenance, read_json
from demosift.learning.cohort import Cohort
from demosift.learning.members import Precision, check_precision, every_member, init_members, stack_members
from demosift.simulation.cores import core_threads
from demosift.types import Dataset, Demonstrations, Transitions

OBS_DIM, ACTION_DIM = 11, 3  # Hopper's
EXPERT_ROWS, SUPPLEMENTARY_ROWS = 1_000, 15_000  # the noisy-expert task's
LATE = 1_000_000  # the iteration that is measured: methods with stages are in their last, which `work` counts


def interleave(calls: Mapping[Any, Callable[[], Any]], seconds: float) -> dict[Any, Float[np.ndarray, "rounds"]]:
    """Seconds of each call, measured in turns, so that a busy moment of the machine affects all of them alike."""
    for call in calls.values():  # compiles
        jax.block_until_ready(call())
    times = {name: [] for name in calls}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(next(iter(times.values()))) < 3:
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in times.items()}


@functools.partial(jax.jit, static_argnames="repeats")
def products(x: Float[Array, "*members rows n"], w: Float[Array, "*members n n"], repeats: int) -> Array:
    """The three products of a training step and nothing else: forward, backward, weight gradient. `w` is orthogonal."""

    def body(_: Array | int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden = carry[0] @ w
        back = hidden @ jnp.swapaxes(w, -1, -2)
        return back, jnp.swapaxes(back, -1, -2) @ hidden

    return jax.lax.fori_loop(0, repeats, body, (x, jnp.zeros_like(w)))[1]


def matmul_call(
    rows: int, width: int, members: int, precision: Precision = "float32"
) -> tuple[Callable[[], Any], float]:
    """XLA's dot at training's shapes, and its FLOPs. It is batched except on a CPU, where members have a core each."""
    key = jax.random.key(0)
    w = jnp.linalg.qr(jax.random.normal(key, (width, width)))[0]
    x = jax.random.normal(key, (rows, width))
    cpu = jax.default_backend() == "cpu"
    if not cpu:
        x, w = (jnp.broadcast_to(array, (members, *array.shape)) + 0.0 for array in (x, w))
    x, w = (array.astype(precision) for array in (x, w))
    flops = 3 * 2 * rows * width * width * members
    repeats = calls_per_round(flops)
    if not cpu or members == 1:
        return lambda: products(x, w, repeats), flops * repeats
    threads, call = core_threads(), lambda _: products(x, w, repeats).block_until_ready()
    return lambda: list(threads.map(call, range(members))), flops * repeats


def calls_per_round(flops: float) -> int:
    """Calls for about a tenth of a second on two cores; on a GPU enough to hide the launch."""
    return min(1000, max(10, int(1.5e10 / flops))) if jax.default_backend() == "cpu" else 200


def synthetic_data() -> Demonstrations:
    """Random numbers in the sizes of hopper/noisy-expert: speed does not depend on the values."""
    rng = np.random.default_rng(0)

    def dataset(rows: int) -> Dataset:
        obs, next_obs = (rng.standard_normal((rows, OBS_DIM)).astype(np.float32) for _ in range(2))
        action = rng.uniform(-1, 1, (rows, ACTION_DIM)).astype(np.float32)
        transitions = Transitions(obs, action, np.zeros(rows, np.float32), next_obs, np.zeros(rows, bool))
        return Dataset(transitions, timeout=np.arange(1, rows + 1) % 1000 == 0)

    return Demonstrations(dataset(EXPERT_ROWS), dataset(SUPPLEMENTARY_ROWS))


def measure(algorithm: Algorithm, num_members: int, seconds: float, precision: Precision = "float32") -> dict[str, Any]:
    """The median iterations per second of one algorithm, all members together, and the bound measured beside it."""
    data, normaliser = synthetic_data(), Normaliser.identity(OBS_DIM)
    members = stack_members(every_member([algorithm], range(num_members), [data], [normaliser]))
    cohort = Cohort(members, init_members(members), precision)
    work = algorithm.work()
    flops = sum(w.flops for w in work)
    steps = calls_per_round(flops * num_members)
    products = {w.rows: matmul_call(w.rows, algorithm.hidden[0], num_members, precision) for w in work}
    calls = {rows: call for rows, (call, _) in products.items()}
    times = interleave({"chunk": lambda: cohort.advance(LATE, steps), **calls}, seconds)
    least = sum(w.flops * times[w.rows] / products[w.rows][1] for w in work)  # seconds of the products alone, by round
    taken = times["chunk"] / (steps * num_members)
    return {
        "algorithm": algorithm.name,
        "members": num_members,
        "precision": precision,
        "member_iterations_per_second": round(float(1.0 / np.median(taken)), 1),
        "megaflop_per_iteration": round(flops / 1e6, 1),
        "matmul_gigaflops": round(float(flops / np.median(least)) / 1e9, 1),
        "bound": round(float(1.0 / np.median(least)), 1),
        "ratio": round(float(np.median(least / taken)), 3),
    }


def bench(
    names: Sequence[str] | None,
    members: Sequence[int],
    seconds: float = 2.0,
    collect: bool = False,
    precisions: Sequence[Precision] = ("float32",),
    out: str | None = None,
) -> tuple[dict[str, Any], str]:
    """With `out`, a .json file, every row is written there once it is measured, and the table beside it.

    Rows that the file holds are not measured again if commit, versions and device are still the same.
    """
    check_out(out)
    for precision in precisions:
        check_precision(precision)
    where = {"device": jax.devices()[0].device_kind, **provenance()}
    found = kept_rows(out, where)
    answer: dict[str, Any] = {**where, "training": []}
    algorithms = known("algorithm", names, REGISTRY) if names else REGISTRY.loaded()
    for precision, name, count in itertools.product(precisions, algorithms, members):
        row = found.get((precision, name, count)) or measure(REGISTRY[name](), count, seconds, precision)
        answer["training"].append(row)
        keep(out, answer)
        if sys.stderr.isatty():
            print(f"{name}, {count} members: {row['member_iterations_per_second']:,.0f} it/s", file=sys.stderr)
    if collect:
        from demosift.sac.training import measure_speed

        answer["collect"] = measure_speed("halfcheetah", seconds=max(20.0, seconds))
        keep(out, answer)
    return answer, table(answer)


def kept_rows(out: str | None, where: Mapping[str, Any]) -> dict[tuple[str, str, int], dict[str, Any]]:
    if out is None or not Path(out).exists():
        return {}
    before = read_json(Path(out))
    if not isinstance(before, dict) or any(before.get(key) != value for key, value in where.items()):
        return {}
    return {(row["precision"], row["algorithm"], row["members"]): row for row in before.get("training", [])}


def keep(out: str | None, answer: Mapping[str, Any]) -> None:
    if out is not None:
        write_with_tables(Path(out), answer, table(answer))


def table(answer: Mapping[str, Any]) -> str:
    """In Markdown. Rates are those of all members together."""
    columns = ("algorithm", "members", "precision", "member-iterations/s", "MFLOP", "dot, GFLOP/s", "bound", "ratio")
    lines = [
        f"{answer['device']}: iterations of all members per second, against what its products allow.",
        "",
        "| " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * (len(columns) - 1),
    ]
    for row in answer["training"]:
        who = f"| {row['algorithm']} | {row['members']} | {row['precision']} "
        rate = f"| {row['member_iterations_per_second']:,.0f} | {row['megaflop_per_iteration']:,.0f} "
        lines.append(f"{who}{rate}| {row['matmul_gigaflops']:,.0f} | {row['bound']:,.0f} | {row['ratio']:.2f} |")
    if "collect" in answer:
        lines += ["", describe_collect(answer["collect"])]
    return "\n".join(lines)


def describe_collect(speed: Mapping[str, Any]) -> str:
    return (
        f"collect {speed['environment']}: {speed['steps_per_second']:,.0f} steps/s, bound by {speed['bound_by']} "
        f"(waiting for simulation {speed['waiting_for_simulation']:.0%}, for learning "
        f"{speed['waiting_for_learning']:.0%}); updates at {speed['flop_per_second'] / 1e9:,.0f} of "
        f"{speed['product_flop_per_second'] / 1e9:,.0f} GFLOP/s, ratio {speed['ratio']:.2f}"
    )
