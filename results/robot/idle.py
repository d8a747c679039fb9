"""Are idle starts found? How many rows of idle starts `demosift filter --frames` cuts, and how many others as idle.

`python results/robot/idle.py --piles DIR` reads or makes the mixed piles of curation.py in DIR. Of each, 7.5% of the
episodes stand still at their start; `infos/origin` says for how long. Rows that are cut for their low weight are no
part of this. Writes idle.json beside this file and prints a table.
"""

import argparse
from pathlib import Path

import numpy as np
from curation import open_task

from demosift.data.rows import DatasetRows
from demosift.files import write_json
from demosift.sift.cuts import find_cuts, rows_left
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.types import Dataset


def idle_starts(pile: Dataset) -> np.ndarray:
    """The rows at the start of an episode during which its operator did nothing."""
    assert pile.origin is not None
    idle = np.array(pile.origin.names)[pile.origin.code] == "idle"
    found = np.zeros(len(pile), bool)
    for start, end in zip(pile.episode_starts, pile.episode_ends, strict=True):
        own = idle[start:end]
        found[start : start + (len(own) if own.all() else int(np.argmin(own)))] = True
    return found


def measure(pile: Dataset) -> dict[str, float]:
    assert pile.origin is not None
    true = idle_starts(pile)
    idle = np.array(pile.origin.names)[pile.origin.code] == "idle"
    cut = ~rows_left(find_cuts(DatasetRows(pile), np.ones(len(pile)), 0.5), pile.episode_ends)
    at_all = int(idle.sum())
    return {
        "rows": len(pile),
        "idle_start_rows": int(true.sum()),
        "found": round(float(cut[true].mean()), 4) if true.any() else float("nan"),
        "others_cut": round(float(cut[~idle].mean()), 4),
        "later_idle_rows": at_all - int(true.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=[f"{name}/mixed" for name in SCRIPTED])
    parser.add_argument("--piles", type=Path, default=Path("piles"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pile", type=int, default=200, help="episodes of a pile")
    options = parser.parse_args()
    results = {}
    for name in options.tasks:
        pile = open_task(name, options.piles, options.seed, options.pile).supplementary
        assert pile is not None
        results[name] = measure(pile)
        print(name, results[name], flush=True)
    write_json(Path(__file__).with_name("idle.json"), results)
    print("| pile | idle starts, rows | found | others cut |\n| --- | --- | --- | --- |")
    for name, one in results.items():
        print(f"| {name} | {one['idle_start_rows']:,} | {one['found']:.1%} | {one['others_cut']:.1%} |")
    mean = {key: np.mean([one[key] for one in results.values()]) for key in ("found", "others_cut")}
    print(f"| mean of {len(results)} | | **{mean['found']:.1%}** | **{mean['others_cut']:.1%}** |")


if __name__ == "__main__":
    main()
