"""`demosift bench rewards`: how long it takes to make the rewards of SEABO and OTR.

SEABO: the exact search for the nearest of ten thousand reference rows, in the dimensions of (s,a,s') of Hopper and of
Ant with 27 numbers. The limit is the plain matrix product of the same size, which writes every distance to memory; the
search does not, so it can be faster. The two take turns on pieces of the rows. CPU seconds, of all cores together,
depend less on what else the machine does. OTR: a few episodes of a thousand steps, against an expert's of a thousand.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Float64

from demosift.bench import check_out, write_with_tables
from demosift.files import provenance
from demosift.learning.neighbours import BLOCK, find_one
from demosift.learning.transport import costs_of_episodes

ROWS, REFERENCES, DIMENSIONS = (1_000_000,), 10_000, (25, 62)
PIECE = 49 * BLOCK  # rows, about a hundred thousand
EPISODES, STEPS, OBS_DIM = 8, 1_000, 11


@jax.jit
def product(
    reference: Float32[Array, "references columns"], columns: Float32[Array, "columns block"]
) -> Float32[Array, "references block"]:
    return reference @ columns


def clocks() -> Float64[np.ndarray, "2"]:
    """Seconds of the wall's clock, and of the CPU's."""
    return np.array([time.perf_counter(), time.process_time()])


def measure_search(num_rows: int, dimension: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((REFERENCES, dimension), dtype=np.float32)
    on_device = jnp.asarray(reference)
    searching = multiplying = np.zeros(2)
    find_one(reference[:1], reference)  # compiles
    product(on_device, jnp.zeros((dimension, BLOCK))).block_until_ready()
    for start in range(0, num_rows, PIECE):
        rows = rng.standard_normal((min(PIECE, num_rows - start), dimension), dtype=np.float32)
        began = clocks()
        find_one(rows, reference)
        searched = clocks()
        for block in range(0, len(rows), BLOCK):
            product(on_device, jnp.asarray(rows[block : block + BLOCK].T)).block_until_ready()
        searching, multiplying = searching + searched - began, multiplying + clocks() - searched
    return {
        "rows": num_rows,
        "references": REFERENCES,
        "dimension": dimension,
        "seconds": round(float(searching[0]), 1),
        "cpu_seconds": round(float(searching[1]), 1),
        "product_seconds": round(float(multiplying[0]), 1),
        "product_cpu_seconds": round(float(multiplying[1]), 1),
        "ratio": round(float(searching[1] / max(multiplying[1], 1e-9)), 2),
    }


def measure_transport() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    *episodes, expert = (
        np.cumsum(rng.standard_normal((STEPS, OBS_DIM)), axis=0).astype(np.float32) for _ in range(EPISODES + 1)
    )
    began = clocks()
    costs_of_episodes(episodes, [expert])
    seconds, cpu_seconds = clocks() - began
    return {
        "episodes": EPISODES,
        "steps": STEPS,
        "seconds": round(float(seconds), 2),
        "cpu_seconds": round(float(cpu_seconds), 2),
    }


def bench_rewards(rows: Sequence[int] | None = None, out: str | None = None) -> tuple[dict[str, Any], str]:
    """With `out`, a .json file, results are written there and the table beside it."""
    check_out(out)
    results = [measure_search(num_rows, dimension) for num_rows in rows or ROWS for dimension in DIMENSIONS]
    answer = {"search": results, "transport": measure_transport(), **provenance()}
    text = table(answer)
    if out is not None:
        write_with_tables(Path(out), answer, text)
    return answer, text


def table(answer: dict[str, Any]) -> str:
    lines = [
        "| rows | references | dimension | search, seconds | CPU seconds | product, seconds | CPU seconds | ratio |",
        "| --- |" + " --- |" * 7,
    ]
    for row in answer["search"]:
        sizes = f"| {row['rows']:,} | {row['references']:,} | {row['dimension']} "
        search, plain = (f"{row[f'{of}seconds']:.1f} | {row[f'{of}cpu_seconds']:.1f}" for of in ("", "product_"))
        lines.append(f"{sizes}| {search} | {plain} | {row['ratio']:.2f} |")
    moved = answer["transport"]
    return "\n".join(
        [
            *lines,
            "",
            f"Optimal transport of {moved['episodes']} episodes of {moved['steps']:,} steps onto one of the expert's: "
            f"{moved['seconds']:.1f} seconds, {moved['cpu_seconds']:.1f} of the CPU's.",
        ]
    )
