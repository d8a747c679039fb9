"""What this folder holds and wants a GPU, by one command that can be stopped: `python results/regenerate.py OUT`.

Jobs run side by side, each on its own cores, in the order below; one that needs another's files waits for its end. A
job is a command of its own that continues what it finds in OUT, so the same command goes on after any end. OUT/NAME.log
is what a job said, and OUT/NAME.done says that it need not run again. `--jobs` runs some of them, and `--share 0.001`
rehearses all.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from demosift.simulation.cores import available_cores

RECIPE = Path(__file__).parent / "recipe"
ENVS = ("hopper", "walker2d", "halfcheetah", "ant")
SAC_STEPS = 1_000_000
SMALL = ("noisy-expert", "medium-expert", "random-expert", "no-expert", "missing-steps")
SMALL = (*SMALL, "medium-expert:5", "medium-expert:observations")
LARGE = ("haystack", "haystack:observations", "full-replay")


class Job(NamedTuple):
    argv: list[str]
    needs: tuple[str, ...] = ()


def jobs(out: Path, share: float) -> dict[str, Job]:
    def length(iterations: int) -> str:
        return str(max(20, int(iterations * share)))

    def demosift(verb: str, *words: str, into: str) -> list[str]:
        return [sys.executable, "-m", "demosift", verb, *words, "--out", str(out / into)]

    def script(name: str, *words: str) -> list[str]:
        return [sys.executable, str(RECIPE / name), *words]

    def successors(recipe: str, iterations: int, piles: Sequence[str], *words: str) -> list[str]:
        own = ["--recipe", recipe, "--iterations", length(iterations), "--seeds", "3", "--gradient-penalties", "1"]
        words = ("--piles", *piles, *own, *words, "--replay", sac, "--add")
        return demosift("reproduce", "successors", *words, into="successors")

    sac = str(out / "sac")
    targets = ("--target-entropy", "hopper=-1.5", "hopper=-2")
    steps = ("--steps", str(max(2_000, int(SAC_STEPS * share))), "--evaluate-every", str(max(1_000, int(5e4 * share))))
    robust, published = ("--set", "batch_size=256"), ("--set", "demodice.batch_size=256", "--methods")
    published += ("bc", "nbcu", "wbcu", "demodice", "dwbc", "smodice", "lobsdice", "ilid", "seabo", "otr", "oracle")
    paper = ("--gradient-penalties", "0", "1", "10", "--iterations", length(1_000_000), "--precision", "bfloat16")
    return {
        "sac": Job(demosift("collect", *ENVS, *steps, "--seed", "10", "--episodes", "5", *targets, into="sac")),
        "successors-robust": Job(successors("robust", 25_000, SMALL, *robust)),
        "full-replay": Job(
            script("full_replay.py", str(out / "full-replay"), "--replay", sac, "--iterations", length(25_000)),
            ("sac",),
        ),
        "diagnosis": Job(
            script("diagnosis.py", str(out / "diagnosis.json"), "--replay", sac, "--iterations", length(25_000)),
            ("sac",),
        ),
        "successors-paper": Job(successors("paper", 100_000, SMALL, *published), ("successors-robust",)),
        "successors-tailo": Job(successors("paper", 20_000, SMALL, "--methods", "tailo"), ("successors-paper",)),
        "successors-large": Job(successors("robust", 25_000, LARGE, *robust), ("sac", "successors-tailo")),
        "recipe": Job(
            script("measure.py", str(out / "recipe"), "--seed", "10", "--seeds", "10", "--share", str(share))
        ),
        "gaits": Job(
            script(
                "full_replay.py", str(out / "full-replay"), "--replay", sac, "--gaits", "--iterations", length(25_000)
            ),
            ("full-replay",),
        ),
        "noisy-expert": Job(demosift("reproduce", "noisy-expert", *paper, into="paper")),
        "paper-replay": Job(
            demosift("reproduce", "full-replay", *paper, "--replay", sac, "--add", into="paper"),
            ("sac", "noisy-expert"),
        ),
    }


class Scheduler:
    """Starts the first job whose needs are met whenever a lane is free. A lane is a share of the cores."""

    def __init__(self, out: Path, todo: dict[str, Job], lanes: int) -> None:
        self.out, self.todo, self.changed = out, dict(todo), threading.Condition()
        self.running: set[str] = set()
        self.failed: set[str] = set()
        cores = sorted(os.sched_getaffinity(0))[: available_cores()]
        self.lanes = [cores[lane::lanes] or cores for lane in range(lanes)]

    def next(self) -> str | None:
        """The next job to run, once there is one; None where none is left."""
        with self.changed:
            while self.todo:
                ready = [
                    name for name, job in self.todo.items() if not {*self.todo, *self.running}.intersection(job.needs)
                ]
                if ready:
                    del self.todo[ready[0]]
                    self.running.add(ready[0])
                    return ready[0]
                self.changed.wait()
            return None

    def work(self, cores: list[int], everything: dict[str, Job]) -> None:
        while (name := self.next()) is not None:
            began = time.monotonic()
            with (self.out / f"{name}.log").open("a") as log:
                command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *everything[name].argv]
                code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
            print(
                f"{name}: {'done' if code == 0 else f'exit {code}'} after {time.monotonic() - began:.0f} s", flush=True
            )
            with self.changed:
                (self.out / f"{name}.done").touch() if code == 0 else self.failed.add(name)
                self.running.remove(name)
                self.changed.notify_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", nargs="+", metavar="NAME", help="only these, in this order")
    parser.add_argument("--lanes", type=int, default=3, help="how many jobs run side by side (default: 3)")
    parser.add_argument("--share", type=float, default=1.0, help="of every job's iterations, for a rehearsal")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    everything = jobs(options.out, options.share)
    if unknown := set(options.jobs or ()) - set(everything):
        parser.error(f"there is no job {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    todo = [name for name in options.jobs or everything if not (options.out / f"{name}.done").exists()]
    scheduler = Scheduler(options.out, {name: everything[name] for name in todo}, options.lanes)
    lanes = [threading.Thread(target=scheduler.work, args=(cores, everything)) for cores in scheduler.lanes]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if scheduler.failed:
        sys.exit(f"not done: {', '.join(sorted(scheduler.failed))}; see their .log in {options.out}")


if __name__ == "__main__":
    main()
