"""How a command ends: an exit code, one line for what went wrong, and streams that take whatever is written to them.

0: done. 1: done, and the answer is no. 2: bad input, or the system refused something. 70: a defect of demosift.
128 and a signal's number: ended by it. 141: nobody reads the output any more, as if the broken pipe had ended it.
"""

import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from demosift.errors import InputError, printable

REFUSED, DEFECT, UNREAD = 2, 70, 141
ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


LONGEST = 1_000  # characters of a line


def say(message: str) -> None:
    """One line on stderr. Control characters are escaped here, since a message may quote a file, or a whole flag."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 3 :]}"
    print(f"demosift: {line}", file=sys.stderr)


def fail(message: str, code: int = REFUSED) -> int:
    try:
        say(message)
    except BrokenPipeError:
        raise
    except OSError:
        pass  # no line can be written: the code says it
    return code


@contextmanager
def streams() -> Iterator[None]:
    """Standard streams that are open, show what their encoding lacks as escapes, and have written all when this ends.

    A closed stream would otherwise give its number to the next file that is opened, and a library's output would end up
    in there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # a library may start a process of its own, and read what it says
    os.close(number)
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def explain(error: BaseException, debug: bool = False, heard: signal.Signals | None = None) -> int:
    """Say in one line what went wrong, or which signal was heard; returns the exit code. With `debug` the traceback
    comes first.
    """
    code = UNREAD
    if not (isinstance(error, BrokenPipeError) and any(map(is_unread, (sys.stdout, sys.stderr)))):
        with suppress(BrokenPipeError):
            if debug:
                traceback.print_exception(error)
            code = tell(error, heard)
    for stream in (sys.stdout, sys.stderr):
        discard_unwritable(stream)
    return code


def tell(error: BaseException, heard: signal.Signals | None) -> int:
    heard = heard or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
    if heard is not None:
        return fail(ENDINGS[heard], 128 + heard)
    known = foreseen(error)
    return report_defect(error) if known is None else fail(known)


def is_unread(stream: TextIO) -> bool:
    """Whether the stream is a pipe whose reader has left."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return bool(poll.poll(0))
    except ValueError:  # it has no number, as where it was replaced by text in memory
        return False


def discard_unwritable(stream: TextIO) -> None:
    """Throw away what cannot be written; Python would try again at its end, and complain."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def foreseen(error: BaseException) -> str | None:
    """The line for an error that bad input or a machine at its limits can cause; None for a defect."""
    if isinstance(error, InputError):
        return str(error)
    signs = ("RESOURCE_EXHAUSTED", "failed to map segment")  # from JAX, and from the loader of libraries
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in signs):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    if isinstance(error, RecursionError):
        return "something in the input is nested too deeply"
    if isinstance(error, UnicodeError):
        return f"a name or text is not Unicode: {error}"
    if isinstance(error, OSError) and error.strerror is not None:
        name = "output" if error.filename is None else os.fsdecode(error.filename)
        return f"{name}: {error.strerror}"
    return None


def report_defect(error: BaseException) -> int:
    """The last net, for what nobody foresaw. Bad input must not end here: no test may use it unasked."""
    what = f"internal error: {type(error).__name__}: {error}"
    try:
        kept = f"the details are in {keep_details(error)}, please report it"
    except OSError:
        kept = "--debug shows the details, please report it"
    return fail(f"{what}; {kept}", DEFECT)


def keep_details(error: BaseException) -> str:
    """Write the traceback to a file of its own, in DEMOSIFT_DETAILS or the system's folder for temporary files."""
    import tempfile

    import demosift

    with tempfile.NamedTemporaryFile(
        "w",
        encoding="utf-8",
        errors="backslashreplace",
        prefix="demosift-",
        suffix=".txt",
        dir=os.environ.get("DEMOSIFT_DETAILS"),
        delete=False,
    ) as file:
        versions = f"demosift {demosift.__version__}, Python {sys.version}"
        file.write(f"{versions}\n{sys.argv}\n\n{''.join(traceback.format_exception(error))}")
    return file.name
