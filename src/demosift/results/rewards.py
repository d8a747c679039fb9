"""The rewards that a method made for the rows of its data, kept in the run's folder so that a resumed run has the same.

`rewards.npy`: a float32 number for each row of the union, expert rows first.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float32

from demosift.files import Unusable, atomic_folder, open_regular

REWARDS = "rewards.npy"


def write_rewards(folder: Path, reward: Float32[np.ndarray, "rows"]) -> None:
    with atomic_folder(folder, reward.nbytes) as temporary:
        np.save(temporary / REWARDS, reward, allow_pickle=False)


def read_rewards(folder: Path, num_rows: int) -> Float32[np.ndarray, "rows"]:
    """Refuses what is not a finite number for each of the rows."""
    path = folder / REWARDS
    try:
        with open_regular(path) as file:
            reward = np.lib.format.read_array(file, allow_pickle=False, max_header_size=1_000)
    except (OSError, ValueError, EOFError) as error:
        raise Unusable(f"{path}: cannot be read; choose another folder") from error
    if reward.dtype != np.float32 or reward.shape != (num_rows,) or not np.isfinite(reward).all():
        raise Unusable(f"{path}: not a finite number for each of {num_rows} rows; choose another folder")
    return reward
