"""demosift: offline imitation learning with a supplementary dataset. The public names, each loaded when first used."""

from importlib import import_module

TYPE_CHECKING = False  # `typing` takes as long to import as all else before the command line can answer to Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from demosift.algorithms import (
        BC,
        DWBC,
        ILID,
        IQL,
        NBCU,
        OTR,
        REGISTRY,
        SEABO,
        SMODICE,
        TAILO,
        WBCU,
        DemoDICE,
        LobsDICE,
        WBCUTwoStage,
    )
    from demosift.data import load, read_dataset, write_dataset
    from demosift.data.format import Format
    from demosift.learning.algorithm import Algorithm, Batch, algorithm
    from demosift.learning.fit import fit, weigh
    from demosift.learning.runner import Callback
    from demosift.policy import Network, Policy, RandomPolicy
    from demosift.registry import register
    from demosift.results.export import Exported, export_onnx
    from demosift.results.run import Run, load_run
    from demosift.sift.filtering import Filtered, filter_dataset, with_scores
    from demosift.sift.method import Sift
    from demosift.sift.scored import Scored
    from demosift.sift.scoring import score
    from demosift.simulation.environments import normalised_score, resolve
    from demosift.simulation.evaluation import Evaluation, Evaluator, evaluate, load_policy
    from demosift.tasks.recipes import make_task
    from demosift.tasks.record import record
    from demosift.types import Bounds, Dataset, Demonstrations, EnvironmentSpec, InputError, Origin, Transitions
    from demosift.vision.embedding import Cameras

    __version__: str

# JAX takes a second to import and simulator processes never need it, so nothing is imported before it is asked for.
_HOMES = {
    "algorithms": [
        *("BC", "DWBC", "ILID", "IQL", "NBCU", "OTR", "SEABO", "SMODICE", "TAILO", "WBCU"),
        *("DemoDICE", "LobsDICE", "REGISTRY", "WBCUTwoStage"),
    ],
    "learning.algorithm": ["Algorithm", "Batch", "algorithm"],
    "learning.runner": ["Callback"],
    "data.format": ["Format"],
    "registry": ["register"],
    "tasks.record": ["record"],
    "tasks.recipes": ["make_task"],
    "data": ["load", "read_dataset", "write_dataset"],
    "simulation.environments": ["normalised_score", "resolve"],
    "simulation.evaluation": ["Evaluation", "Evaluator", "evaluate", "load_policy"],
    "results.export": ["Exported", "export_onnx"],
    "policy": ["Network", "Policy", "RandomPolicy"],
    "results.run": ["Run", "load_run"],
    "sift.filtering": ["Filtered", "filter_dataset", "with_scores"],
    "sift.method": ["Sift"],
    "sift.scored": ["Scored"],
    "sift.scoring": ["score"],
    "learning.fit": ["fit", "weigh"],
    "vision.embedding": ["Cameras"],
    "types": ["Bounds", "Dataset", "Demonstrations", "EnvironmentSpec", "InputError", "Origin", "Transitions"],
}
_HOME = {name: f"demosift.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "BC",
    "DWBC",
    "ILID",
    "IQL",
    "NBCU",
    "OTR",
    "REGISTRY",
    "SEABO",
    "SMODICE",
    "TAILO",
    "WBCU",
    "Algorithm",
    "Batch",
    "Bounds",
    "Callback",
    "Cameras",
    "Dataset",
    "DemoDICE",
    "Demonstrations",
    "EnvironmentSpec",
    "Evaluation",
    "Evaluator",
    "Exported",
    "Filtered",
    "Format",
    "InputError",
    "LobsDICE",
    "Network",
    "Origin",
    "Policy",
    "RandomPolicy",
    "Run",
    "Scored",
    "Sift",
    "Transitions",
    "WBCUTwoStage",
    "__version__",
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
    "register",
    "resolve",
    "score",
    "weigh",
    "with_scores",
    "write_dataset",
]


def __getattr__(name: str) -> "Any":
    if name == "__version__":  # the installed package says it; looking it up takes longer than importing this module
        value = import_module("importlib.metadata").version("demosift")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'demosift' has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without calling this function
    return value


def __dir__() -> list[str]:
    return __all__
