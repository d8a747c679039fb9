"""`python -P watching.py FILE VERB ...`: a command of demosift, and what it was doing meanwhile, as seconds in FILE.

A thread looks at the stacks of all others a hundred times a second. It imports nothing of demosift before the command
does, so that imports count.
"""

import json
import runpy
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from types import FrameType

EVERY = 0.01  # seconds
# What is being done while any thread is in one of these places, the first that fits.
KINDS = {
    "importing": ("<frozen importlib",),
    "compiling": ("/jax/_src/compiler.py",),  # or loading what was compiled
    "tracing": ("/jax/_src/interpreters/partial_eval.py", "/jax/_src/interpreters/mlir.py", ":_infer_params"),
    "drawing": ("/matplotlib/",),
    "simulating": ("/demosift/simulation/",),
    "reading": ("/demosift/data/", "/demosift/results/"),
    "computing": ("/demosift/learning/", "/demosift/sift/", "/jax/"),
}
REST = "the rest"


def kind_of(places: Iterable[str]) -> str:
    """Of what the places say, FILE:FUNCTION each."""
    text = "\n".join(places)
    return next((kind for kind, marks in KINDS.items() if any(mark in text for mark in marks)), REST)


def places(frame: FrameType | None) -> Iterable[str]:
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        frame = frame.f_back


def watch(seconds: defaultdict[str, float], over: threading.Event) -> None:
    own, since = threading.get_ident(), time.perf_counter()
    while not over.wait(EVERY):
        stacks = [frame for thread, frame in sys._current_frames().items() if thread != own]
        now = time.perf_counter()
        seconds[kind_of(place for frame in stacks for place in places(frame))] += now - since
        since = now


def main() -> None:
    told, *command = sys.argv[1:]
    seconds: defaultdict[str, float] = defaultdict(float)
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(seconds, over), daemon=True)
    watcher.start()
    try:
        sys.argv = ["demosift", *command]
        runpy.run_module("demosift", run_name="__main__")
    finally:
        over.set()
        watcher.join()
        with open(told, "w", encoding="utf-8") as file:
            json.dump(seconds, file)


if __name__ == "__main__":
    main()
