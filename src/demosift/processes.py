"""Processes that work for this one: how they start, talk and end.

Workers are plain subprocesses that talk over a socket pair, not `multiprocessing` children: those import the user's
script again, which without an `if __name__ == "__main__"` guard would start more of them. A worker uses one thread and
is out of reach of Ctrl-C. It ends with its parent, however that ends: then the system closes the parent's end of the
socket, which a thread of the worker waits for from its first moment.
"""

import os
import pkgutil
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

from demosift.errors import InputError

Role = Callable[..., None]


class WorkerError(RuntimeError):
    """What a worker did failed, or the worker died. Its traceback is in a note."""


class OutsideError(WorkerError, InputError):
    """A worker failed, but not demosift in it: an environment did, or the system ended the process."""


class Failure(NamedTuple):
    """The last message of a worker that cannot go on."""

    message: str
    traceback: str
    kind: type[Exception]


class Worker:
    """The parent's view of one worker. Its `role` is a function of a module, called with the worker's connection."""

    def __init__(self, role: Role, *fds: int):
        name = f"{role.__module__}:{role.__qualname__}"
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        # Before NumPy loads, or its threads would compete with the other workers'.
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    f"from demosift.processes import serve; serve({name!r}, {theirs.fileno()}, *{fds})",
                ],
                pass_fds=(theirs.fileno(), *fds),
                env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,  # stdout belongs to --json
                process_group=0,  # Ctrl-C goes to the terminal's group: the parent decides what becomes of its workers
            )

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError:
            self.receive()  # it died: its last message, if any, says why

    def receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            status = self.process.wait()
            if status < 0:
                ended = f"a worker process died of {signal.Signals(-status).name}; was there enough memory?"
                raise OutsideError(ended) from error
            raise WorkerError(f"a worker process died (exit status {status})") from error
        if isinstance(answer, Failure):
            failure = answer.kind(answer.message)
            failure.add_note(answer.traceback)
            raise failure
        return answer


class Workers:
    """Workers with the same role; they end when closed, when garbage-collected, or when this process ends."""

    def __init__(self, num_workers: int, role: Role, *fds: int):
        self._workers = [Worker(role, *fds) for _ in range(num_workers)]
        self.close = weakref.finalize(self, _end, self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """One worker's failure ends all of them: the others' answers would arrive where nobody expects them."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Worker]:
        if not self.close.alive:
            raise RuntimeError("the workers were closed")
        return iter(self._workers)


class Closing:
    """Something that is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # it holds nothing that needs saving
    for worker in workers:
        worker.process.wait()
        worker.connection.close()


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def end_with_parent(fd: int) -> None:
    """End this process at once when the other end of a socket or pipe, which its parent holds, is closed."""

    def watch() -> None:
        closed = select.poll()
        closed.register(fd, select.POLLHUP)
        closed.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def serve(role: str, fd: int, *fds: int) -> None:
    """A worker's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(fd)
    connection = Connection(fd)
    try:
        pkgutil.resolve_name(role)(connection, *fds)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except Exception as error:
        kind = next((kind for kind in (OutsideError, WorkerError, InputError) if isinstance(error, kind)), None)
        message = str(error) if kind else f"{type(error).__name__}: {error}"
        connection.send(Failure(message, traceback.format_exc(), kind or WorkerError))
