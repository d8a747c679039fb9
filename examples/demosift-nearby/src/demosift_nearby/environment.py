"""A point that must reach a goal. Its name on the command line is `demosift_nearby.environment:Reach-v0`."""

from typing import Any

import gymnasium
import numpy as np


class Reach(gymnasium.Env):
    """The observation is where the point and its goal are; the action moves the point."""

    observation_space = gymnasium.spaces.Box(-4, 4, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place[:2] = np.clip(self.place[:2] + 0.5 * action, -4, 4)
        distance = float(np.linalg.norm(self.place[:2] - self.place[2:]))
        return self.place.copy(), -distance, distance < 0.1, False, {}


# Gymnasium's own way: importing this module registers the id.
gymnasium.register("Reach-v0", entry_point="demosift_nearby.environment:Reach", max_episode_steps=20)
