"""How long `import demosift` and `demosift --help` take, beside `import numpy` in the same run: writes start.md here.

.venv/bin/python benchmarks/start.py
"""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import demosift": ["-c", "import demosift"],
    "demosift --help": ["-m", "demosift", "--help"],
    "demosift train --help": ["-m", "demosift", "train", "--help"],
}
TIMES = 21


def main() -> None:
    wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
    cpu: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(TIMES):  # in turn, so that all meet the same machine
        for name, arguments in COMMANDS.items():
            began, used = time.perf_counter(), seconds_used()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(seconds_used() - used)
    middle = {name: statistics.median(each) for name, each in cpu.items()}
    rows = [
        f"| `{name}` | {min(wall[name]):.2f} | {middle[name]:.2f} | {middle[name] / middle['import numpy']:.2f} |"
        for name in COMMANDS
    ]
    text = f"""# Starting

Seconds of a process, {TIMES} in turn; made by `benchmarks/start.py`. The least time on the clock, the median time of
the processor, and its ratio to that of `import numpy`, which carries over between machines and to busy ones. `train`
has the algorithms' fields as flags, so it imports JAX.

| | clock | processor | ratio |
| --- | --- | --- | --- |
"""
    Path(__file__).with_name("start.md").write_text(text + "\n".join(rows) + "\n")


def seconds_used() -> float:
    """By all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
