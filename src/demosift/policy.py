"""The policy as data: stacked members of a small network, in NumPy, and its safetensors file.

Acting takes a few small products, so it is done in NumPy inside the simulating processes: they start fast because they
never import JAX, and an evaluation does not wait for training on the device. Training keeps its own parameters and
turns them into a `Policy` to act, save or export.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from demosift.files import atomic_write
from demosift.types import EnvironmentSpec, InputError

Kind = Literal["tanh-gaussian", "categorical"]
KINDS: tuple[Kind, ...] = ("tanh-gaussian", "categorical")


class Layer(NamedTuple):
    """One affine layer of every member."""

    kernel: Float[np.ndarray, "members in out"]
    bias: Float[np.ndarray, "members out"]


@dataclass(frozen=True, eq=False)
class Policy:
    """`layers` with ReLU between them, on `(obs + shift) * scale`.

    A tanh-Gaussian's last layer gives [mean | log_std] and acts with `tanh(mean)`, the mean clipped to ±`mean_limit`; a
    categorical one gives logits and acts with the largest, as an int8 one-hot row. With an `ensemble` of K, each member
    is K networks that stand together, and acts with the mean of their actions (categorical: of their probabilities).
    """

    kind: Kind
    layers: tuple[Layer, ...]
    shift: Float[np.ndarray, "members obs"]
    scale: Float[np.ndarray, "members obs"]
    mean_limit: float | None = None
    environment: EnvironmentSpec | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    ensemble: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(Layer(*layer) for layer in self.layers))
        problem = _problem(self)
        if problem:
            raise ValueError(problem)

    @property
    def num_members(self) -> int:
        return len(self.shift) // self.ensemble

    @property
    def obs_dim(self) -> int:
        return self.shift.shape[-1]

    @property
    def action_dim(self) -> int:
        width = self.layers[-1].bias.shape[-1]
        return width if self.kind == "categorical" else width // 2

    def outputs(self, obs: Float[np.ndarray, "members n obs"]) -> Float[np.ndarray, "members n out"]:
        """The output of the last layer: [mean | log_std] or logits.

        Each row is multiplied on its own, as a vector: the rounding of a matrix product depends on how many rows it
        has, and an episode must not depend on the episodes that happen to be simulated beside it.
        """
        hidden = (obs.astype(np.float32) + self.shift[:, None]) * self.scale[:, None]
        for index, (kernel, bias) in enumerate(self.layers):
            if index > 0:
                hidden = np.maximum(hidden, 0)
            hidden = np.matmul(hidden[:, :, None], kernel[:, None])[:, :, 0] + bias[:, None]
        return hidden

    def act(self, obs: Float[np.ndarray, "members n obs"]) -> Shaped[np.ndarray, "members n action"]:
        """Deterministic actions, in [-1, 1] or one-hot."""
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
        rows = [self.ensemble * index + place for index in indices for place in range(self.ensemble)]
        layers = tuple(Layer(kernel[rows], bias[rows]) for kernel, bias in self.layers)
        return replace(self, layers=layers, shift=self.shift[rows], scale=self.scale[rows])

    def member(self, index: int) -> "Policy":
        if not 0 <= index < self.num_members:
            raise InputError(f"member {index} does not exist: the policy has members 0 to {self.num_members - 1}")
        return self.members([index])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, whole or not at all; the same policy always gives the same bytes."""
        tensors = {"normaliser/shift": self.shift, "normaliser/scale": self.scale}
        for index, (kernel, bias) in enumerate(self.layers):
            tensors |= {f"layers/{index}/kernel": kernel, f"layers/{index}/bias": bias}
        tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
        config = {
            "kind": self.kind,
            "mean_limit": self.mean_limit,
            "environment": None if self.environment is None else asdict(self.environment),
            "metadata": dict(self.metadata),
            **({} if self.ensemble == 1 else {"ensemble": self.ensemble}),
        }
        with atomic_write(path) as temporary:
            # One entry: safetensors writes several in an order that changes from run to run.
            save_file(tensors, temporary, metadata={"demosift": json.dumps(config, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Policy":
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such policy file")
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a safetensors file ({error})") from error
        try:
            config = json.loads(header["demosift"])
            policy = cls(
                kind=config["kind"],
                layers=tuple(
                    Layer(tensors[f"layers/{index}/kernel"], tensors[f"layers/{index}/bias"])
                    for index in range(max(1, sum(name.endswith("/kernel") for name in tensors)))
                ),
                shift=tensors["normaliser/shift"],
                scale=tensors["normaliser/scale"],
                mean_limit=config["mean_limit"],
                environment=_environment(config["environment"]),
                metadata=config["metadata"],
                ensemble=config.get("ensemble", 1),
            )
        except KeyError as error:
            raise InputError(f"{path}: not a demosift policy: {error.args[0]!r} is missing") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: not a demosift policy: {error}") from error
        for name, tensor in tensors.items():
            if tensor.dtype != np.float32:
                raise InputError(f"{path}: tensor {name!r} is {tensor.dtype}, expected float32")
            if not np.isfinite(tensor).all():
                raise InputError(f"{path}: tensor {name!r} holds NaN or infinity")
        return policy


@dataclass(frozen=True)
class RandomPolicy:
    """Uniform in the box, or over the actions; every episode draws from a generator made of its own seed."""

    environment: EnvironmentSpec

    @property
    def num_members(self) -> int:
        return 1

    @property
    def action_dim(self) -> int:
        return self.environment.num_actions or len(self.environment.action_low or ())

    def draw(self, rng: np.random.Generator) -> Shaped[np.ndarray, "action"]:
        if self.environment.discrete:
            return np.eye(self.action_dim, dtype=np.int8)[rng.integers(self.action_dim)]
        return rng.uniform(-1, 1, self.action_dim).astype(np.float32)


Actor = Policy | RandomPolicy


def _softmax(logits: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _environment(config: dict[str, Any] | None) -> EnvironmentSpec | None:
    if config is None:
        return None
    bounds = {key: None if config[key] is None else tuple(config[key]) for key in ("action_low", "action_high")}
    return EnvironmentSpec(config["id"], config["kwargs"], num_actions=config["num_actions"], **bounds)


def _problem(policy: Policy) -> str | None:
    """What is wrong with a policy, if anything: broadcasting would let most wrong shapes pass."""
    if policy.kind not in KINDS:
        return f"unknown kind {policy.kind!r}"
    if not (policy.mean_limit is None or isinstance(policy.mean_limit, int | float)):
        return f"mean_limit {policy.mean_limit!r} is not a number"
    if not policy.layers:
        return "it has no layers"
    if policy.shift.ndim != 2 or policy.shift.shape != policy.scale.shape:
        return f"normaliser shapes {policy.shift.shape} and {policy.scale.shape}, expected twice [members, obs]"
    members, width = policy.shift.shape
    if type(policy.ensemble) is not int or policy.ensemble < 1 or members % policy.ensemble:
        return f"{members} networks cannot be ensembles of {policy.ensemble!r}"
    for index, (kernel, bias) in enumerate(policy.layers):
        if kernel.ndim != 3 or kernel.shape[:2] != (members, width) or bias.shape != (members, kernel.shape[2]):
            expected = f"[{members}, {width}, out] and [{members}, out]"
            return f"layer {index} has shapes {kernel.shape} and {bias.shape}, expected {expected}"
        width = kernel.shape[2]
    if policy.kind == "tanh-gaussian" and width % 2:
        return f"a tanh-gaussian's last layer is [mean | log_std], but its width {width} is odd"
    return None
