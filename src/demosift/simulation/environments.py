"""Gymnasium environments by name: what demosift accepts, how actions are scaled, and what a return is worth.

Policies and data live in [-1, 1] (or one-hot rows for discrete actions); only `scale_action` and `unscale_action` know
an environment's own bounds. Short names stand for the four environments of the paper.
"""

import difflib
import importlib
import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from jaxtyping import Float, Shaped

from demosift.types import EnvironmentSpec, InputError


@dataclass(frozen=True)
class _Named:
    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


# Ant without contact forces: 27 numbers, the ones the paper's code keeps of the 111 that Ant-v2 had.
SHORT_NAMES: Mapping[str, _Named] = {
    "hopper": _Named("Hopper-v5"),
    "walker2d": _Named("Walker2d-v5"),
    "halfcheetah": _Named("HalfCheetah-v5"),
    "ant": _Named("Ant-v5", {"include_cfrc_ext_in_observation": False}),
}

# Episodes of an environment that has no time limit of its own would never have to end.
DEFAULT_EPISODE_STEPS = 1000

Reference = Literal["demosift", "d4rl", "paper"]


class Spaces(NamedTuple):
    """Sizes of the flat observation and of the action (the number of actions where they are discrete)."""

    obs_dim: int
    action_dim: int


def resolve(name: str, **kwargs: Any) -> EnvironmentSpec:
    """The spec of a short name or of any Gymnasium id (`module:Id-v0` imports `module` first, in workers too)."""
    named = SHORT_NAMES.get(name, _Named(name))
    spec = EnvironmentSpec(named.id, {**named.kwargs, **kwargs})
    found = _describe(spec)
    if found.num_actions is not None:
        return replace(spec, num_actions=found.num_actions)
    return replace(spec, action_low=found.action_low, action_high=found.action_high)


def stored(spec: EnvironmentSpec) -> EnvironmentSpec:
    """A spec that came out of a file, unless making it would import a module that the file names."""
    if ":" in spec.id:
        raise InputError(f"the file's environment {spec.id!r} imports a module; name it yourself to allow that")
    return spec


def make(spec: EnvironmentSpec) -> gymnasium.Env:
    """The environment itself, always with a time limit. It takes native actions: see `scale_action`."""
    try:
        # Importing an environment's module may warn, as Gymnasium does of old versions; the user chose the id.
        with warnings.catch_warnings(action="ignore"):
            module, _, registered_id = spec.id.rpartition(":")
            if module:
                importlib.import_module(module)
            registered = gymnasium.spec(registered_id)
    except gymnasium.error.Error as error:
        raise InputError(f"unknown environment {spec.id!r}{_suggestions(spec.id)}") from error
    except ImportError as error:
        raise InputError(f"unknown environment {spec.id!r}: {_first_line(error)}") from error
    if "mujoco" in str(registered.entry_point):
        _quieten_mujoco()
    limit = {} if registered.max_episode_steps else {"max_episode_steps": DEFAULT_EPISODE_STEPS}
    try:
        with warnings.catch_warnings(action="ignore"):
            # Without Gymnasium's passive checker, which slows every step and whose checks `resolve` makes.
            return gymnasium.make(spec.id, disable_env_checker=True, **{**limit, **spec.kwargs})
    except Exception as error:  # an environment's constructor may raise anything
        raise InputError(f"environment {spec.id!r} cannot be made: {_first_line(error)}") from error


def spaces(spec: EnvironmentSpec) -> Spaces:
    found = _describe(spec)
    return Spaces(found.obs_dim, found.num_actions or len(found.action_low))


def max_episode_steps(spec: EnvironmentSpec) -> int:
    return _describe(spec).max_episode_steps


def short_name(spec: EnvironmentSpec) -> str:
    """`hopper` for Hopper-v5 and so on; the id of any other environment, or of these four made with other arguments."""
    matches = (name for name, named in SHORT_NAMES.items() if (named.id, named.kwargs) == (spec.id, dict(spec.kwargs)))
    return next(matches, spec.id)


def scale_action(spec: EnvironmentSpec, action: Shaped[np.ndarray, "*rows action"]) -> np.ndarray:
    """From [-1, 1] to the environment's bounds; from scores or one-hot rows to the index of the largest."""
    if spec.discrete:
        return np.argmax(action, axis=-1)
    centre, half = _centre_and_half(spec.action_low, spec.action_high)
    # Clipped, because some environments refuse an action that rounding put one unit outside.
    return np.minimum(np.maximum(centre + half * action, centre - half), centre + half).astype(np.float32)


def unscale_action(spec: EnvironmentSpec, native: np.ndarray) -> Shaped[np.ndarray, "*rows action"]:
    """The inverse of `scale_action`: [-1, 1], or int8 one-hot rows."""
    if spec.num_actions is not None:
        return np.eye(spec.num_actions, dtype=np.int8)[native]
    centre, half = _centre_and_half(spec.action_low, spec.action_high)
    return ((native - centre) / half).astype(np.float32)


def reference_returns() -> dict[str, Any]:
    """Measured (`demosift`) and published (`d4rl`, `paper`) random and expert returns, by reference and short name."""
    return json.loads(resources.files("demosift.simulation").joinpath("reference_returns.json").read_text())


def normalised_score(
    env: EnvironmentSpec | str, returns: Float[np.ndarray, "*shape"] | float, reference: Reference = "demosift"
) -> Float[np.ndarray, "*shape"] | None:
    """(return - random) / (expert - random), or None where the random or the expert return is not known."""
    name = env if isinstance(env, str) else short_name(env)
    known = reference_returns()[reference].get(name)
    if known is None or known["random"] is None or known["expert"] is None:
        return None
    random, expert = (np.float64(known[who]["mean"]) for who in ("random", "expert"))
    return (np.asarray(returns, np.float64) - random) / (expert - random)


class _Description(NamedTuple):
    obs_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    num_actions: int | None
    max_episode_steps: int


def _describe(spec: EnvironmentSpec) -> _Description:
    return _describe_cached(spec.id, json.dumps(dict(spec.kwargs), sort_keys=True))


@cache
def _describe_cached(id: str, kwargs: str) -> _Description:
    env = make(EnvironmentSpec(id, json.loads(kwargs)))
    try:
        obs, action = env.observation_space, env.action_space
        steps = env.get_wrapper_attr("_max_episode_steps")
    finally:
        env.close()
    if not _is_flat_box(obs):
        raise InputError(f"environment {id!r} has observation space {_brief(obs)}; demosift needs a flat Box of floats")
    if isinstance(action, gymnasium.spaces.Discrete) and action.start == 0:
        return _Description(obs.shape[0], (), (), int(action.n), steps)
    if not _is_flat_box(action):
        raise InputError(f"environment {id!r} has action space {_brief(action)}; demosift needs a flat Box or Discrete")
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise InputError(f"environment {id!r} has unbounded actions, which cannot be scaled from [-1, 1]")
    return _Description(obs.shape[0], tuple(action.low.tolist()), tuple(action.high.tolist()), None, steps)


def _is_flat_box(space: gymnasium.Space) -> TypeGuard[gymnasium.spaces.Box]:
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f"


def _brief(space: gymnasium.Space) -> str:
    shape = f" of shape {space.shape} and type {space.dtype}" if isinstance(space, gymnasium.spaces.Box) else ""
    return type(space).__name__ + shape


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _suggestions(name: str) -> str:
    by_lower = {known.lower(): known for known in (*gymnasium.registry, *SHORT_NAMES)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(by_lower[match] for match in close)}?" if close else ""


@cache
def _centre_and_half(low: tuple[float, ...] | None, high: tuple[float, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    # Not low and width: bounds of -1 and 1 then leave an action exactly as it is.
    bottom, top = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return (bottom + top) / 2, (top - bottom) / 2


@cache
def _quieten_mujoco() -> None:
    """MuJoCo prints warnings to stdout, which belongs to --json, and appends them to a file in the working folder."""
    mujoco = importlib.import_module("mujoco")  # slow, and not every environment needs it
    mujoco.set_mju_user_warning(logging.getLogger("demosift.mujoco").info)
