"""The state of an environment as bytes, from which another of its kind goes on exactly where it was.

The state is what the environment and its wrappers hold in numbers, texts and arrays, their random generators, and all
of MuJoCo's data whose size is the model's; every step computes the rest anew. An environment that holds anything else
which may change, such as objects of another simulator, has no state that can be told. Nothing is pickled.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from safetensors import SafetensorError
from safetensors.numpy import load, save

from demosift.files import mismatch, parse_json
from demosift.types import InputError

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
    """Set an environment, made in the same way, to a state of `capture`. A state of anything else is refused."""
    now = capture(env)
    if now is None or not _is_like(found := _unpack(state), _unpack(now)):
        raise InputError("the checkpoint does not fit this run: the state of an environment is not of its kind")
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
            try:
                generator.bit_generator.state = value["generator"]
            except (ValueError, OverflowError) as error:
                raise InputError("the checkpoint does not fit this run: the state of a random generator") from error
            setattr(layer, name, generator)
        elif isinstance(value, np.ndarray) and not value.shape:
            setattr(layer, name, value[()])
        else:
            setattr(layer, name, value)


def _unpack(state: bytes) -> dict[str, Any]:
    """What a state holds by its place; nothing if it is not one."""
    try:
        header = parse_json(state[8 : 8 + int.from_bytes(state[:8], "little")], "state", infinite=True)
        return {**parse_json(header["__metadata__"]["plain"], "state", infinite=True), **load(state)}
    except (SafetensorError, InputError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _is_like(found: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether values are of the kinds that an environment has now in the same places. A reset may leave a None."""

    def is_like(value: Any, own: Any) -> bool:
        if own is None or value is None:
            return not isinstance(value, dict)
        if isinstance(own, np.ndarray):
            return isinstance(value, np.ndarray) and (value.shape, value.dtype) == (own.shape, own.dtype)
        if isinstance(own, dict):
            return isinstance(value, dict) and mismatch(value, _schema(own)) is None
        return isinstance(value, bool | int | float | str) and _kind(value) == _kind(own)

    return found.keys() == now.keys() and all(is_like(found[place], own) for place, own in now.items())


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _schema(value: Any) -> Any:
    """What is like the state of a random generator: the same names, and numbers where it has numbers."""
    if isinstance(value, dict):
        return {key: _schema(each) for key, each in value.items()}
    return type(value) if isinstance(value, int) else (lambda other: other == value)


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
