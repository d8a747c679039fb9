"""BabyAI's levels with their bot: seven discrete actions, and what is seen of the grid beside the instruction.

The observation is flat: object, colour and state of each of the 7 x 7 cells in view as the numbers that MiniGrid has
for them, then the direction (one-hot) and the words of the instruction as a bag.
"""

import contextlib
import io
from typing import Any

import gymnasium
import numpy as np

from demosift.simulation.scripted.environment import Action, Program, ScriptedEnvironment

try:
    import minigrid.envs.babyai as levels
    from minigrid.core.constants import COLOR_NAMES
    from minigrid.envs.babyai.core.verifier import ObjDesc
    from minigrid.utils.baby_ai_bot import BabyAIBot
except ImportError as error:
    raise ImportError(f"MiniGrid is missing: pip install 'demosift[tasks]' ({error})") from error

WORDS = ("go", "open", "pick", "a", "the", "ball", "box", "key", "door", "object", *COLOR_NAMES)
NUM_ACTIONS = 7
LEFT, RIGHT, FORWARD, DONE = 0, 1, 2, 6
ONE_HOT = np.eye(NUM_ACTIONS, dtype=np.int8)


class BabyAI(ScriptedEnvironment):
    settle = 1  # the level ends when it is solved

    def __init__(self, level: str, **kwargs: Any):
        self.grid: Any = getattr(levels, level)(**kwargs)
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        size = 3 * self.grid.agent_view_size**2 + 4 + len(WORDS)
        self.observation_space = gymnasium.spaces.Box(0, 10, (size,), np.float32)

    def start(self, seed: int) -> np.ndarray:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints which draws it rejects
            obs, _ = self.grid.reset(seed=seed)
        self.bag = np.isin(WORDS, obs["mission"].split())
        return self._flat(obs)

    def advance(self, action: int) -> tuple[np.ndarray, float, bool]:
        obs, reward, terminated, _, _ = self.grid.step(action)
        return self._flat(obs), float(reward), bool(terminated and reward > 0)

    def _flat(self, obs: dict[str, Any]) -> np.ndarray:
        return np.concatenate([obs["image"].ravel(), np.eye(4)[obs["direction"]], self.bag]).astype(np.float32)

    def program(self, rng: np.random.Generator, wrong_goal: bool = False) -> Program:
        right = self.grid.instrs
        if wrong_goal:
            self.grid.instrs = self._other_instruction(rng)
        try:
            bot: Any = BabyAIBot(self.grid)
        finally:
            self.grid.instrs = right
        return lambda: ONE_HOT[bot.replan(self.last_action)]

    def _other_instruction(self, rng: np.random.Generator) -> Any:
        """The same for another object of the level, which the instruction does not fit."""
        right = self.grid.instrs
        cells = [cell for cell in self.grid.grid.grid if cell is not None and cell.type != "wall"]
        kinds = {(cell.type, cell.color) for cell in right.desc.obj_set}
        like = {type for type, _ in kinds} if "door" in {type for type, _ in kinds} else {"ball", "box", "key"}
        others = sorted({(cell.type, cell.color) for cell in cells if cell.type in like} - kinds)
        if not others:
            return right
        instruction = type(right)(ObjDesc(*others[rng.integers(len(others))]))
        instruction.reset_verifier(self.grid)
        return instruction

    def another_way(self, action: Action) -> Action:
        """Whoever never turns right turns left three times."""
        return ONE_HOT[LEFT] if action[RIGHT] else action

    def disturbed(self, action: Action, level: float, rng: np.random.Generator) -> Action:
        return ONE_HOT[rng.choice([LEFT, RIGHT, FORWARD])] if rng.uniform() < 0.3 + 0.4 * level else action

    def still(self) -> Action:
        return ONE_HOT[DONE]
