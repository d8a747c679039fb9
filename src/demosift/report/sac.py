"""The training curves of online SAC, as the paper draws them: `python -m demosift.report.sac FOLDER`.

FOLDER holds the `curve.jsonl` that `demosift collect` wrote for each environment, as ENV.jsonl; the figure goes there.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from jaxtyping import Float

from demosift.files import Unusable, mismatch, parse_json, read_text
from demosift.report.drawing import figure, save
from demosift.results.measured import is_count, is_number
from demosift.simulation.environments import reference_returns
from demosift.types import InputError

COLUMNS = 4
ROW = {"step": is_count, "setting?": is_count, "seed": is_count, "return_mean": is_number}
COLOUR = "#0a6aa8"


def read_curve(path: Path) -> tuple[Float[np.ndarray, "steps"], Float[np.ndarray, "steps agents"]]:
    """The steps of the evaluations, and the mean return of each agent in each."""
    by_step: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for number, line in enumerate(read_text(path, str(path)).splitlines(), 1):
        try:
            row = parse_json(line, str(path))
            if mismatch(row, ROW) is not None:
                raise Unusable(f"{path}: line {number}")
            by_step[row["step"]][row.get("setting", 0), row["seed"]] = float(row["return_mean"])
        except Unusable as error:
            raise InputError(f"{path}: line {number} is not a line of a SAC curve") from error
    agents = {agent for values in by_step.values() for agent in values}
    steps = sorted(step for step, values in by_step.items() if set(values) == agents)
    if not steps:
        raise InputError(f"{path}: holds no evaluation")
    return np.array(steps, float), np.array([[by_step[step][agent] for agent in sorted(agents)] for step in steps])


def draw(folder: str | Path) -> Path:
    """One panel per environment: each agent thin, their mean thick, the paper's expert dotted."""
    folder = Path(folder)
    curves = {path.stem: read_curve(path) for path in sorted(folder.glob("*.jsonl"))}
    if not curves:
        raise InputError(f"{folder}: no ENV.jsonl here")
    paper = reference_returns()["paper"]
    columns = min(len(curves), COLUMNS)
    lines = -(-len(curves) // columns)
    with figure(3.0 * columns, 2.6 * lines) as drawn:
        panels = drawn.subplots(lines, columns, squeeze=False).ravel()
        for unused in panels[len(curves) :]:
            unused.remove()
        for axes, (name, (steps, returns)) in zip(panels, curves.items(), strict=False):
            axes.plot(steps / 1e6, returns, color=COLOUR, alpha=0.3, linewidth=0.8)
            axes.plot(steps / 1e6, returns.mean(axis=1), color=COLOUR, linewidth=1.8)
            if name in paper:
                axes.axhline(paper[name]["expert"]["mean"], color="0.4", linestyle=":", linewidth=1)
            axes.set_title(name)
            axes.set_xlabel("million steps")
        drawn.supylabel("return", fontsize=9)
        save(drawn, folder / "sac-curves")
    return folder / "sac-curves.svg"


if __name__ == "__main__":
    print(draw(*sys.argv[1:]))
