"""Who operates: the program as it is, or someone who uses it worse or differently.

An operator depends on the episode's seed alone, and so does the schedule of idle steps: who records the episodes can
tell which of their rows were idle.
"""

import numpy as np
from jaxtyping import Bool

from demosift.policy import Operator
from demosift.simulation.scripted.environment import Action, Program, ScriptedEnvironment

IDLE_PHASES = 3


def idle_steps(seed: int, pause: tuple[int, int]) -> Bool[np.ndarray, "steps"]:
    """Whether each of the first steps is idle: phases of standing still, the first at the start, and of work.

    `pause` is how many steps a phase takes, at least and at most.
    """
    phases = np.random.default_rng((seed, 3)).integers(*pause, endpoint=True, size=2 * IDLE_PHASES)
    return np.repeat(np.arange(2 * IDLE_PHASES) % 2 == 0, phases)


def operate(env: ScriptedEnvironment, operator: Operator, seed: int, pause: tuple[int, int]) -> Program:
    """The operator's own program, for an episode that has just begun."""
    rng = np.random.default_rng((seed, 2))
    level = rng.uniform()
    idle = iter(idle_steps(seed, pause)) if operator == "idle" else iter(())
    intended = env.program(rng, wrong_goal=operator == "wrong-goal")

    def act() -> Action:
        action = intended()
        if next(idle, False):
            return env.still()
        if operator == "second":
            action = env.another_way(action)
        if operator == "noisy":
            action = env.disturbed(action, level, rng)
        return action if action.dtype == np.int8 else np.clip(action, -1, 1).astype(np.float32)

    return act
