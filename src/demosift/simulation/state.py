"""The state of an environment as bytes, from which another of its kind goes on exactly where it was.

The state is what the environment and its wrappers hold in numbers, texts and arrays, their random generators, and all
of MuJoCo's data whose size is the model's; every step computes the rest anew. An environment that holds anything else
which may change, such as objects of another simulator, has no state that can be told. Nothing is pickled.
"""

import json
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from safetensors.numpy import load, save

# Attributes that hold how the environment was made or how it is drawn, neither of which changes.
MADE = ("env", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs", "metadata", "observation_structure")
DRAWN = ("mujoco_renderer", "screen", "clock", "viewer")
FIXED_TYPES = (gymnasium.Space, EnvSpec, tuple, frozenset, type, FunctionType, ModuleType)


def capture(env: gymnasium.Env) -> bytes | None:
    """The environment's state; None if it cannot be told."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for depth, layer in enumerate(layers(env)):
        for name, value in vars(layer).items():
            place = f"{depth}/{name}"
            if name in MADE or name in DRAWN or isinstance(value, FIXED_TYPES) or is_mujoco(value, "MjModel"):
                continue
            if is_mujoco(value, "MjData"):
                plain[f"{place}/time"] = value.time
                arrays |= {f"{place}/{part}": array for part, array in mujoco_arrays(layer, value).items()}
            elif isinstance(value, np.random.Generator):
                plain[place] = {"generator": value.bit_generator.state}
            elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
                arrays[place] = np.asarray(value)
            elif value is None or isinstance(value, bool | int | float | str):
                plain[place] = value
            else:
                return None
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array.size}
    return save(contiguous, metadata={"plain": json.dumps(plain, sort_keys=True)})


def restore(env: gymnasium.Env, state: bytes) -> None:
    """Set an environment, made in the same way, to a state of `capture`."""
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])
    found = {**json.loads(header["__metadata__"]["plain"]), **load(state)}
    every = list(layers(env))
    for place, value in found.items():
        depth, name, *part = place.split("/")
        layer = every[int(depth)]
        if part == ["time"]:
            layer.data.time = value  # type: ignore[attr-defined]
        elif part:
            getattr(getattr(layer, name), part[0])[...] = value
        elif isinstance(value, dict):
            generator = np.random.Generator(getattr(np.random, value["generator"]["bit_generator"])())
            generator.bit_generator.state = value["generator"]
            setattr(layer, name, generator)
        elif isinstance(value, np.ndarray) and not value.shape:
            setattr(layer, name, value[()])
        else:
            setattr(layer, name, value)


def layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """The wrappers from the outermost, and the environment itself."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def is_mujoco(value: Any, name: str) -> bool:
    """Whether this is an object of that class; MuJoCo is not imported where no environment has."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(value, getattr(mujoco, name))


def mujoco_arrays(env: Any, data: Any) -> dict[str, np.ndarray]:
    """Every array of the data that has the size of a fresh one's; what depends on the contacts has not."""
    fresh = type(data)(env.model)
    names = [name for name in dir(data) if not name.startswith("_") and isinstance(getattr(data, name), np.ndarray)]
    return {name: getattr(data, name) for name in names if getattr(data, name).shape == getattr(fresh, name).shape}
