"""Threads follow the cores that the process may use, not those that the machine has."""

import os
import threading

import numpy as np
import pytest
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from demosift.sift import scorers
from demosift.simulation import cores


def threads_of(monkeypatch: pytest.MonkeyPatch, allowed: int) -> int:
    """How many threads apply models at the same time: each waits until the others are there too."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    together = threading.Barrier(allowed)
    seen = set()

    def waiting(model: int, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        together.wait(timeout=10)
        seen.add(threading.get_ident())
        return np.zeros((1, len(obs)))

    rows = np.zeros((12, 1), np.float32)
    scorers.features_by_models(scorers.Fitted(waiting), np.arange(12)[None], rows, rows)
    return len(seen)


@pytest.mark.parametrize("allowed", [1, 3])
def test_models_are_applied_on_the_cores_that_are_allowed(allowed: int, monkeypatch: pytest.MonkeyPatch):
    assert threads_of(monkeypatch, allowed) == allowed


def test_a_thread_of_many_computes_alone():
    """Otherwise scikit-learn's trees, applied by each thread, would start as many threads again."""
    before = _openmp_effective_n_threads()
    with cores.core_threads() as threads:
        assert threads.submit(_openmp_effective_n_threads).result() == 1
    assert _openmp_effective_n_threads() == before


def test_a_system_without_affinity_counts_its_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.available_cores() == 1
