"""The cores this process may use, and a thread for each."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


def available_cores() -> int:
    """Cores this process may use, which in a container or under a batch system are fewer than the machine's."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([found, *_limits])


_limits: list[int] = []


@contextmanager
def at_most_cores(count: int) -> Iterator[None]:
    """For a task on a cluster, which shares its machine with other tasks."""
    _limits.append(count)
    try:
        yield
    finally:
        _limits.remove(count)


def core_threads() -> ThreadPoolExecutor:
    """A thread for each core, in each of which OpenMP is kept from starting one per core again for scikit-learn."""
    return ThreadPoolExecutor(available_cores(), initializer=threadpool_limits, initargs=(1, "openmp"))
