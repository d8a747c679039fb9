"""`demosift bench scale`: how the time and memory of `demosift score` grow with the supplementary set.

Random numbers in Hopper's sizes are written to a temporary folder, block by block, and scored with the default scorer
in a process of its own. To show what limits it, each stage inside the process is timed, and so is reading the file's
states and actions alone.

    survey    reading every row, to fingerprint it and measure the states
    plan      finding equal rows, folds, and the sample to train on
    train     the models, on at most 262,144 supplementary rows
    weigh     reading every row again, to weigh it
    apply     the part of that spent in compiled functions: networks and nearest neighbours
    judge     diagnosis and what the page shows
    write     the folder
"""

import json
import os
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
from demosift.data import open_rows
from demosift.files import atomic_write, provenance
from demosift.sift.scorers import DEFAULT

OBS_DIM, ACTION_DIM, EPISODE = 11, 3, 1_000
EXPERT_ROWS = 1_000
BLOCK = 262_144
ROWS = (100_000, 1_000_000, 20_000_000)
STAGES = ("survey", "plan", "train", "weigh", "apply", "judge", "write")


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


def read_seconds(path: Path) -> float:
    """The seconds to read every state and action once, which scoring must do twice."""
    began = time.perf_counter()
    for obs, action in open_rows(path).blocks(BLOCK):
        assert len(obs) == len(action)
    return time.perf_counter() - began


def score_and_tell(expert: str, supplementary: str, out: str, scorer: str = DEFAULT) -> None:
    """Run in the measured process: score, then print the seconds of each stage."""
    from demosift.sift import scoring

    apply, applied = scoring.features_by_models, 0.0

    def timed(*given: Any) -> Any:
        nonlocal applied
        began = time.perf_counter()
        try:
            return apply(*given)
        finally:
            applied += time.perf_counter() - began

    scoring.features_by_models = timed
    scored = scoring.score(expert, supplementary, out=out, scorer=scorer, progress=False)
    print(json.dumps({**scored.seconds, "apply": applied}))


def measure_score(folder: Path, num_rows: int, scorer: str) -> dict[str, Any]:
    expert, supplementary, out = folder / "expert.hdf5", folder / f"{num_rows}.hdf5", folder / f"scores-{num_rows}"
    if not expert.exists():
        write_rows(expert, EXPERT_ROWS, 0)
    write_rows(supplementary, num_rows, 1)
    reading = read_seconds(supplementary)
    given = [*map(str, (expert, supplementary, out)), scorer]
    code = "from demosift.processes import end_with_parent; end_with_parent(0)\n"
    code += f"from demosift.bench.scale import score_and_tell; score_and_tell(*{given})"
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdin, process.stdout as pipe:
        told = pipe.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"scoring {num_rows} rows failed with {process.returncode}")
    stages = json.loads(told)
    answer = {
        "rows": num_rows,
        "file_gigabytes": round(supplementary.stat().st_size / 1e9, 3),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "read_seconds": round(reading, 1),
        "peak_gigabytes": round(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9, 3),
        "stages": {stage: round(stages[stage], 1) for stage in STAGES},
    }
    supplementary.unlink()
    return answer


def bench_scale(
    rows: Sequence[int] | None = None, out: str | None = None, scorer: str = DEFAULT
) -> tuple[dict[str, Any], str]:
    """With `out`, a .json file, results are written there and the table beside it."""
    check_out(out)
    with tempfile.TemporaryDirectory(prefix="demosift-scale-") as folder:
        results = [measure_score(Path(folder), num_rows, scorer) for num_rows in rows or ROWS]
    answer, text = {"results": results, "scorer": scorer, **provenance()}, table(results)
    if out is not None:
        write_with_tables(Path(out), answer, text)
    return answer, text


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| rows | file, GB | seconds | CPU seconds | peak memory, GB | reading once | " + " | ".join(STAGES) + " |",
        "| --- |" + " --- |" * (5 + len(STAGES)),
    ]
    for row in results:
        stages = " | ".join(f"{row['stages'][stage]:.1f}" for stage in STAGES)
        lines.append(
            f"| {row['rows']:,} | {row['file_gigabytes']:.2f} | {row['seconds']:.0f} | {row['cpu_seconds']:.0f} | "
            f"{row['peak_gigabytes']:.2f} | {row['read_seconds']:.1f} | {stages} |"
        )
    return "\n".join(lines)
