"""Gymnasium environments by name: what demosift accepts, how actions are scaled, and what a return is worth.

Actions of policies and data are in [-1, 1] (or one-hot rows of a discrete space). `resolve` reads an environment's own
bounds, the spec carries them, and its `scale_action` applies them before an environment is stepped. Short names
stand for the four environments of the paper and three more, for which policies are shipped; `scripted` has others,
which come with a program that solves them.
"""

import difflib
import importlib
import importlib.util
import json
import logging
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from jaxtyping import Float

from demosift.files import parse_json
from demosift.ranges import STEPS, shown
from demosift.simulation.scripted import catalogue
from demosift.types import Bounds, EnvironmentSpec, InputError

# Humanoid's positions and velocities: 45 of its 348 numbers.
_HUMANOID = {f"include_{name}_in_observation": False for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")}

# Ant without contact forces: 27 numbers, the ones the paper's code keeps of the 111 that Ant-v2 had.
SHORT_NAMES: Mapping[str, EnvironmentSpec] = {
    "hopper": EnvironmentSpec("Hopper-v5"),
    "walker2d": EnvironmentSpec("Walker2d-v5"),
    "halfcheetah": EnvironmentSpec("HalfCheetah-v5"),
    "ant": EnvironmentSpec("Ant-v5", {"include_cfrc_ext_in_observation": False}),
    "double-pendulum": EnvironmentSpec("InvertedDoublePendulum-v5"),
    "pusher": EnvironmentSpec("Pusher-v5"),
    "humanoid": EnvironmentSpec("Humanoid-v5", _HUMANOID),
}
IN_THE_PAPER = tuple(SHORT_NAMES)[:4]

catalogue.register()

# Episodes a worker keeps alive at once: enough to make the policy's overhead per step small beside the simulation's.
LIVE_EPISODES = 16

# Without it, an episode might never end in an environment that has no time limit of its own.
DEFAULT_EPISODE_STEPS = 1000

Reference = Literal["demosift", "d4rl", "paper"]


class Spaces(NamedTuple):
    """Sizes of the flat observation and of the action (the number of actions where they are discrete)."""

    obs_dim: int
    action_dim: int


def resolve(name: str, **kwargs: Any) -> EnvironmentSpec:
    """The spec of a short name or of any Gymnasium id (`module:Id-v0` imports `module` first, in workers too)."""
    named = SHORT_NAMES.get(name, EnvironmentSpec(name))
    spec = EnvironmentSpec(named.id, {**named.kwargs, **kwargs})
    found = _describe(spec)
    low, high = found.bounds or (None, None)
    return replace(spec, action_low=low, action_high=high, num_actions=found.num_actions)


def stored(spec: EnvironmentSpec, **own: Any) -> EnvironmentSpec:
    """A spec that came out of a file, with keyword arguments of the user's own.

    What a file says is data: it may choose among what is known to be harmless. A module to import, an id that is not
    registered, and an argument such as `xml_file`, which opens any path, need the user's own word.
    """
    allow = "say so yourself to allow that (--env, --env-arg, or resolve in Python)"
    if ":" in spec.id:
        raise InputError(f"the file's environment {spec.id!r} imports a module; {allow}")
    if len(spec.id) > _LONGEST_TEXT or spec.id not in gymnasium.registry:
        raise InputError(f"unknown environment {spec.id[:_LONGEST_TEXT]!r}{_suggestions(spec.id[:_LONGEST_TEXT])}")
    for name, value in spec.kwargs.items():
        if name not in own and not _is_harmless(name, value):
            told = f"{name[:_LONGEST_TEXT]}={value!r}"[:100]
            raise InputError(f"the file's environment {spec.id} is made with {told!r}; {allow}")
    return resolve(spec.id, **{**spec.kwargs, **own}) if own else spec


def read_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments of an environment from NAME=VALUE, where VALUE is JSON, or else text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (separator and name.isidentifier()) or name in found:
            raise InputError(f"--env-arg {shown(text)}: write NAME=VALUE, each name once")
        try:
            found[name] = parse_json(value, "--env-arg")
        except InputError:
            found[name] = value
    return found


def _is_harmless(name: str, value: Any) -> bool:
    """Whether a file may make an environment with this argument: one that only changes numbers in its equations."""
    if name == "max_episode_steps":
        return type(value) is int and 1 <= value <= _MOST_STEPS
    if name == "frame_skip":
        return type(value) is int and 1 <= value <= 100
    if name in _CHOICES:
        return isinstance(value, str) and value in _CHOICES[name]
    if not (name in _ARGUMENTS or re.fullmatch(r"\w+_(weight|cost|scale|reward)|(in|ex)clude_\w+", name)):
        return False
    pair = value if isinstance(value, list | tuple) and len(value) == 2 else [value]
    return all(isinstance(end, bool | int | float) and abs(end) <= _LARGEST for end in pair)  # false for NaN


_LONGEST_TEXT = 100
_MOST_STEPS = 100_000
_LARGEST = 1e6
_CHOICES = {"reward_type": ("dense", "sparse")}
_ARGUMENTS = frozenset(
    [
        "terminate_when_unhealthy",
        "healthy_z_range",
        "healthy_state_range",
        "healthy_angle_range",
        "contact_force_range",
        "use_contact_forces",
        "sutton_barto_reward",
        "goal_velocity",
        "g",
        "continuous",
        "gravity",
        "enable_wind",
        "wind_power",
        "turbulence_power",
        "hardcore",
        "is_slippery",
        "natural",
        "sab",
        "continuing_task",
    ]
)


def make(spec: EnvironmentSpec) -> gymnasium.Env:
    """The environment itself, always with a time limit. It takes native actions: see `EnvironmentSpec.scale_action`."""
    _name_glfw()
    try:
        # Importing an environment's module may warn, as Gymnasium does about old versions; the user chose the id.
        with warnings.catch_warnings(action="ignore"):
            module, _, registered_id = spec.id.rpartition(":")
            if module:
                importlib.import_module(module)
            registered = gymnasium.spec(registered_id)
    except gymnasium.error.Error as error:
        raise InputError(f"unknown environment {spec.id!r}{_suggestions(spec.id)}") from error
    except ImportError as error:
        raise InputError(f"unknown environment {spec.id!r}: {_first_line(error)}") from error
    if any(simulator in str(registered.entry_point) for simulator in ("mujoco", "metaworld", "ogbench")):
        _quieten_mujoco()
    if "max_episode_steps" in spec.kwargs:  # Gymnasium takes -1 for none, and such an episode may never end
        STEPS.check(f"environment {spec.id!r}: max_episode_steps", spec.kwargs["max_episode_steps"])
    limit = {} if registered.max_episode_steps else {"max_episode_steps": DEFAULT_EPISODE_STEPS}
    try:
        with warnings.catch_warnings(action="ignore"):
            # Gymnasium's passive checker slows every step, and `resolve` makes its checks once.
            return gymnasium.make(spec.id, **{"disable_env_checker": True, **limit, **spec.kwargs})
    except Exception as error:  # an environment's constructor may raise anything
        raise InputError(f"environment {spec.id!r} cannot be made: {_first_line(error)}") from error


def spaces(spec: EnvironmentSpec) -> Spaces:
    found = _describe(spec)
    return Spaces(found.obs_dim, found.num_actions or len(found.bounds.low if found.bounds else ()))


def max_episode_steps(spec: EnvironmentSpec) -> int:
    return _describe(spec).max_episode_steps


def live_episodes(spec: EnvironmentSpec) -> int:
    """How many episodes a worker should keep alive: one where environments are slow, to make and to step."""
    return 1 if spec.id in catalogue.SCRIPTED else LIVE_EPISODES


def success(info: Mapping[str, Any]) -> bool | None:
    """Whether a step was successful, by what the environment tells about it; None where it does not say."""
    told = info.get("success", info.get("is_success"))
    return None if told is None else bool(told)


def short_name(spec: EnvironmentSpec) -> str:
    """`hopper` for Hopper-v5 and so on; the id of any other environment, or of these four made with other arguments."""
    matches = (name for name, named in SHORT_NAMES.items() if (named.id, named.kwargs) == (spec.id, dict(spec.kwargs)))
    return next(matches, spec.id)


def reference_returns() -> dict[str, Any]:
    """Measured (`demosift`) and published (`d4rl`, `paper`) random and expert returns, by reference and short name."""
    return json.loads(resources.files("demosift.simulation").joinpath("reference_returns.json").read_text())


def normalised_score(
    env: EnvironmentSpec | str, returns: Float[np.ndarray, "*shape"] | float, reference: Reference = "demosift"
) -> Float[np.ndarray, "*shape"] | None:
    """(return - random) / (expert - random), or None where the random or the expert return is not known.

    `env`: a spec, or what `resolve` takes; an id stands for the environment as it is made without arguments.
    """
    name = short_name(SHORT_NAMES.get(env, EnvironmentSpec(env)) if isinstance(env, str) else env)
    known = reference_returns()[reference].get(name)
    if known is None or known["random"] is None or known["expert"] is None:
        return None
    random, expert = (np.float64(known[who]["mean"]) for who in ("random", "expert"))
    return (np.asarray(returns, np.float64) - random) / (expert - random)


class _Description(NamedTuple):
    obs_dim: int
    bounds: Bounds | None
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
        return _Description(obs.shape[0], None, int(action.n), steps)
    if not _is_flat_box(action):
        raise InputError(f"environment {id!r} has action space {_brief(action)}; demosift needs a flat Box or Discrete")
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise InputError(f"environment {id!r} has unbounded actions, which cannot be scaled from [-1, 1]")
    bounds = Bounds(tuple(action.low.tolist()), tuple(action.high.tolist()))
    return _Description(obs.shape[0], bounds, None, steps)


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
def _quieten_mujoco() -> None:
    """MuJoCo prints warnings to stdout, which belongs to --json, and appends them to a file in the working folder."""
    mujoco = importlib.import_module("mujoco")  # slow, and not every environment needs it
    mujoco.set_mju_user_warning(logging.getLogger("demosift.mujoco").info)


@cache
def _name_glfw() -> None:
    """MuJoCo imports GLFW's package, which takes any libglfw.so of the working folder for its library, and starts a
    process for each that it finds to ask for its version. Told where its own one is, it does neither.
    """
    package = importlib.util.find_spec("glfw")
    if package is None or package.origin is None or os.environ.get("PYGLFW_LIBRARY"):
        return
    session = os.environ.get("PYGLFW_LIBRARY_VARIANT") or os.environ.get("XDG_SESSION_TYPE") or ""
    system = "wayland" if session.lower() == "wayland" else "x11"
    library = os.path.join(os.path.dirname(package.origin), system, "libglfw.so")
    if os.path.isfile(library):
        os.environ["PYGLFW_LIBRARY"] = library
