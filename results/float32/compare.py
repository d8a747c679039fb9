"""Does bf16 change the scores? `python results/float32/compare.py`

Cells of `results/paper` beside those of this folder, which were trained in float32 on the same data, both averaged over
iterations 110,000 to 200,000.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from demosift.results.cell import cell_run, read_cell

Key = tuple[str, str, str]
SPAN = range(110_000, 200_001, 10_000)


def scores(folder: Path, precision: str) -> dict[Key, tuple[str, float]]:
    """Row and averaged score of every cell, by its task, its data and its algorithm's settings."""
    found = {}
    for path in folder.glob("*.json"):
        cell = read_cell(path, path.name)
        config = cell["config"]
        if config.get("precision", "float32") != precision:
            continue
        (member,) = cell_run(cell, path.name).members
        assert member.score is not None
        score = member.score[np.isin(member.iteration, SPAN)].mean()
        penalty = config["settings"].get("gradient_penalty")
        row = config["method"] + ("" if penalty is None else f" GP={penalty:g}")
        found[row, cell["data"]["sha256"], json.dumps(config["settings"])] = (row, 100 * float(score))
    return found


here = Path(__file__).parent
float32, bf16 = scores(here / "cells", "float32"), scores(here.parent / "paper" / "cells", "bfloat16")
pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
for key, (row, score) in float32.items():
    pairs[row].append((score, bf16[key][1]))
pairs["all"] = [pair for row in list(pairs) for pair in pairs[row]]
for row, both in sorted(pairs.items()):
    single, half = np.array(both).T
    difference = half - single
    error = np.std(difference, ddof=1) / np.sqrt(len(both))
    means = f"{single.mean():5.1f}  {half.mean():5.1f}  {difference.mean():+5.1f} ± {error:.1f}"
    print(f"{row:12} {len(both):3} cells  {means}")
