"""demosift: offline imitation learning with a supplementary dataset. The public names, each loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demosift.algorithms import BC, DWBC, NBCU, REGISTRY, WBCU, Batch, DemoDICE, WBCUTwoStage, algorithm
    from demosift.collect.record import record
    from demosift.collect.tasks import make_task
    from demosift.data import load, read_dataset, write_dataset
    from demosift.environments import normalised_score, resolve
    from demosift.evaluation import Evaluator, evaluate, load_policy
    from demosift.export import export_onnx
    from demosift.policy import Policy
    from demosift.runs import Run, load_run
    from demosift.sift.filtering import filter_dataset
    from demosift.sift.frozen import with_scores
    from demosift.sift.scoring import score
    from demosift.train import fit, weigh
    from demosift.types import Dataset, Demonstrations, EnvironmentSpec, InputError, Transitions

# JAX takes a second to import and simulator processes never need it, so nothing is imported before it is asked for.
_HOMES = {
    "algorithms": ["BC", "DWBC", "NBCU", "REGISTRY", "WBCU", "Batch", "DemoDICE", "WBCUTwoStage", "algorithm"],
    "collect.record": ["record"],
    "collect.tasks": ["make_task"],
    "data": ["load", "read_dataset", "write_dataset"],
    "environments": ["normalised_score", "resolve"],
    "evaluation": ["Evaluator", "evaluate", "load_policy"],
    "export": ["export_onnx"],
    "policy": ["Policy"],
    "runs": ["Run", "load_run"],
    "sift.filtering": ["filter_dataset"],
    "sift.frozen": ["with_scores"],
    "sift.scoring": ["score"],
    "train": ["fit", "weigh"],
    "types": ["Dataset", "Demonstrations", "EnvironmentSpec", "InputError", "Transitions"],
}
_HOME = {name: f"demosift.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "BC",
    "DWBC",
    "NBCU",
    "REGISTRY",
    "WBCU",
    "Batch",
    "Dataset",
    "DemoDICE",
    "Demonstrations",
    "EnvironmentSpec",
    "Evaluator",
    "InputError",
    "Policy",
    "Run",
    "Transitions",
    "WBCUTwoStage",
    "algorithm",
    "evaluate",
    "export_onnx",
    "filter_dataset",
    "fit",
    "load",
    "load_policy",
    "load_run",
    "make_task",
    "normalised_score",
    "read_dataset",
    "record",
    "resolve",
    "score",
    "weigh",
    "with_scores",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'demosift' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # also over the submodule of the same name, such as `evaluate`
    return value


def __dir__() -> list[str]:
    return __all__
