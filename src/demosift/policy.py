"""The policy as data: stacked members of a small network, in NumPy, and its safetensors file.

The network is a perceptron, or a `Network` from `registry.NETWORKS`. A file holds parameters and the network's name,
never code: whoever loads it must have the network that was registered by that name.

Acting takes a few small products, so it is done in NumPy inside the simulating processes: they start fast because they
never import JAX, and an evaluation does not wait for training on the device. Training keeps its own parameters and
turns them into a `Policy` to act, save or export.

`act` is for users: one observation or a batch, and actions as the environment takes them. The simulator calls
`act_members`: rows for every member at once, and actions in [-1, 1] or one-hot.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from demosift.files import atomic_write, mismatch, parse_json
from demosift.registry import NETWORKS
from demosift.types import Bounds, EnvironmentSpec, InputError

Kind = Literal["tanh-gaussian", "categorical"]
KINDS: tuple[Kind, ...] = ("tanh-gaussian", "categorical")


class Layer(NamedTuple):
    """One affine layer of every member."""

    kernel: Float[np.ndarray, "members in out"]
    bias: Float[np.ndarray, "members out"]


Params = Mapping[str, Any]  # arrays by name, in dictionaries that may be nested


@dataclass(frozen=True)
class Network:
    """A policy's body other than a perceptron, by a pair of functions.

    `init(key, sizes)` gives the parameters for `sizes`, which are (obs, *hidden, outputs): a dictionary of float32
    arrays, perhaps nested. `apply(params, x)` takes x of shape (*rows, obs) to (*rows, outputs). It trains with JAX's
    arrays and acts with NumPy's; `x.__array_namespace__()` has the functions of either. Where it can only use JAX's,
    `numpy_apply` is what acts.
    """

    name: str
    init: Callable[[Any, tuple[int, ...]], Params]
    apply: Callable[[Any, Any], Any]
    numpy_apply: Callable[[Any, Any], Any] | None = None

    def outputs(self, params: Params, x: Float[np.ndarray, "*rows obs"]) -> Float[np.ndarray, "*rows outputs"]:
        """What the network makes of these rows, in NumPy."""
        return (self.numpy_apply or self.apply)(params, x)

    def __reduce__(self) -> Any:
        """Simulating processes find it as this one did: by its name, once the module that has it is imported."""
        module = getattr(self.apply, "__module__", None)
        if module == "__main__":
            raise InputError(
                f"network {self.name!r}: simulating processes cannot import it from the script that was started or "
                "from a notebook; put it into a module of its own, which registers it"
            )
        return find_network, (self.name, module)


def find_network(name: str, module: str | None = None, where: str = "") -> Network:
    if module is not None and name not in NETWORKS:
        import_module(module)
    if name not in NETWORKS:
        raise InputError(
            f"{where}network {name!r} is not registered here: install the package that has it, or import the module "
            "that calls demosift.register with it"
        )
    return NETWORKS[name]


@dataclass(frozen=True, eq=False)
class Policy:
    """`layers` with ReLU between them, on `(obs + shift) * scale`; with a `network`, its parameters instead.

    A tanh-Gaussian's last layer gives [mean | log_std] and acts with `tanh(mean)`, the mean clipped to ±`mean_limit`; a
    categorical one gives logits and acts with the largest, as an int8 one-hot row. With an `ensemble` of K, each member
    is K networks that stand together, and acts with the mean of their actions (categorical: of their probabilities).

    `log_std_range` is where a tanh-Gaussian's log_std is clipped. None means that it has no standard deviation to draw
    with: none was trained, or the file does not tell its range.
    """

    kind: Kind
    layers: Any  # tuple[Layer, ...], or the network's Params
    shift: Float[np.ndarray, "members obs"]
    scale: Float[np.ndarray, "members obs"]
    mean_limit: float | None = None
    environment: EnvironmentSpec | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    ensemble: int = 1
    log_std_range: tuple[float, float] | None = None
    network: Network | None = None  # None: a perceptron
    stated_bounds: Bounds | None = None  # those of data that name no environment

    def __post_init__(self) -> None:
        if self.network is None:
            object.__setattr__(self, "layers", tuple(Layer(*layer) for layer in self.layers))
        problem = _problem(self)
        if problem:
            raise ValueError(problem)

    @property
    def bounds(self) -> Bounds | None:
        """What the -1 and 1 of its actions stand for; None where nobody said."""
        return (self.environment and self.environment.bounds) or self.stated_bounds

    @property
    def num_members(self) -> int:
        """How many policies act side by side: one for each setting and seed of a run."""
        return len(self.shift) // self.ensemble

    @property
    def obs_dim(self) -> int:
        """How many numbers an observation has."""
        return self.shift.shape[-1]

    @property
    def action_dim(self) -> int:
        """How many numbers an action has, or how many actions there are where they are discrete."""
        return self.num_outputs if self.kind == "categorical" else self.num_outputs // 2

    @cached_property
    def num_outputs(self) -> int:
        """The width of the last layer."""
        if isinstance(self.layers, tuple):
            return self.layers[-1].bias.shape[-1]
        return self.outputs(np.zeros((len(self.shift), 1, self.obs_dim), np.float32)).shape[-1]

    def outputs(self, obs: Float[np.ndarray, "members n obs"]) -> Float[np.ndarray, "members n out"]:
        """The output of the last layer: [mean | log_std] or logits.

        Each row is multiplied on its own, as a vector: the rounding of a matrix product depends on how many rows it
        has, and an episode must not depend on the episodes that happen to be simulated beside it.
        """
        hidden = (obs.astype(np.float32) + self.shift[:, None]) * self.scale[:, None]
        if self.network is not None:
            members = range(len(self.shift))
            each = [map_arrays(lambda array, member=member: array[member], self.layers) for member in members]
            rows = [self.network.outputs(own, x[:, None]) for own, x in zip(each, hidden, strict=True)]
            return np.stack(rows)[:, :, 0]
        for index, (kernel, bias) in enumerate(self.layers):
            if index > 0:
                hidden = np.maximum(hidden, 0)
            hidden = np.matmul(hidden[:, :, None], kernel[:, None])[:, :, 0] + bias[:, None]
        return hidden

    def act(
        self,
        obs: ArrayLike,
        member: int = 0,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray | int:
        """The action for one observation, shape (obs,), or the actions for a batch, shape (rows, obs).

        Actions are as the environment takes them: float32 in its own bounds, shape (action,) or (rows, action); where
        they are discrete, an integer, or integers of shape (rows,). A policy that knows no environment acts in the
        units of its data, where these stated bounds, and else in [-1, 1]. Of several members the first acts, unless
        `member` names another.

        `deterministic=False` draws from the policy instead, with `rng` (default: a new generator at each call): tanh of
        a Gaussian, or an index by its probabilities. An ensemble draws from the mean of its networks' distributions:
        for each row one network, then that network's action.
        """
        rows, single = _observations(obs, self.obs_dim)
        one = self.member(member)
        action = one.act_members(rows[None])[0] if deterministic else one._draw(rows, _generator(rng))
        if self.environment is None and self.stated_bounds is not None:
            action = self.stated_bounds.from_unit(action)
        return _native(action, self.environment, self.kind == "categorical", single)

    def _draw(self, obs: Float[np.ndarray, "n obs"], rng: np.random.Generator) -> Shaped[np.ndarray, "n action"]:
        """Actions drawn from a policy of one member, in [-1, 1] or one-hot."""
        if self.kind == "tanh-gaussian" and self.log_std_range is None:
            raise InputError(
                "act: this policy has no standard deviation to draw with: it was trained by squared error, or its "
                "file is older (if it is a run's, use load_run(...).policy)"
            )
        outputs = self.outputs(np.repeat(obs[None], self.ensemble, axis=0))
        chosen = outputs[rng.integers(self.ensemble, size=len(obs)), np.arange(len(obs))]
        if self.kind == "categorical":
            # The largest of logits plus Gumbel noise is a draw by their probabilities.
            index = np.argmax(chosen + rng.gumbel(size=chosen.shape), axis=-1)
            return np.eye(self.action_dim, dtype=np.int8)[index]
        mean, log_std = chosen[:, : self.action_dim], chosen[:, self.action_dim :]
        if self.mean_limit is not None:
            mean = np.clip(mean, -self.mean_limit, self.mean_limit)
        low, high = self.log_std_range or (-np.inf, np.inf)
        std = np.exp(np.clip(log_std, low, high))
        return np.tanh(mean + std * rng.standard_normal(mean.shape, np.float32))

    def act_members(self, obs: Float[np.ndarray, "members n obs"]) -> Shaped[np.ndarray, "members n action"]:
        """Deterministic actions of every member for its own rows, in [-1, 1] or one-hot."""
        proposed = self.proposals(obs)
        action = proposed[:, 0] if self.ensemble == 1 else proposed.mean(axis=1)
        if self.kind == "categorical":
            return np.eye(self.action_dim, dtype=np.int8)[np.argmax(action, axis=-1)]
        return action

    def proposals(self, obs: Float[np.ndarray, "members n obs"]) -> Float[np.ndarray, "members ensemble n action"]:
        """The action of every network of every member; of a categorical one, its logits or, in an ensemble,
        probabilities."""
        outputs = self.outputs(obs if self.ensemble == 1 else np.repeat(obs, self.ensemble, axis=0))
        outputs = outputs.reshape(len(obs), self.ensemble, *outputs.shape[1:])
        if self.kind == "categorical":
            return outputs if self.ensemble == 1 else _softmax(outputs)
        mean = outputs[..., : self.action_dim]
        if self.mean_limit is not None:
            mean = np.clip(mean, -self.mean_limit, self.mean_limit)
        return np.tanh(mean)

    def disagreement(self, obs: Float[np.ndarray, "members n obs"]) -> Float[np.ndarray, "members n"]:
        """How far the networks of an ensemble are apart: the root of their actions' variance, summed over dimensions.

        It is small where the training data are and grows away from them.
        """
        if self.ensemble == 1:
            raise InputError("disagreement: the policy is one network; train with an ensemble")
        return np.sqrt(self.proposals(obs).var(axis=1, ddof=1).sum(axis=-1))

    def members(self, indices: Sequence[int]) -> "Policy":
        """The policy of these members only, in this order."""
        rows = [self.ensemble * index + place for index in indices for place in range(self.ensemble)]
        layers = map_arrays(lambda array: array[rows], self.layers)
        return replace(self, layers=layers, shift=self.shift[rows], scale=self.scale[rows])

    def member(self, index: int) -> "Policy":
        """The policy of one member."""
        if not isinstance(index, int | np.integer) or not 0 <= index < self.num_members:
            own = "only member 0" if self.num_members == 1 else f"members 0 to {self.num_members - 1}"
            raise InputError(f"member {index} does not exist: the policy has {own}")
        return self if self.num_members == 1 else self.members([index])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, whole or not at all; the same policy always gives the same bytes."""
        tensors = {"normaliser/shift": self.shift, "normaliser/scale": self.scale}
        tensors |= {f"layers/{name}": array for name, array in named_arrays(self.layers)}
        tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise InputError(f"{os.fspath(path)}: not written: the policy's parameters are not finite")
        config = {
            "kind": self.kind,
            "mean_limit": self.mean_limit,
            "environment": None if self.environment is None else asdict(self.environment),
            "metadata": dict(self.metadata),
            **({} if self.ensemble == 1 else {"ensemble": self.ensemble}),
            **({} if self.log_std_range is None else {"log_std_range": self.log_std_range}),
            **({} if self.network is None else {"network": self.network.name}),
            **({} if self.stated_bounds is None else {"stated_bounds": list(map(list, self.stated_bounds))}),
        }
        with atomic_write(path) as temporary:
            # One entry: safetensors writes several in an order that changes from run to run.
            save_file(tensors, temporary, metadata={"demosift": json.dumps(config, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Policy":
        """Read a file that `save` wrote. `demosift.load_policy` takes run folders and names as well."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such policy file")
        header, tensors = read_tensors(path)
        try:
            config = parse_json(header["demosift"], f"{path}: not a demosift policy")
            place = mismatch(config, _CONFIG)
            if place is not None:
                raise ValueError(f"{place or 'its description'} is missing or of the wrong type")
            network = find_network(config["network"], where=f"{path}: ") if "network" in config else None
            policy = cls(
                kind=config["kind"],
                layers=_layers(tensors) if network is None else _params(tensors),
                shift=tensors["normaliser/shift"],
                scale=tensors["normaliser/scale"],
                mean_limit=config["mean_limit"],
                environment=_environment(config["environment"]),
                metadata=config["metadata"],
                ensemble=config.get("ensemble", 1),
                log_std_range=_log_std_range(config),
                network=network,
                stated_bounds=Bounds.parse(*config["stated_bounds"]) if "stated_bounds" in config else None,
            )
        except KeyError as error:
            raise InputError(f"{path}: not a demosift policy: {error.args[0]!r} is missing") from error
        except ValueError as error:
            raise InputError(f"{path}: not a demosift policy: {error}") from error
        own = {"normaliser/shift", "normaliser/scale"} | {f"layers/{name}" for name, _ in named_arrays(policy.layers)}
        for name, tensor in tensors.items():
            if name not in own:
                raise InputError(f"{path}: not a demosift policy: tensor {name!r} belongs to no layer")
            if tensor.dtype != np.float32:
                raise InputError(f"{path}: tensor {name!r} is {tensor.dtype}, expected float32")
            if not np.isfinite(tensor).all():
                raise InputError(f"{path}: tensor {name!r} holds NaN or infinity")
        with np.errstate(all="ignore"):
            probe = policy.outputs(np.zeros((len(policy.shift), 1, policy.obs_dim), np.float32))
        if not np.isfinite(probe).all():
            raise InputError(f"{path}: its parameters are so large that its actions are not finite")
        return policy


_NUMBER = (None, float, int)
_CONFIG = {
    "kind": str,
    "mean_limit": _NUMBER,
    "environment": (
        None,
        {
            "id": str,
            "kwargs": dict,
            "action_low": (None, [(float, int)]),
            "action_high": (None, [(float, int)]),
            "num_actions": (None, int),
        },
    ),
    "metadata": {str: str},
    "ensemble?": int,
    "network?": str,
    "stated_bounds?": lambda ends: isinstance(ends, list) and len(ends) == 2,
    "log_std_range": (None, [(float, int)]),
}


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The metadata and the tensors of a safetensors file."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            # Types that NumPy does not know, such as float8, raise TypeError or AttributeError.
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: not a safetensors file ({' '.join(str(error).split())})") from error


@dataclass(frozen=True)
class RandomPolicy:
    """Uniform in the box, or over the actions; every episode draws from a generator made of its own seed."""

    environment: EnvironmentSpec

    @property
    def num_members(self) -> int:
        """Always 1."""
        return 1

    @property
    def action_dim(self) -> int:
        """How many numbers an action has, or how many actions there are where they are discrete."""
        return self.environment.num_actions or len(self.environment.action_low or ())

    def act(
        self,
        obs: ArrayLike,
        member: int = 0,
        deterministic: bool = False,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray | int:
        """A random action, or one for each row, as `Policy.act` gives them. It is drawn in any case."""
        if member != 0:
            raise InputError(f"member {member} does not exist: the random policy has only member 0")
        rows, single = _observations(obs)
        generator = _generator(rng)
        action = [self.draw(generator) for _ in rows]
        stacked = np.reshape(action, (len(rows), self.action_dim))
        return _native(stacked, self.environment, self.environment.discrete, single)

    def draw(self, rng: np.random.Generator) -> Shaped[np.ndarray, "action"]:
        """One action, in [-1, 1] or one-hot."""
        if self.environment.discrete:
            return np.eye(self.action_dim, dtype=np.int8)[rng.integers(self.action_dim)]
        return rng.uniform(-1, 1, self.action_dim).astype(np.float32)


@dataclass(frozen=True)
class NoisyPolicy:
    """A policy with Gaussian noise on every action that it takes; each episode draws from a generator of its own.

    The deviation is that of actions in [-1, 1], where they are kept. Discrete actions are random with that probability.
    """

    policy: Policy
    deviation: float

    @property
    def environment(self) -> EnvironmentSpec | None:
        return self.policy.environment

    @property
    def num_members(self) -> int:
        return self.policy.num_members

    @property
    def action_dim(self) -> int:
        return self.policy.action_dim

    def disturb(self, action: Shaped[np.ndarray, "action"], rng: np.random.Generator) -> Shaped[np.ndarray, "action"]:
        if self.policy.kind == "categorical":
            other = np.eye(len(action), dtype=action.dtype)[rng.integers(len(action))]
            return other if rng.uniform() < self.deviation else action
        return np.clip(action + self.deviation * rng.normal(size=len(action)), -1, 1).astype(np.float32)


Operator = Literal["expert", "second", "noisy", "wrong-goal", "idle"]


@dataclass(frozen=True)
class ScriptedPolicy:
    """The program that comes with an environment. It looks into the simulator, so it acts nowhere else.

    Members are operators: the program as it is (`expert`), someone as good with another style (`second`), and
    others with noise, a wrong goal in mind, or idle phases.
    """

    environment: EnvironmentSpec
    operators: tuple[Operator, ...] = ("expert",)

    @property
    def num_members(self) -> int:
        return len(self.operators)

    @property
    def action_dim(self) -> int:
        return self.environment.num_actions or len(self.environment.action_low or ())

    def act(
        self,
        obs: ArrayLike,
        member: int = 0,
        deterministic: bool = True,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray | int:
        raise InputError(f"act: the program of {self.environment.id} needs the simulator: record or evaluate it")


Named = Policy | RandomPolicy | ScriptedPolicy  # what a name on the command line stands for
Actor = Named | NoisyPolicy


def _observations(obs: ArrayLike, obs_dim: int | None = None) -> tuple[Float[np.ndarray, "rows obs"], bool]:
    """Observations as rows, and whether there was only one, without rows. `obs_dim` None: any size will do."""
    try:
        given = np.asarray(obs)
    except ValueError:  # lists of unequal length
        given = np.asarray(None)
    if given.dtype.kind not in "fiub":
        hint = "; env.reset() returns a pair, whose first part it is" if isinstance(obs, tuple) else ""
        raise InputError(f"act: the observation is not an array of numbers{hint}")
    if given.ndim not in (1, 2) or given.shape[-1] != (given.shape[-1] if obs_dim is None else obs_dim):
        size = "obs" if obs_dim is None else obs_dim
        raise InputError(f"act: observations of shape {given.shape}, expected ({size},) or (rows, {size})")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinity, and is refused
        rows = np.atleast_2d(given).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        where = "the observation" if given.ndim == 1 else f"observation {bad[0]}"
        raise InputError(f"act: {where} holds NaN or infinity")
    return rows, given.ndim == 1


def _generator(rng: np.random.Generator | None) -> np.random.Generator:
    # A seed would give the same noise at every step of a loop.
    if not isinstance(rng, np.random.Generator | None):
        raise InputError("act: rng is not a NumPy generator; make one before the loop: np.random.default_rng(0)")
    return np.random.default_rng() if rng is None else rng


def _native(
    action: Shaped[np.ndarray, "rows action"], environment: EnvironmentSpec | None, discrete: bool, single: bool
) -> np.ndarray | int:
    """Actions as the environment takes them; of one observation, without rows."""
    if discrete:
        index = np.argmax(action, axis=-1)
        return int(index[0]) if single else index
    scaled = action if environment is None else environment.scale_action(action)
    return scaled[0] if single else scaled


def _softmax(logits: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _environment(config: dict[str, Any] | None) -> EnvironmentSpec | None:
    if config is None:
        return None
    low, high = config["action_low"], config["action_high"]
    bounds = (None, None) if low is None and high is None else Bounds.parse(low, high)
    return EnvironmentSpec(config["id"], config["kwargs"], *bounds, num_actions=config["num_actions"])


def _log_std_range(config: dict[str, Any]) -> tuple[float, float] | None:
    """Told by the files of runs, though not of the first release; policies of `collect` always have this one."""
    told = config.get("log_std_range", (-5.0, 2.0) if config["metadata"].get("algorithm") == "sac" else None)
    return None if told is None else tuple(told)


def _problem(policy: Policy) -> str | None:
    """What is wrong with a policy, if anything: broadcasting would let most wrong shapes pass."""
    if policy.kind not in KINDS:
        return f"unknown kind {policy.kind!r}"
    if not (policy.mean_limit is None or (isinstance(policy.mean_limit, int | float) and policy.mean_limit > 0)):
        return f"mean_limit {policy.mean_limit!r} is not a positive number"
    if policy.log_std_range is not None and not _is_range(policy.log_std_range):
        return f"log_std_range {policy.log_std_range!r} is not two numbers, the smaller one first"
    if not policy.layers:
        return "it has no layers"
    if policy.network is not None and not isinstance(policy.layers, Mapping):
        return f"the parameters of {policy.network.name!r} are not a dictionary"
    if policy.shift.ndim != 2 or policy.shift.shape != policy.scale.shape:
        return f"normaliser shapes {policy.shift.shape} and {policy.scale.shape}, expected twice [members, obs]"
    members, width = policy.shift.shape
    if members == 0 or width == 0:
        return f"normaliser shape {policy.shift.shape}: it has no members, or no observations"
    if type(policy.ensemble) is not int or policy.ensemble < 1 or members % policy.ensemble:
        return f"{members} networks cannot be ensembles of {policy.ensemble!r}"
    if policy.network is not None:
        return _network_problem(policy, policy.network, members)
    for index, (kernel, bias) in enumerate(policy.layers):
        if kernel.ndim != 3 or kernel.shape[:2] != (members, width) or bias.shape != (members, kernel.shape[2]):
            expected = f"[{members}, {width}, out] and [{members}, out]"
            return f"layer {index} has shapes {kernel.shape} and {bias.shape}, expected {expected}"
        width = kernel.shape[2]
    if policy.kind == "tanh-gaussian" and width % 2:
        return f"a tanh-gaussian's last layer is [mean | log_std], but its width {width} is odd"
    if width == 0:
        return "its last layer gives no actions"
    return _environment_problem(policy)


def _environment_problem(policy: Policy) -> str | None:
    environment = policy.environment
    if policy.stated_bounds is not None and len(policy.stated_bounds.low) != policy.action_dim:
        return f"it has {policy.action_dim} actions, its stated bounds {len(policy.stated_bounds.low)}"
    if environment is None:
        return None
    if environment.discrete != (policy.kind == "categorical"):
        return f"a {policy.kind} policy for an environment with {environment.num_actions or 'no'} discrete actions"
    stated = environment.num_actions if environment.discrete else environment.bounds and len(environment.bounds.low)
    if stated is not None and stated != policy.action_dim:
        return f"it has {policy.action_dim} actions, its environment {stated}"
    return None


def _network_problem(policy: Policy, network: Network, members: int) -> str | None:
    for name, array in named_arrays(policy.layers):
        if array.ndim < 1 or len(array) != members:
            return f"{name!r} of network {network.name!r} has shape {array.shape}, expected [{members}, ...]"
    try:
        outputs = policy.outputs(np.zeros((members, 1, policy.obs_dim), np.float32))
    except Exception as error:  # code of another package, on parameters that need not be its own
        return f"network {network.name!r} cannot use these parameters: {type(error).__name__}: {error}"
    if outputs.shape[:2] != (members, 1) or outputs.ndim != 3:
        return f"network {network.name!r} turns [1, 1, obs] into {list(outputs.shape[1:])}, expected [1, 1, outputs]"
    if policy.kind == "tanh-gaussian" and outputs.shape[2] % 2:
        return f"a tanh-gaussian's outputs are [mean | log_std], but their number {outputs.shape[2]} is odd"
    return None


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    """The same layers or parameters, with each array replaced by what the function makes of it, or of several."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: map_arrays(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        parts = [map_arrays(function, *own) for own in zip(*trees, strict=True)]
        return Layer(*parts) if isinstance(first, Layer) else tuple(parts)
    return function(*trees)


def named_arrays(tree: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of layers or parameters, as they are named in a file: `0/kernel`."""
    parts = tree._asdict() if isinstance(tree, Layer) else dict(enumerate(tree)) if isinstance(tree, tuple) else tree
    if isinstance(parts, Mapping):
        for key, part in parts.items():
            yield from named_arrays(part, f"{prefix}/{key}" if prefix else str(key))
    else:
        yield prefix, parts


def _layers(tensors: Mapping[str, np.ndarray]) -> tuple[Layer, ...]:
    number = max(1, -(-sum(name.startswith("layers/") for name in tensors) // 2))  # half a layer is one that is missing
    return tuple(Layer(tensors[f"layers/{i}/kernel"], tensors[f"layers/{i}/bias"]) for i in range(number))


def _params(tensors: Mapping[str, np.ndarray]) -> Params:
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        home, *path, last = name.split("/")
        if home == "layers":
            inner = found
            for key in path:
                inner = inner.setdefault(key, {})
                if not isinstance(inner, dict):
                    raise ValueError(f"{name}: both an array and a group of them")
            inner[last] = tensor
    return found


def _is_range(pair: Sequence[Any]) -> bool:
    return len(pair) == 2 and all(isinstance(end, int | float) for end in pair) and pair[0] <= pair[1]
