"""Gymnasium environments that misbehave, for tests; importing this module (`own_environments:Id-v0`) registers them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FLAT = spaces.Box(-1, 1, (2,), np.float32)
UNIT = spaces.Box(-1, 1, (1,), np.float32)


class Still(gymnasium.Env):
    """Nothing ever happens, in the given spaces; with `fail_at`, that step raises."""

    def __init__(self, obs: spaces.Space = FLAT, action: spaces.Space = UNIT, fail_at: int | None = None):
        self.observation_space, self.action_space, self.fail_at, self.steps = obs, action, fail_at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.fail_at:
            raise ArithmeticError("the joints came apart")
        return np.zeros(2, np.float32), 1.0, False, False, {}


for name, kwargs in {
    "Endless": {},
    "Failing": {"fail_at": 3},
    "Image": {"obs": spaces.Box(0, 255, (8, 8, 3), np.uint8)},
    "Dict": {"obs": spaces.Dict({"position": FLAT})},
    "MultiDiscrete": {"action": spaces.MultiDiscrete([2, 2])},
    "Unbounded": {"action": spaces.Box(-np.inf, np.inf, (1,), np.float32)},
}.items():
    gymnasium.register(f"{name}-v0", entry_point="own_environments:Still", kwargs=kwargs)
