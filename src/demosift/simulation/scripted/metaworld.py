"""Meta-World's tasks with their scripted policies: 39 numbers, four actions (x, y, z and the gripper's effort).

The goal is part of the observation. Meta-World asks for MuJoCo 3.3; with MuJoCo 4 one of its functions fails, which
is replaced here (`reset_mocap_welds`).
"""

import warnings

import gymnasium
import numpy as np

from demosift.simulation.scripted.environment import Action, Arm, Program

try:
    from metaworld.env_dict import ENV_CLS_MAP
    from metaworld.policies import ENV_POLICY_MAP
    from metaworld.sawyer_xyz_env import SawyerMocapBase
except ImportError as error:
    raise ImportError(f"Meta-World is missing: pip install --no-deps metaworld ({error})") from error

EQUALITY_WELD = 1  # MuJoCo's mjEQ_WELD
WELD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 5.0)

# Where the scripted policy asks for the goal; elsewhere, a wrong goal is a wrong idea of where the object is.
USES_GOAL = {
    "door-close",
    "hand-insert",
    "pick-out-of-hole",
    "pick-place",
    "pick-place-wall",
    "push",
    "push-wall",
    "reach",
    "reach-wall",
    "sweep",
}
OBJECT, GOAL = slice(4, 7), slice(36, 39)


def reset_mocap_welds(self: SawyerMocapBase) -> None:
    """Like Meta-World's own, which writes 11 numbers for each weld where MuJoCo 4 has 12; the last one stays."""
    welds = self.model.eq_type == EQUALITY_WELD
    self.model.eq_data[welds, : len(WELD)] = WELD


SawyerMocapBase.reset_mocap_welds = reset_mocap_welds


class MetaWorld(Arm):
    def __init__(self, task: str):
        self.task = task
        self.policy = ENV_POLICY_MAP[f"{task}-v3"]()
        self.sawyer = ENV_CLS_MAP[f"{task}-v3"]()
        # As in Meta-World's own variants with an observable goal. The space was computed without one.
        self.sawyer._partially_observable = False
        del self.sawyer.sawyer_observation_space
        self.sawyer._freeze_rand_vec = False
        self.sawyer.seeded_rand_vec = True
        self.sawyer._set_task_called = True
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)

    def start(self, seed: int) -> np.ndarray:
        self.sawyer.seed(seed)
        self.state, _ = self.sawyer.reset()
        return self.state.astype(np.float32)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        self.state, reward, _, _, info = self.sawyer.step(action)
        return self.state.astype(np.float32), float(reward), bool(info["success"])

    def program(self, rng: np.random.Generator, wrong_goal: bool = False) -> Program:
        error = np.zeros(39)
        if wrong_goal:
            direction = rng.uniform(0, 2 * np.pi)
            away = rng.uniform(0.12, 0.2) * np.array([np.cos(direction), np.sin(direction), 0])
            error[GOAL if self.task in USES_GOAL else OBJECT] = away

        def act() -> Action:
            with warnings.catch_warnings(action="ignore"):  # that the response is large, which is clipped
                return np.clip(self.policy.get_action(self.state + error), -1, 1)

        return act

    def still(self) -> Action:
        grip = -1.0 if self.last_action is None else self.last_action[3]  # open, as episodes begin
        return np.array([0, 0, 0, grip], np.float32)
