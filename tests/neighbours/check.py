"""Do the programs next door read what demosift writes? `make test-neighbours` asks them, each in its own environment.

    lerobot     a dataset with videos that LeRobot itself wrote is scored and filtered: whole episodes, cut frames, and
                the weights of frames. LeRobot opens the results, compares every picture with its state and trains.
    robomimic   a file in its layout is filtered, and gets a filter key. robomimic opens both and trains its BC.

The newest LeRobot reads version 3.0 of its format, 0.3.3 was the last to read version 2.1. Environments found in the
working folder are used as they are. Which PyTorch is installed says `--torch`: pip's own choice for Linux comes with
gigabytes of CUDA, and a build for processors alone is enough. Where a program needs another version of PyTorch than
that, pip replaces it by its own choice: for LeRobot 0.3.3 it has to be older than 2.8.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEROBOT = {"lerobot": "lerobot[dataset,training]", "lerobot-0.3": "lerobot==0.3.3"}
ROBOMIMIC = ["robomimic==0.3.0", "six"]  # which it imports and does not ask for
EPISODES, STEPS = 8, 20  # of with_lerobot.py


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(".neighbours"), help="folder for environments and data")
    parser.add_argument("--python", default="python3.12", help="interpreter of the newest LeRobot (3.12 or newer)")
    parser.add_argument("--old-python", default="python3.11", help="interpreter of robomimic and of LeRobot 0.3.3")
    parser.add_argument("--torch", default="", help="requirements that bring PyTorch, installed before the rest")
    parser.add_argument("--only", nargs="+", choices=["lerobot", "lerobot-0.3", "robomimic"], help="some of them")
    options = parser.parse_args()
    wanted = options.only or ["lerobot", "lerobot-0.3", "robomimic"]
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in wanted:
        interpreter = options.python if name == "lerobot" else options.old_python
        asked = [LEROBOT[name]] if name in LEROBOT else ROBOMIMIC
        try:
            python = environment(work / "environments" / name, interpreter, options.torch, asked)
            data = work / "data" / name
            subprocess.run(["rm", "-rf", str(data)], check=True)
            data.mkdir(parents=True)
            (check_lerobot if name in LEROBOT else check_robomimic)(python, data)
        except (subprocess.CalledProcessError, FileNotFoundError, AssertionError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
    print(f"{len(wanted) - len(failed)} of {len(wanted)} passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


def environment(place: Path, interpreter: str, torch: str, asked: list[str]) -> Path:
    python, ready = place / "bin" / "python", place / ".ready"
    if not ready.exists():
        subprocess.run([interpreter, "-m", "venv", place], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if torch:
            subprocess.run([*pip, *shlex.split(torch)], check=True)
        subprocess.run([*pip, *asked], check=True)
        ready.touch()
    return python


def ask(python: Path, script: str, *arguments: str | int | Path) -> None:
    """Run a script where the other program is installed. It must not find demosift, nor a network."""
    alone = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    alone.pop("PYTHONPATH", None)
    command = [python, HERE / script, *map(str, arguments)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise AssertionError(f"{script} {' '.join(map(str, arguments))} failed:\n{said}")
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"{script}: {arguments[0]}")


def demosift(*arguments: str | int | Path) -> None:
    subprocess.run([sys.executable, "-m", "demosift", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def check_lerobot(python: Path, data: Path) -> None:
    import pyarrow.parquet as pq

    source, scores = data / "source", data / "scores"
    ask(python, "with_lerobot.py", "write", source)
    ask(python, "with_lerobot.py", "read", source, EPISODES, EPISODES * STEPS)
    flags = ["--scorer", "neighbours", "--members", "1", "--task-column", "none"]
    demosift("score", source, "--expert-episodes", "0-2", *flags, "--out", scores)
    demosift("filter", source, "--scores", scores, "--episodes", "6", "--out", f"lerobot:{data / 'kept'}")
    ask(python, "with_lerobot.py", "read", data / "kept", 6, 6 * STEPS)
    demosift("filter", source, "--scores", scores, "--frames", "--out", f"lerobot:{data / 'cut'}")
    rows = [pq.read_table(path, columns=["episode_index"]) for path in sorted((data / "cut/data").glob("*/*.parquet"))]
    numbers = [number for table in rows for number in table["episode_index"].to_pylist()]
    assert len(numbers) < EPISODES * STEPS, "nothing was cut"
    ask(python, "with_lerobot.py", "read", data / "cut", len(set(numbers)), len(numbers))
    demosift("filter", source, "--scores", scores, "--weights", "--out", data / "weights")
    ask(python, "with_lerobot.py", "weights", source, data / "weights/sample_weights.parquet")
    command = (data / "weights/delete_episodes.txt").read_text()
    if (python.parent / "lerobot-edit-dataset").exists():
        edit(python, command, data / "source_kept")


def edit(python: Path, command: str, target: Path) -> None:
    """LeRobot's own tool, with the command that demosift prepared, keeps as many episodes as demosift's list."""
    words = shlex.split(command)
    alone = {**os.environ, "HF_HUB_OFFLINE": "1"}
    alone.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python.parent / words[0]), *words[1:]], env=alone, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{shlex.join(words)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    left = json.loads((target / "meta/info.json").read_text())["total_episodes"]
    dropped = json.loads(words[words.index("--operation.episode_indices") + 1])
    assert left == EPISODES - len(dropped), (left, dropped)
    print(f"lerobot-edit-dataset: {target}: {left} of {EPISODES} episodes")


def check_robomimic(python: Path, data: Path) -> None:
    sys.path.insert(0, str(HERE.parent))
    from layouts import episode, robomimic_file

    source, scores = data / "source.hdf5", data / "scores"
    robomimic_file(source, {number: episode(number, STEPS) for number in range(EPISODES)})
    ask(python, "with_robomimic.py", source, EPISODES)
    demosift(
        *("score", source, "--expert-episodes", "0-2", "--scorer", "neighbours", "--members", "1", "--out", scores)
    )
    demosift("filter", source, "--scores", scores, "--episodes", "5", "--out", data / "kept.hdf5")
    ask(python, "with_robomimic.py", data / "kept.hdf5", 5)
    flags = ["--scores", scores, "--episodes", 5, "--filter-key", "best"]
    demosift("filter", source, *flags, "--out", data / "masked.hdf5")
    ask(python, "with_robomimic.py", data / "masked.hdf5", 5, "best")
    ask(python, "with_robomimic.py", data / "masked.hdf5", EPISODES)


if __name__ == "__main__":
    main()
