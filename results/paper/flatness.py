"""Have the curves settled? Each row's score over the quarters of training: `python results/paper/flatness.py`."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

quarters: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
for path in sorted(Path(__file__).with_name("cells").glob("*.json")):
    cell = json.loads(path.read_text())
    config, reference = cell["config"], cell["reference"]
    returns = np.array([np.mean(row["returns"]) for row in cell["evaluations"]])
    scores = (returns - reference["random"]) / (reference["expert"] - reference["random"])
    penalty = config["settings"].get("gradient_penalty")
    row = config["method"] + ("" if penalty is None else f" GP={penalty:g}")
    quarters[config["task"].partition("/")[2], row].append([float(part.mean()) for part in np.array_split(scores, 4)])
for (task, row), values in sorted(quarters.items()):
    print(f"{task:13} {row:15}", *(f"{100 * value:5.1f}" for value in np.mean(values, axis=0)))
