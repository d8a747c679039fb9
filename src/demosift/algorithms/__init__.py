"""The algorithms. A new one is a file here and a line in `registry.py`."""

from demosift.algorithms.bc import BC
from demosift.algorithms.demodice import DemoDICE
from demosift.algorithms.dwbc import DWBC
from demosift.algorithms.lobsdice import LobsDICE
from demosift.algorithms.nbcu import NBCU
from demosift.algorithms.smodice import SMODICE
from demosift.algorithms.wbcu import WBCU
from demosift.algorithms.wbcu_two_stage import WBCUTwoStage
from demosift.learning.about import About, Work
from demosift.learning.algorithm import REGISTRY, Algorithm, Batch, Metrics, State, algorithm, facts, make_algorithm

__all__ = [
    "BC",
    "DWBC",
    "NBCU",
    "REGISTRY",
    "SMODICE",
    "WBCU",
    "About",
    "Algorithm",
    "Batch",
    "DemoDICE",
    "LobsDICE",
    "Metrics",
    "State",
    "WBCUTwoStage",
    "Work",
    "algorithm",
    "facts",
    "make_algorithm",
]
