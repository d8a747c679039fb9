"""What an environment with a program has in common: flat observations, success, and an end soon after it."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from jaxtyping import Float32, Shaped

Action = Shaped[np.ndarray, "action"]
Program = Callable[[], Action]  # the action for the state that the environment is in; called once for each step


class ScriptedEnvironment(gymnasium.Env[np.ndarray, Any]):
    """An episode ends in a terminal state `settle` successful steps after it began to succeed.

    Actions of programs are in [-1, 1], or one-hot rows.
    """

    settle: ClassVar[int] = 5
    last_action: Action | None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.last_action = None
        self._successes = 0
        return self.start(int(self.np_random.integers(2**31)) if seed is None else seed), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, success = self.advance(action)
        self.last_action = action
        self._successes += success
        return obs, reward, self._successes >= self.settle, False, {"success": success}

    @abstractmethod
    def start(self, seed: int) -> Float32[np.ndarray, "obs"]:
        """Begin an episode, which depends on the seed alone."""

    @abstractmethod
    def advance(self, action: Any) -> tuple[Float32[np.ndarray, "obs"], float, bool]:
        """The next observation, the reward, and whether the task is now solved."""

    @abstractmethod
    def program(self, rng: np.random.Generator, wrong_goal: bool = False) -> Program:
        """The program that solves an episode, made after its start; or the same program with another goal in mind."""

    @abstractmethod
    def another_way(self, action: Action) -> Action:
        """What a second operator does where the program would take `action`."""

    @abstractmethod
    def disturbed(self, action: Action, level: float, rng: np.random.Generator) -> Action:
        """The action with noise; the level is from 0 to 1."""

    @abstractmethod
    def still(self) -> Action:
        """The action that leaves everything as it is."""


class Arm(ScriptedEnvironment):
    """A gripper that moves: actions begin with its motion in x, y and z."""

    # The second operator approaches in a curve, and more slowly.
    angle: ClassVar[float] = 0.5
    speed: ClassVar[float] = 0.7

    def another_way(self, action: Action) -> Action:
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        x, y, z = action[:3]
        return np.concatenate([self.speed * np.array([cos * x - sin * y, sin * x + cos * y, z]), action[3:]])

    def disturbed(self, action: Action, level: float, rng: np.random.Generator) -> Action:
        return action + (0.5 + level) * rng.standard_normal(len(action))
