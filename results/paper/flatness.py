"""Have the curves settled? Each row's score over the quarters of training: `python results/paper/flatness.py`."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from demosift.results.cell import cell_run, read_cell

quarters: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
for path in sorted(Path(__file__).with_name("cells").glob("*.json")):
    run = cell_run(read_cell(path, path.name), path.name)
    (member,) = run.members
    assert member.score is not None
    penalty = member.settings.get("gradient_penalty")
    row = run.config["algorithm"] + ("" if penalty is None else f" GP={penalty:g}")
    parts = [float(part.mean()) for part in np.array_split(member.score, 4)]
    quarters[run.config["task"].partition("/")[2], row].append(parts)
for (task, row), values in sorted(quarters.items()):
    print(f"{task:13} {row:15}", *(f"{100 * value:5.1f}" for value in np.mean(values, axis=0)))
