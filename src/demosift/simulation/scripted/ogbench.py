"""OGBench's manipulation tasks with their Markov oracles: an arm among cubes, or at buttons, a drawer and a window.

Each episode begins in a random state and has a random goal, as OGBench's own data collection does; the goal is
appended to the observation.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from demosift.simulation.scripted.environment import Action, Arm, Program

try:
    from ogbench.manipspace.envs.cube_env import CubeEnv
    from ogbench.manipspace.envs.scene_env import SceneEnv
    from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle
    from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
    from ogbench.manipspace.oracles.markov.drawer_markov import DrawerMarkovOracle
    from ogbench.manipspace.oracles.markov.window_markov import WindowMarkovOracle
except ImportError as error:
    raise ImportError(f"OGBench is missing: pip install 'demosift[tasks]' ({error})") from error

ORACLES = {
    "cube": CubeMarkovOracle,
    "button": ButtonMarkovOracle,
    "drawer": DrawerMarkovOracle,
    "window": WindowMarkovOracle,
}
OTHER = {"drawer": "window", "window": "drawer"}
APART = 0.12  # metres from a goal to the cube's start, and to a wrong goal
MAKING: Mapping[str, Any] = {"mode": "data_collection", "terminate_at_goal": False, "visualize_info": False}


class _Cubes(CubeEnv):
    """Cubes of which none begins where it should go."""

    def set_new_target(self, return_info: bool = True, p_stack: float = 0.5) -> Any:
        data: Any = self._data
        near = True
        while near:
            super().set_new_target(return_info=False, p_stack=p_stack)
            block, goal = self._target_block, self._cube_target_mocap_ids[self._target_block]
            way = data.mocap_pos[goal] - data.joint(f"object_joint_{block}").qpos[:3]
            near = bool(np.linalg.norm(way) < APART)
        return (self.compute_observation(), self.get_reset_info()) if return_info else None


class _Scene(SceneEnv):
    """The scene with goals of one kind."""

    def __init__(self, kind: str):
        self.kind = kind
        super().__init__(env_type="scene", **MAKING)

    def set_new_target(self, return_info: bool = True, p_stack: float = 0.5) -> Any:
        wanted = {self.kind, OTHER.get(self.kind, self.kind)}
        if self.kind in OTHER:
            self._cur_button_states[:] = 1  # both are unlocked
            self._apply_button_states()
        drawn = set()
        while not (wanted <= drawn and self._target_task == self.kind):
            super().set_new_target(return_info=False, p_stack=p_stack)
            drawn.add(self._target_task)
        return (self.compute_observation(), self.get_reset_info()) if return_info else None


@contextmanager
def _global_stream(seed: int) -> Iterator[None]:
    """NumPy's global random stream begins with the seed, and goes on as before afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


class Manipulation(Arm):
    settle = 10  # success begins when the cube is 4 cm from its target

    def __init__(self, task: str):
        self.kind, _, cubes = task.partition("-")
        self.arm: Any = _Cubes(env_type=cubes, **MAKING) if cubes else _Scene(self.kind)
        self.action_space = gymnasium.spaces.Box(-1, 1, (5,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.start(0).shape, np.float32)

    def start(self, seed: int) -> np.ndarray:
        self.state, self.info = self.arm.reset(seed=seed)
        return self._observed()

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        self.state, reward, _, _, self.info = self.arm.step(action)
        return self._observed(), float(reward), bool(self.info["success"])

    def _observed(self) -> np.ndarray:
        return np.concatenate([self.state, self._goal()]).astype(np.float32)

    def _goal(self) -> np.ndarray:
        target = {key.removeprefix("privileged/target_"): value for key, value in self.info.items() if "target" in key}
        if self.kind == "cube":
            yaw = target["block_yaw"]
            which = np.eye(self.arm._num_cubes)[target["block"]] if self.arm._num_cubes > 1 else []
            # In the units of OGBench's observations.
            place = (target["block_pos"] - np.array([0.425, 0.0, 0.0])) * 10
            return np.concatenate([which, place, np.cos(yaw), np.sin(yaw)])
        if self.kind == "button":
            return np.concatenate([np.eye(2)[target["button"]], np.eye(2)[target["button_state"]]])
        return target[f"{self.kind}_pos"] * {"drawer": 18.0, "window": 15.0}[self.kind]

    def program(self, rng: np.random.Generator, wrong_goal: bool = False) -> Program:
        kind = OTHER.get(self.kind, self.kind) if wrong_goal else self.kind
        changes = self._wrong_target(rng) if wrong_goal and kind == self.kind else {}
        oracle = ORACLES[kind](env=self.arm)
        with _global_stream(int(rng.integers(2**31))):  # it draws where to go in the end
            oracle.reset(self.state, self.info)
        return lambda: oracle.select_action(self.state, {**self.info, **changes})

    def _wrong_target(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Another place for the cube, or the other button."""
        if self.kind == "cube":
            right = place = self.info["privileged/target_block_pos"]
            while np.linalg.norm(place - right) < APART:
                place = np.append(rng.uniform(*self.arm._target_sampling_bounds), right[2])
            return {"privileged/target_block_pos": place}
        other = 1 - self.info["privileged/target_button"]
        return {
            "privileged/target_button": other,
            "privileged/target_button_state": 1 - self.info[f"privileged/button_{other}_state"],
            "privileged/target_button_top_pos": self.arm._data.site_xpos[self.arm._button_site_ids[other]].copy(),
        }

    def still(self) -> Action:
        return np.zeros(5, np.float32)
