"""Where a large set is read: in this process, or by tasks on a Ray cluster. The result is the same to the last byte.

A source has blocks, which lie where they lie whoever reads them, and `Work` turns blocks into results, one for each.
Both engines give these results in order. On Ray a task takes a stretch of blocks. It reads them from the files, which
every node must see under the same path, and holds one at a time; what it needs to know travels once. The driver has a
bounded number of stretches under way, so that results do not pile up either. A stretch whose worker or node dies is
read again elsewhere: it depends on nothing but the files and what travelled.
"""

import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from demosift.cluster import ENGINES, RETRIES, connected
from demosift.data import RowSource
from demosift.data.checks import one_line
from demosift.data.formats import source_files
from demosift.data.rows import FileRows, Layout, Rows, WrappedRows
from demosift.processes import peak_bytes
from demosift.simulation.cores import at_most_cores
from demosift.types import InputError

BLOCK = 131_072  # rows read at a time
STRETCH = 4  # blocks of that many rows, which a task reads one after the other
AHEAD = 3  # stretches under way for each core: some are read, some wait to be fetched in their order


class Work(Protocol):
    """A result for each block, made with what is shared by all blocks and what belongs to the rows of these."""

    def __call__(self, blocks: Iterator[Rows], shared: Any, own: Any, /) -> Iterator[Any]: ...


Own = Callable[[slice], Any]  # what belongs to these rows of the source


def nothing(rows: slice) -> None:
    return None


class Engine(Protocol):
    def run(self, work: Work, source: RowSource, shared: Any = None, own: Own = nothing) -> Iterator[Any]:
        """The results of all blocks of a source, in order."""
        ...

    @property
    def usage(self) -> Mapping[str, float]:
        """What workers used, where there are any."""
        ...


class Here:
    """This process."""

    usage: Mapping[str, float] = {}

    def run(self, work: Work, source: RowSource, shared: Any = None, own: Own = nothing) -> Iterator[Any]:
        return work(source.blocks(BLOCK), shared, own(slice(0, source.num_rows)))


class Bundle(NamedTuple):
    """What travels to the nodes once."""

    work: Work
    source: RowSource
    shared: Any
    block: int
    files: tuple[tuple[str, int], ...]  # which a node must see, and their sizes
    folder: str  # in which relative paths begin


class Answer(NamedTuple):
    """What a task returns: its results or why there are none, and what its worker used."""

    results: list[Any]
    failure: str | None
    cpu_seconds: float
    peak_bytes: int


def read_stretch(bundle: Sequence[Any], start: int, stop: int, own: Any, on_cpu: bool) -> Answer:
    """A task: the results of some blocks. What is wrong with a file is an answer; only a death is retried."""
    import ray

    began = time.process_time()
    if on_cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"  # before the models arrive, which import JAX
    results, failure = [], None
    node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    given: Bundle = ray.get(bundle[0])
    from demosift.learning.compiled import keep_programs  # not before: it imports JAX

    keep_programs()
    with at_most_cores(1), working_in(given.folder):
        failure = unseen(given.files, node)
        try:
            if failure is None:
                blocks = given.source.blocks(given.block, start, stop)
                results = list(given.work(blocks, given.shared, own))
        except InputError as error:
            failure = f"{error} (read on node {node})"
    return Answer([] if failure else results, failure, time.process_time() - began, peak_bytes())


@lru_cache(maxsize=64)
def unseen(files: tuple[tuple[str, int], ...], node: str) -> str | None:
    """Which of the files this node does not see as the driver does, if any."""
    for path, size in files:
        try:
            found = os.stat(path).st_size
        except OSError as error:
            return f"{path}: node {node} cannot see this file ({os.strerror(error.errno or 0)}); all nodes need it"
        if found != size:
            return f"{path}: on node {node} this file has {found} bytes instead of {size}; all nodes need the same one"
    return None


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    with suppress(OSError):  # a node that lacks it still sees absolute paths
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass
class OnRay:
    """Tasks on the cluster that is `connected`."""

    ray: Any
    used: dict[str, float] = field(default_factory=lambda: {"tasks": 0, "cpu_seconds": 0.0, "peak_bytes": 0})

    def __post_init__(self) -> None:
        import jax  # not where a worker would import it before it knows what to compute on

        # Processors of another kind round differently: tasks compute on the kind that the models were trained on.
        self.on_cpu = jax.default_backend() == "cpu"
        self.kind = "CPU" if self.on_cpu else "GPU"
        if self.slots() < 1:
            raise InputError(f"--engine ray: the cluster has no {self.kind}, on which this machine computes")
        self.task = self.ray.remote(read_stretch).options(
            num_cpus=1, num_gpus=0 if self.on_cpu else 1, max_retries=RETRIES, retry_exceptions=False
        )

    @property
    def usage(self) -> Mapping[str, float]:
        return self.used

    def slots(self) -> int:
        return int(self.ray.cluster_resources().get(self.kind, 0))

    def run(self, work: Work, source: RowSource, shared: Any = None, own: Own = nothing) -> Iterator[Any]:
        bundle = Bundle(work, source, shared, BLOCK, files_of(source), os.getcwd())
        try:
            there = self.ray.put(bundle)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise InputError(
                f"--engine ray: {source.source} or the scorer cannot travel to other machines: {one_line(error)[:200]}"
            ) from error
        left, running = deque(stretches(source.layout(BLOCK), STRETCH * BLOCK)), deque[Any]()
        try:
            while left or running:
                while left and len(running) < AHEAD * max(self.slots(), 1):
                    start, stop, rows = left.popleft()
                    running.append(self.task.remote([there], start, stop, own(rows), self.on_cpu))
                yield from self.fetch(running[0])
                running.popleft()
        finally:
            for reference in running:
                self.ray.cancel(reference)

    def fetch(self, reference: Any) -> list[Any]:
        try:
            answer: Answer = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
            raise InputError(
                f"--engine ray: a task was lost {RETRIES + 1} times with its worker or node: {one_line(error)[:300]}"
            ) from error
        if answer.failure is not None:
            raise InputError(answer.failure)
        self.used["tasks"] += 1
        self.used["cpu_seconds"] += answer.cpu_seconds
        self.used["peak_bytes"] = max(self.used["peak_bytes"], answer.peak_bytes)
        return answer.results


def stretches(layout: Layout, rows: int) -> Iterator[tuple[int, int, slice]]:
    """Stretches of blocks of at least `rows` rows: the numbers of their blocks, and their rows.

    None begins with a block that cannot be read without what comes before it.
    """
    first, position = 0, 0
    for number in range(1, len(layout.ends) + 1):
        end = int(layout.ends[number - 1])
        if number == len(layout.ends) or (end - position >= rows and layout.apart[number]):
            yield first, number, slice(position, end)
            first, position = number, end


def files_of(source: RowSource) -> tuple[tuple[str, int], ...]:
    """The files that a source is read from, and their sizes; none of data in memory, which travel themselves."""
    rows = source.rows if isinstance(source, WrappedRows) else source
    if not isinstance(rows, FileRows):
        return ()
    paths = [os.path.abspath(path) for path in source_files(rows.source)]
    return tuple((path, os.stat(path).st_size) for path in paths if os.path.exists(path))


@contextmanager
def open_engine(name: str, address: str | None) -> Iterator[Engine]:
    if name not in ENGINES:
        raise InputError(f"score: unknown engine {name!r}; there are {' and '.join(ENGINES)}")
    if name != "ray":
        if address is not None:
            raise InputError("score: an address is that of a Ray cluster: it needs --engine ray")
        yield Here()
        return
    with connected(address):
        import ray

        yield OnRay(ray)
