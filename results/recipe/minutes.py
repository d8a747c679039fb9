"""Score against minutes on two cores: `python results/recipe/minutes.py`, from committed files alone.

The paper's methods: every evaluation of the noisy expert in results/paper, mean over environments and seeds. Their
iterations become minutes by benchmarks/cpu.json, which has the arithmetic of an iteration and the share of the
machine's limit that is reached, and by the time of plain BC in benchmarks/recipe.json, so that all are of one machine.
Sift: the minutes and scores of benchmarks/recipe.json, scoring included.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from demosift.experiments.presets import row_facts
from demosift.report.drawing import PALETTE, figure, save
from demosift.results.cell import cell_run, read_cell

ROOT = Path(__file__).parents[2]
PENALTY = 1.0  # of WBCU and DemoDICE


def curves() -> dict[str, dict[int, float]]:
    """Mean normalised score of every method by iteration."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in (ROOT / "results/paper/cells").glob("*.json"):
        run = cell_run(read_cell(path, path.name), path.name)
        (member,) = run.members
        assert member.score is not None
        penalty = member.settings.get("gradient_penalty", PENALTY)
        if not run.config["task"].endswith("noisy-expert") or penalty != PENALTY:
            continue
        for iteration, score in zip(member.iteration.tolist(), member.score.tolist(), strict=True):
            found[run.config["algorithm"]][iteration].append(score)
    cells = {method: max(map(len, rows.values())) for method, rows in found.items()}
    return {
        method: {i: float(np.mean(values)) for i, values in sorted(rows.items()) if len(values) == cells[method]}
        for method, rows in found.items()
    }


def seconds_per_iteration() -> dict[str, float]:
    recipe = json.loads((ROOT / "benchmarks/recipe.json").read_text())
    plain = float(np.mean([row["plain_seconds"] for row in recipe["results"]])) / recipe["plain_iterations"]
    rows = json.loads((ROOT / "benchmarks/cpu.json").read_text())["training"]
    costs = {row["algorithm"]: row["megaflop_per_iteration"] / row["ratio"] for row in rows if row["members"] == 1}
    costs["oracle"] = costs["bc"]
    return {method: plain * cost / costs["bc"] for method, cost in costs.items()}


def main() -> None:
    about, cost = row_facts(), seconds_per_iteration()
    recipe = json.loads((ROOT / "benchmarks/recipe.json").read_text())["results"]
    with figure(7.2, 4.2) as drawn:
        axes = drawn.subplots()
        for method, curve in sorted(curves().items()):
            minutes = np.array(list(curve)) * cost[method] / 60
            score = 100 * np.array(list(curve.values()))
            width = max(1, len(score) // 10)
            smooth = np.convolve(score, np.ones(width) / width, mode="valid")
            colour = PALETTE[about[method].colour]
            style = ":" if method == "oracle" else "-"
            axes.plot(minutes[width - 1 :], smooth, style, color=colour, label=about[method].name)
            print(f"{method}: {minutes[-1]:.0f} minutes, {smooth[-1]:.0f}%")
        for networks, marker in ((1, "o"), (5, "D")):
            own = [row for row in recipe if row["ensemble"] == networks]
            minutes, score = (float(np.mean([row[name] for row in own])) for name in ("minutes", "score"))
            label = f"Sift, {networks} network{'s' if networks > 1 else ''}"
            axes.plot(minutes, 100 * score, marker, color=PALETTE[7], markersize=8, label=label)
            print(f"sift, {networks}: {minutes:.1f} minutes, {100 * score:.0f}%")
        axes.set(xscale="log", xlabel="minutes on two cores", ylabel="% of the expert", ylim=(0, 103))
        axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["0.5", "1", "2", "5", "10", "20", "50", "100"])
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        save(drawn, Path(__file__).with_name("minutes"))


if __name__ == "__main__":
    main()
