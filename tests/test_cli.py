"""The command line as a user meets it: what it prints, what it writes, and how it fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

import demosift
from demosift.algorithms import REGISTRY, algorithm
from demosift.cli.main import MEANINGS, main, make_parser, with_algorithm
from demosift.cli.parsers import flags, subcommands
from demosift.cli.verbs import settings_of
from demosift.learning.algorithm import setting_fields
from demosift.registry import SCORERS

TINY = ["--hidden", "8", "8", "--batch-size", "16"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "task"
    assert main(["task", "hopper/noisy-expert", "--seed", "3", "--pool", "4", "--disjoint", "--out", str(folder)]) == 2
    assert not folder.exists(), "sixteen trajectories cannot be drawn from four without overlap"
    for name, seed in (("expert", "0"), ("supplementary", "1")):
        assert main(["record", "random", "--env", "hopper", "--seed", seed, "--out", str(folder / f"{name}.hdf5")]) == 0
    return folder


def train_arguments(task: Path, out: Path, *more: str) -> list[str]:
    files = ["--expert", str(task / "expert.hdf5"), "--supplementary", str(task / "supplementary.hdf5")]
    return ["train", "wbcu", *files, "--out", str(out), *TINY, *more]


VERBS = "demo collect record task score filter train evaluate reproduce theory report export bench completion"


@pytest.mark.parametrize("verb", VERBS.split())
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: demosift {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code",
    [
        "import demosift; dir(demosift)",
        "from demosift.cli.main import main; main(['--help'])",
        "from demosift.cli.main import main; main(['score', '--help'])",
        "from demosift.cli.main import main; main(['sieve'])",
        "from demosift.cli.main import main; main(['--version'])",
    ],
)
def test_a_quick_answer_loads_nothing_heavy(code: str):
    """What takes long to import, and NumPy, by which all of it would come."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "demosift" in loaded
    assert not loaded & {"numpy", "jax", "jaxtyping", "scipy", "sklearn", "gymnasium", "h5py", "matplotlib", "rich"}


def test_the_version_and_the_module():
    say = [sys.executable, "-m", "demosift", "--version"]
    done = subprocess.run(say, capture_output=True, text=True, check=True)
    assert done.stdout == f"demosift {demosift.__version__}\n"


def test_flags_are_the_algorithm_fields(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["train", "demodice", "--help"])
    text = capsys.readouterr().out
    assert "--nu-penalty" in text
    assert "--discount" in text
    assert "--threshold" not in text


@pytest.mark.parametrize("name", REGISTRY.ours)
def test_the_help_of_a_method_says_what_its_settings_mean(name: str):
    sub = subcommands(subcommands(make_parser(["train", name]))["train"])[name]
    for field in setting_fields(REGISTRY[name]):
        if field.metadata.get("flag", True):
            assert field.name in MEANINGS, field.name
            assert "default: None" not in (flags(sub)[field.name.replace("_", "-")].help or ""), field.name


def test_the_help_of_score_names_the_scorers():
    about = flags(subcommands(make_parser(["score"]))["score"])["scorer"].help or ""
    assert ", ".join(SCORERS.ours) in about


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("train", "train sift"),
        ("train --expert E --out R", "train sift --expert E --out R"),
        ("train --json --expert E", "train sift --json --expert E"),
        ("train bc --expert E", "train bc --expert E"),
        ("train --json bc --expert E", "train --json bc --expert E"),
        ("train isw-bc --expert E", "train wbcu --expert E"),
        ("train --json isw-bc --expert isw-bc", "train --json wbcu --expert isw-bc"),
        ("train --help", "train --help"),
        ("train -h", "train -h"),
        ("train sive", "train sive"),
        ("evaluate --env hopper", "evaluate --env hopper"),
        ("", ""),
    ],
)
def test_who_names_no_algorithm_gets_sift(given: str, expected: str):
    assert with_algorithm(given.split()) == expected.split()


def test_train_lists_the_algorithms_and_names_the_default(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert "sift if you name none" in text
    assert all(f"    {name}" in text for name in REGISTRY)


@algorithm
class Wordy:
    """A method with fields that are not numbers."""

    name: ClassVar[str] = "wordy"

    kernel: str = "plain"
    centred: bool = True
    layers: int = 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ("plain", True, 2)),
        (["--kernel", "wide", "--no-centred", "--layers", "3"], ("wide", False, 3)),
        (["--kernel", "7", "--centred"], ("7", True, 2)),
    ],
)
def test_text_and_switches_are_read_as_what_they_are(
    flags: list[str], expected: tuple[str, bool, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(REGISTRY, "wordy", cast("Any", Wordy))
    arguments = ["train", "wordy", "--out", "x", *flags]
    (setting,) = settings_of(REGISTRY["wordy"], make_parser(arguments).parse_args(arguments))
    assert setting == Wordy(*expected)


def test_train_evaluate_report_and_json(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "runs" / "wbcu"
    settings = ["--gradient-penalty", "0", "10", "--seeds", "2", "--iterations", "20", "--log-every", "10"]
    assert main(train_arguments(task, out, *settings, "--episodes", "1", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(m["gradient_penalty"], m["seed"]) for m in answer["members"]] == [(0, 0), (0, 1), (10, 0), (10, 1)]
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint",
        "config.json",
        "metrics.jsonl",
        "policy.safetensors",
        "run.toml",
    ]
    assert main(["evaluate", str(out), "--episodes", "2", "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert len(evaluation["returns"]) == 4
    assert main(["record", str(out), "--member", "3", "--episodes", "1", "--out", str(tmp_path / "r.hdf5")]) == 0
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert "<html" in (tmp_path / "runs" / "report.html").read_text()


@pytest.mark.long
def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All of it, with a few iterations: sift's scores are as good as in the long one."""
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--seeds", "1", "--iterations", "24", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in answer["table"]] == ["BC", "NBCU", "Two-stage WBCU", "Sift"]
    lengths = {path.parent.name: json.loads(path.read_text())["iterations"] for path in out.glob("*/config.json")}
    assert lengths == {"bc": 5, "nbcu": 5, "wbcu-two-stage": 7, "sift": 24}
    weights = json.loads((out / "weights.json").read_text())
    assert "What sift kept" in (out / "report.html").read_text()
    assert weights["sift"]["separation"]["auc"] > 0.97
    assert main(["demo", "--out", str(out)]) == 2
    assert "the folder is not empty" in capsys.readouterr().err


@pytest.mark.long
def test_killed_and_resumed_is_the_same_run(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    more = ["--seeds", "2", "--iterations", "3000", "--log-every", "100", "--checkpoint-every", "100"]
    more += ["--evaluate-every", "1000", "--episodes", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(train_arguments(task, whole, *more)) == 0
    again = train_arguments(task, broken, *more)
    process = subprocess.Popen([sys.executable, "-m", "demosift.cli.main", *again], stdout=subprocess.DEVNULL)
    while not list(broken.glob("checkpoint/*.safetensors")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "policy.safetensors").exists(), "it ended before it could be killed: make it longer"
    capsys.readouterr()
    assert main(again) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*again, "--resume"]) == 0
    for name in ("policy.safetensors", "metrics.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.usefixtures("interruptible")
def test_interrupt_exits_130_and_leaves_no_process(task: Path, tmp_path: Path):
    arguments = train_arguments(task, tmp_path / "run", "--iterations", "1000000", "--log-every", "100")
    process = subprocess.Popen(
        [sys.executable, "-m", "demosift.cli.main", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "demosift: interrupted"
    time.sleep(1.0)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "VERB"),
        (["sieve"], "invalid choice: 'sieve'"),
        (["train", "sieve", "--out", "x"], "invalid choice: 'sieve'"),
        (["train"], "required: --out"),
        (["train", "--out", "x"], "--task TASK, or --expert FILE"),
        (["train", "--expert", "E", "--out", "x"], "sift: needs a supplementary dataset"),
        (["train", "wbcu", "--out", "x"], "--task TASK, or --expert FILE"),
        (["train", "wbcu", "--expert", "E", "--out", "x"], "needs a supplementary dataset"),
        (["train", "bc", "--expert", "nothing.hdf5", "--out", "x"], "nothing.hdf5"),
        (["train", "bc", "--expert", "E", "--env", "ant", "--out", "x"], "has 11 observations and 3 actions"),
        (["train", "bc", "--expert", "E", "--iterations", "0", "--out", "x"], "'0' is not a whole number from 1 to"),
        (["train", "bc", "--task", "hopper/noisy-expert", "--expert", "E", "--out", "x"], "not both"),
        (["train", "bc", "--expert", "pickle.hdf5", "--out", "x"], "pickle"),
        (["task", "hopper/sunny", "--out", "x"], "unknown task"),
        (["task", "hopper/full-replay", "--out", "x"], "demosift collect hopper"),
        (["evaluate", "expert"], "needs an environment"),
        (["evaluate", "expert", "--env", "Hoper-v5"], "Hopper-v5"),
        (["evaluate", "nowhere"], "nowhere"),
        (["record", "expert", "--env", "FrozenLake-v1", "--out", "x"], "FrozenLake-v1"),
        (["collect", "CartPole-v1", "--out", "x"], "CartPole-v1"),
        (["report", "nowhere"], "nowhere"),
        (["bench", "--algorithms", "sieve"], "unknown algorithm 'sieve'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    message: str,
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.hdf5").write_bytes(
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system"
    )
    arguments = [str(task / "expert.hdf5") if argument == "E" else argument for argument in arguments]
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.err.count("\n") == 1
    assert message in said.err
    assert said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pickle.hdf5"]


def test_a_full_disk_is_said(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert main(train_arguments(task, tmp_path / "run", "--iterations", "5")) == 2
    assert "No space left on device" in capsys.readouterr().err
