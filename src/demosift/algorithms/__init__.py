"""The algorithms. A new one is a file here and a line in `registry.py`."""

from demosift.algorithms.bc import BC
from demosift.algorithms.demodice import DemoDICE
from demosift.algorithms.dwbc import DWBC
from demosift.algorithms.ilid import ILID
from demosift.algorithms.iql import IQL
from demosift.algorithms.lobsdice import LobsDICE
from demosift.algorithms.nbcu import NBCU
from demosift.algorithms.otr import OTR
from demosift.algorithms.seabo import SEABO
from demosift.algorithms.smodice import SMODICE
from demosift.algorithms.tailo import TAILO
from demosift.algorithms.wbcu import WBCU
from demosift.algorithms.wbcu_two_stage import WBCUTwoStage
from demosift.learning.about import About, Work
from demosift.learning.algorithm import REGISTRY, Algorithm, Batch, Metrics, State, algorithm, facts, make_algorithm

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
