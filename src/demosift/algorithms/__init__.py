"""The algorithms and their registry. A new one is a file here and a line below."""

from demosift.algorithms.bc import BC
from demosift.algorithms.demodice import DemoDICE
from demosift.algorithms.dwbc import DWBC
from demosift.algorithms.interface import Algorithm, Batch, Metrics, State, algorithm
from demosift.algorithms.nbcu import NBCU
from demosift.algorithms.wbcu import WBCU
from demosift.algorithms.wbcu_two_stage import WBCUTwoStage

ALGORITHMS: tuple[type[Algorithm], ...] = (BC, NBCU, WBCU, WBCUTwoStage, DemoDICE, DWBC)
REGISTRY: dict[str, type[Algorithm]] = {each.name: each for each in ALGORITHMS}

__all__ = [
    "BC",
    "DWBC",
    "NBCU",
    "REGISTRY",
    "WBCU",
    "Algorithm",
    "Batch",
    "DemoDICE",
    "Metrics",
    "State",
    "WBCUTwoStage",
    "algorithm",
]
