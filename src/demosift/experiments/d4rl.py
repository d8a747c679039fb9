"""D4RL's files as data of a grid: the setting in which SEABO and OTR report numbers.

The supplementary set is a D4RL v2 file as it is, `hopper_medium_expert-v2.hdf5`. The expert set is the trajectory of
the same file that has the largest return, or the best few; the file keeps them, as it does there.
"""

from pathlib import Path
from typing import Any

import numpy as np

from demosift.data import read_dataset
from demosift.data.episodes import Episodes, choose_episodes
from demosift.types import Demonstrations, InputError

RECIPE = "d4rl-"  # before the dataset's name: a recipe whose rows are a file's
ENVS = ("halfcheetah", "hopper", "walker2d")  # Ant's v2 observations have 111 numbers, of which demosift's Ant has 27
DATASETS = ("medium", "medium-replay", "medium-expert")  # those that papers agree to compare on
KNOWN = (*DATASETS, "random", "full-replay", "expert")


def file_name(env: str, dataset: str) -> str:
    """D4RL's own."""
    return f"{env}_{dataset.replace('-', '_')}-v2.hdf5"


def read_d4rl(folder: Path, env: str, recipe: str, experts: int) -> tuple[Demonstrations, dict[str, Any]]:
    """The sets, and what a result records about how they were made."""
    path = folder / file_name(env, recipe.removeprefix(RECIPE))
    whole = read_dataset(path)
    if whole.num_episodes < experts:
        raise InputError(f"{path}: has {whole.num_episodes} episodes, but {experts} are to be the expert's")
    returns = whole.returns()
    best = np.argsort(-returns, kind="stable")[:experts]
    recipe_told = {
        "file": path.name,
        "expert": "the trajectories of the file with the largest returns",
        "drawn": {"expert": best.tolist()},
        "expert_returns": returns[best].round(4).tolist(),
    }
    expert = choose_episodes(whole, np.arange(whole.num_episodes), Episodes.of(best.tolist()))
    return Demonstrations(expert, whole), recipe_told
