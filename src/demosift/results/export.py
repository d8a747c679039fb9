"""A policy as an ONNX file that any runtime serves: raw observations in, actions in the environment's units out.

The graph is the acting policy: normaliser, affine layers with ReLU between them, and either the squashed mean scaled to
the action bounds or the index of the largest logit. Its batch is dynamic and it draws nothing: actions are the
deterministic ones that `evaluate` measures. Before the file takes its place it is run by onnxruntime on the run's own
data and compared with the policy that was trained.
"""

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from demosift.data import open_rows
from demosift.files import atomic_write, check_apart
from demosift.policy import Policy
from demosift.results.run import RunFolder
from demosift.simulation.evaluation import load_policy
from demosift.simulation.shipped import SHIPPED
from demosift.types import Bounds, EnvironmentSpec, InputError

if TYPE_CHECKING:
    from onnx import ModelProto

# Old enough for runtimes in the field; every operator used here is older still.
OPSET, IR_VERSION = 17, 8

TOLERANCE = 1e-4  # of half an action's range; float32 sums in another order differ by about 1e-6
_CHECKED_ROWS = 100_000


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its actions are from the policy's."""

    out: str
    obs_dim: int
    action_dim: int
    member: int
    checked_on: str | None  # None where onnxruntime is not installed
    rows: int
    difference: float | None  # the largest, in action units; for discrete actions, the share of rows that differ

    def __str__(self) -> str:
        shape = f"{self.out}: {self.obs_dim} observations to {self.action_dim} actions"
        if self.checked_on is None:
            return f"{shape}; not checked, since onnxruntime is not installed (pip install 'demosift[onnx]')"
        return f"{shape}; largest difference {self.difference:.2g} over {self.rows:,} rows of {self.checked_on}"


def export_onnx(
    source: str | os.PathLike[str] | Policy,
    out: str | os.PathLike[str],
    env: EnvironmentSpec | str | None = None,
    member: int = 0,
    data: Sequence[str] | None = None,
) -> Exported:
    """Write one member of a policy as ONNX, checked on `data` (default: the data of its run).

    Where those files are not found, observations are drawn from the normaliser's mean and deviation instead.
    """
    _require_onnx()
    policy = source if isinstance(source, Policy) else load_policy(source, env)
    if not isinstance(policy, Policy):
        raise InputError("the random policy has nothing to export")
    if policy.network is not None:
        raise InputError(f"export: only perceptrons are written as ONNX; this one is {policy.network.name}")
    policy = policy.member(member)
    model = make_model(policy, member)
    folder = None if isinstance(source, Policy) or os.fspath(source) in SHIPPED else Path(source)
    check_apart(out, *_files_read(folder), *(data or ()))
    with atomic_write(out) as temporary:
        temporary.write_bytes(model.SerializeToString())
        obs, origin = _observations(policy, folder, data)
        difference = compare(temporary, policy, obs)
        low, high = map(np.asarray, action_bounds(policy))
        limit = TOLERANCE * (1.0 if policy.kind == "categorical" else max((high - low).max() / 2, 1e-6))
        if difference is not None and not difference <= limit:  # NaN is no small difference
            raise InputError(
                f"{os.fspath(out)}: not written: it differs from the policy by {difference:.3g} on {origin}"
            )
    checked_on = None if difference is None else origin
    return Exported(os.fspath(out), policy.obs_dim, policy.action_dim, member, checked_on, len(obs), difference)


def _files_read(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return [] if folder is None else [folder]
    run = RunFolder(folder)
    return [run.config, run.metrics, run.policy, run.request]


def make_model(policy: Policy, member: int = 0) -> "ModelProto":
    """The graph of a policy of one member."""
    from onnx import TensorProto, checker, helper, numpy_helper

    tensors: dict[str, np.ndarray] = {}
    nodes = []
    results = []
    for place in range(policy.ensemble):
        prefix = "" if policy.ensemble == 1 else f"network_{place}/"
        more, own = network_nodes(policy, place, prefix)
        nodes += more
        tensors |= own
        results.append(more[-1].output[0])
    if policy.kind == "categorical":
        if policy.ensemble > 1:
            nodes += [helper.make_node("Softmax", [each], [f"{each}_share"], axis=1) for each in results]
            results = [f"{each}_share" for each in results]
            nodes.append(helper.make_node("Mean", results, ["mean_share"]))
            results = ["mean_share"]
        nodes.append(helper.make_node("ArgMax", results, ["action"], axis=1, keepdims=0))
        output = helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"])
    else:
        bounds = action_bounds(policy)
        low, high = np.array(bounds.low), np.array(bounds.high)
        tensors |= {"centre": (high + low) / 2, "half": (high - low) / 2}
        squashed = ["squashed"] if policy.ensemble == 1 else [f"{each}_squashed" for each in results]
        nodes += [helper.make_node("Tanh", [each], [name]) for each, name in zip(results, squashed, strict=True)]
        if policy.ensemble > 1:
            nodes.append(helper.make_node("Mean", squashed, ["squashed"]))
        nodes += [
            helper.make_node("Mul", ["squashed", "half"], ["scaled"]),
            helper.make_node("Add", ["scaled", "centre"], ["action"]),
        ]
        output = helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", policy.action_dim])
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", policy.obs_dim])],
        [output],
        [numpy_helper.from_array(np.asarray(tensor, np.float32), name) for name, tensor in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="demosift")
    model.ir_version, model.producer_version = IR_VERSION, version("demosift")
    helper.set_model_props(model, describe(policy, member))
    checker.check_model(model, full_check=True)
    return model


def network_nodes(policy: Policy, place: int, prefix: str) -> tuple[list[Any], dict[str, np.ndarray]]:
    """One network of the policy, from the observation to the mean or the logits, and its tensors."""
    from onnx import helper

    tensors: dict[str, np.ndarray] = {f"{prefix}shift": policy.shift[place], f"{prefix}scale": policy.scale[place]}
    nodes = [
        helper.make_node("Add", ["obs", f"{prefix}shift"], [f"{prefix}shifted"]),
        helper.make_node("Mul", [f"{prefix}shifted", f"{prefix}scale"], [f"{prefix}hidden_0"]),
    ]
    last = len(policy.layers) - 1
    for index, (kernel, bias) in enumerate(policy.layers):
        # Acting needs the mean alone; the last layer's other columns are the log-deviation.
        width = policy.action_dim if index == last else bias.shape[-1]
        names = [f"{prefix}{name}_{index}" for name in ("hidden", "kernel", "bias")]
        tensors |= {names[1]: kernel[place, :, :width], names[2]: bias[place, :width]}
        affine = f"{prefix}affine_{index}"
        nodes.append(helper.make_node("Gemm", names, [affine]))
        if index < last:
            nodes.append(helper.make_node("Relu", [affine], [f"{prefix}hidden_{index + 1}"]))
    if policy.kind != "categorical" and policy.mean_limit is not None:
        limit = np.float32(policy.mean_limit)
        tensors |= {f"{prefix}mean_low": np.asarray(-limit), f"{prefix}mean_high": np.asarray(limit)}
        ends = [f"{prefix}mean_low", f"{prefix}mean_high"]
        nodes.append(helper.make_node("Clip", [f"{prefix}affine_{last}", *ends], [f"{prefix}mean"]))
    return nodes, tensors


def describe(policy: Policy, member: int = 0) -> dict[str, str]:
    """The file's metadata: what goes in, what comes out, and where it comes from; values that are not text as JSON."""
    environment = policy.environment
    facts: dict[str, Any] = {
        **policy.metadata,
        "kind": policy.kind,
        "member": member,
        **({} if policy.ensemble == 1 else {"ensemble": policy.ensemble}),
        "obs_dim": policy.obs_dim,
        "action_dim": policy.action_dim,
        "env_id": None if environment is None else environment.id,
        "env_kwargs": None if environment is None else dict(environment.kwargs),
    }
    if policy.kind == "categorical":
        facts["action"] = "index of the action"
    else:
        low, high = action_bounds(policy)
        own = "in the environment's units" if environment is not None else "in the units of its data"
        facts["action"] = "in [-1, 1]: the environment's bounds are not known" if policy.bounds is None else own
        facts |= {"action_low": low, "action_high": high}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


def action_bounds(policy: Policy) -> Bounds:
    """The actions that -1 and 1 stand for: -1 and 1 themselves where the policy does not know its environment."""
    return policy.bounds or Bounds((-1.0,) * policy.action_dim, (1.0,) * policy.action_dim)


def compare(path: Path, policy: Policy, obs: Float[np.ndarray, "rows obs"]) -> float | None:
    """The largest difference between the file's actions and the policy's; None without onnxruntime.

    For discrete actions, the share of rows that differ by more than a tie that rounding decides.
    """
    try:
        onnxruntime = import_onnxruntime()
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    theirs = np.concatenate([np.asarray(session.run(["action"], {"obs": part})[0]) for part in _parts(obs)])
    ours = np.concatenate([policy.act(part) for part in _parts(obs)])
    if policy.kind != "categorical":
        return float(np.abs(theirs - ours).max())
    preferences = [policy.proposals(part[None])[0].mean(axis=0) for part in _parts(obs)]
    logits = np.sort(np.concatenate(preferences), axis=1)
    clear = logits[:, -1] - logits[:, -2] > TOLERANCE if policy.action_dim > 1 else np.ones(len(obs), bool)
    return float(np.mean((theirs != ours) & clear))


def import_onnxruntime() -> Any:
    """ONNX Runtime, which is told not to keep an id of this machine in the home folder and not to send it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return importlib.import_module("onnxruntime")


def _parts(obs: np.ndarray, rows: int = 4096) -> list[np.ndarray]:
    return [obs[start : start + rows] for start in range(0, len(obs), rows)]


def _observations(policy: Policy, run: Path | None, data: Sequence[str] | None) -> tuple[np.ndarray, str]:
    """Observations to check the file on, and where they come from."""
    files = list(data) if data else _trained_on(run)
    found = []
    for file in files:
        try:
            rows = open_rows(file, actions="clip")
            if rows.obs_dim != policy.obs_dim:
                raise InputError(f"{file}: observations: columns: {rows.obs_dim}, but the policy has {policy.obs_dim}")
            step = max(rows.num_rows * len(files) // _CHECKED_ROWS, 1)
            found.append(rows.take(np.arange(0, rows.num_rows, step))[0])
        except InputError:
            if data:
                raise
            found.clear()  # the files have been moved or changed since the run
            break
    if found:
        return np.concatenate(found), " and ".join(files)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(10_000, policy.obs_dim)) / policy.scale[0] - policy.shift[0]
    return drawn.astype(np.float32), "draws from the normaliser's distribution (the run's data was not found)"


def _trained_on(run: Path | None) -> list[str]:
    if run is None or not (run / "config.json").is_file():
        return []
    sources = RunFolder(run).read_config().get("sources", [])
    return list(dict.fromkeys(str(source) for pair in sources for source in pair))


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise InputError("export: the package onnx is not installed; pip install 'demosift[onnx]'") from error
