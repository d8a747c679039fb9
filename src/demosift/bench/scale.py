"""`demosift bench scale`: how the time and memory of `demosift score` grow with the supplementary set.

Random numbers in Hopper's sizes are written to a temporary folder, block by block, and scored with the default scorer
in a process of its own: by each engine, whose results must be the same bytes. To show what limits it, each stage inside
the process is timed, and so is reading the file's states and actions alone.

    connect   to a Ray cluster, or starting one on this machine
    survey    reading every row, to fingerprint it and measure the states
    plan      finding equal rows, folds, and the sample to train on
    train     the models, on at most 262,144 supplementary rows
    weigh     reading every row again, to weigh it
    apply     the part of that spent in compiled functions: networks and nearest neighbours (not known of a cluster)
    judge     diagnosis and what the page shows
    write     the folder
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from demosift.bench import check_out, write_with_tables
from demosift.cluster import Engine
from demosift.data import open_rows
from demosift.files import atomic_write, provenance
from demosift.processes import peak_bytes
from demosift.sift.scorers import DEFAULT
from demosift.types import InputError

OBS_DIM, ACTION_DIM, EPISODE = 11, 3, 1_000
EXPERT_ROWS = 1_000
BLOCK = 262_144
ROWS = (100_000, 1_000_000, 20_000_000)
STAGES = ("connect", "survey", "plan", "train", "weigh", "apply", "judge", "write")


def write_rows(path: Path, num_rows: int, seed: int) -> None:
    """Write a native file. The expert's actions follow from the states; elsewhere two episodes of three have noise."""
    rng = np.random.default_rng(seed)
    kernel = np.random.default_rng(0).standard_normal((OBS_DIM, ACTION_DIM)).astype(np.float32)
    columns = {"observations": OBS_DIM, "actions": ACTION_DIM, "next_observations": OBS_DIM}
    with atomic_write(path) as temporary, h5py.File(temporary, "w") as file:
        for name, width in columns.items():
            file.create_dataset(name, (num_rows, width), np.float32)
        for name, dtype in (("rewards", np.float32), ("terminals", bool), ("timeouts", bool)):
            file.create_dataset(name, (num_rows,), dtype)
        for start in range(0, num_rows, BLOCK):
            rows = slice(start, min(start + BLOCK, num_rows))
            index = np.arange(rows.start, rows.stop)
            obs = rng.standard_normal((len(index), OBS_DIM), dtype=np.float32)
            noise = rng.uniform(-1, 1, (len(index), ACTION_DIM)).astype(np.float32)
            noisy = (index // EPISODE % 3 > 0)[:, None] & (seed > 0)  # two episodes of three; none of the expert's
            file["observations"][rows] = file["next_observations"][rows] = obs  # type: ignore[index]
            file["actions"][rows] = np.where(noisy, noise, np.tanh(obs @ kernel))  # type: ignore[index]
            file["timeouts"][rows] = (index + 1) % EPISODE == 0  # type: ignore[index]
            # Rows that were never written would be refused: a header may not claim more than there is.
            file["rewards"][rows] = file["terminals"][rows] = 0  # type: ignore[index]


def read_seconds(path: Path) -> float:
    """The seconds to read every state and action once, which scoring must do twice."""
    began = time.perf_counter()
    for obs, action in open_rows(path).blocks(BLOCK):
        assert len(obs) == len(action)
    return time.perf_counter() - began


def score_and_tell(expert: str, supplementary: str, out: str, scorer: str, engine: Engine, address: str | None) -> None:
    """Run in the measured process: score, then print the seconds of each stage, and what was used."""
    from demosift.sift import scoring, weighing

    apply, applied = weighing.features_by_models, 0.0

    def timed(*given: Any) -> Any:
        nonlocal applied
        began = time.perf_counter()
        try:
            return apply(*given)
        finally:
            applied += time.perf_counter() - began

    weighing.features_by_models = timed
    try:
        scored = scoring.score(
            expert, supplementary, out=out, scorer=scorer, progress=False, engine=engine, address=address
        )
    except InputError as error:
        print(json.dumps({"refused": str(error)}))
        return
    stages = {**scored.seconds, "apply": applied if engine == "local" else None}
    told = {"cpu_seconds": time.process_time(), "peak_bytes": peak_bytes(), "workers": dict(scored.workers)}
    print(json.dumps({"stages": stages, **told}))


def measure_rows(
    folder: Path, num_rows: int, scorer: str, engines: Sequence[Engine], address: str | None
) -> list[dict[str, Any]]:
    """The same pile, scored by each engine."""
    expert, supplementary, out = folder / "expert.hdf5", folder / f"{num_rows}.hdf5", folder / "scores"
    if not expert.exists():
        write_rows(expert, EXPERT_ROWS, 0)
    write_rows(supplementary, num_rows, 1)
    reading, answers, digests = read_seconds(supplementary), [], []
    for engine in engines:
        found = measure_score(expert, supplementary, out, scorer, engine, address if engine == "ray" else None)
        size = round(supplementary.stat().st_size / 1e9, 3)
        answers.append({"rows": num_rows, "file_gigabytes": size, "read_seconds": round(reading, 1), **found})
        digests.append({path.name: file_digest(path) for path in out.iterdir()})
        shutil.rmtree(out)
        if digests[-1] != digests[0]:
            raise RuntimeError(f"{num_rows} rows: the results of {engine} and {engines[0]} are not the same bytes")
    supplementary.unlink()
    return answers


def measure_score(
    expert: Path, supplementary: Path, out: Path, scorer: str, engine: Engine, address: str | None
) -> dict[str, Any]:
    given = [*map(str, (expert, supplementary, out)), scorer, engine, address]
    code = "from demosift.processes import end_with_parent; end_with_parent(0)\n"
    code += f"from demosift.bench.scale import score_and_tell; score_and_tell(*{given})"
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdin, process.stdout as pipe:
        told = pipe.read()
    if process.wait():
        raise RuntimeError(f"scoring {supplementary} on {engine} failed with {process.returncode}")
    found = json.loads(told)
    if "refused" in found:
        raise InputError(found["refused"])
    workers = found["workers"]
    return {
        "engine": engine,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(found["cpu_seconds"] + workers.get("cpu_seconds", 0.0), 1),
        "peak_gigabytes": round(found["peak_bytes"] / 1e9, 3),
        "worker_gigabytes": round(workers["peak_bytes"] / 1e9, 3) if workers else None,
        "tasks": workers.get("tasks"),
        "stages": {stage: rounded(found["stages"][stage]) for stage in STAGES},
    }


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def bench_scale(
    rows: Sequence[int] | None = None,
    out: str | None = None,
    scorer: str = DEFAULT,
    engines: Sequence[Engine] = ("local",),
    address: str | None = None,
    folder: str | None = None,
) -> tuple[dict[str, Any], str]:
    """With `out`, a .json file, results are written there and the table beside it. Piles are written below `folder`."""
    check_out(out)
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder")
    with tempfile.TemporaryDirectory(prefix="demosift-scale-", dir=folder) as place:
        sizes = [measure_rows(Path(place), num_rows, scorer, engines, address) for num_rows in rows or ROWS]
    results = [row for size in sizes for row in size]
    answer, text = {"results": results, "scorer": scorer, **provenance()}, table(results)
    if out is not None:
        write_with_tables(Path(out), answer, text)
    return answer, text


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| rows | engine | file, GB | seconds | CPU seconds | peak memory, GB | of a worker | reading once | "
        + " | ".join(STAGES)
        + " |",
        "| --- |" + " --- |" * (7 + len(STAGES)),
    ]
    for row in results:
        stages = " | ".join(number(row["stages"][stage], 1) for stage in STAGES)
        lines.append(
            f"| {row['rows']:,} | {row['engine']} | {row['file_gigabytes']:.2f} | {row['seconds']:.0f} | "
            f"{row['cpu_seconds']:.0f} | {row['peak_gigabytes']:.2f} | {number(row['worker_gigabytes'], 2)} | "
            f"{row['read_seconds']:.1f} | {stages} |"
        )
    return "\n".join(lines)


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
