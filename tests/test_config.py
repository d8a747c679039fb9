"""Configuration files: what a run writes, and what a file from anywhere may say."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import folder_bytes, random_dataset, tree

from demosift.algorithms import REGISTRY, make_algorithm
from demosift.cli.config import move, write_request
from demosift.cli.main import main, parse
from demosift.cli.verbs import settings_of
from demosift.data import write_dataset
from demosift.experiments.presets import Request, parse_settings
from demosift.files import read_toml, write_toml
from demosift.registry import register
from demosift.types import InputError

TINY = ["--hidden", "8", "8", "--batch-size", "16", "--iterations", "10", "--log-every", "5"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data in it."""
    monkeypatch.chdir(tmp_path)
    write_dataset(random_dataset(0, 30), "data/expert.hdf5")
    write_dataset(random_dataset(1, 60), "data/pile.hdf5")
    return tmp_path


def train(*arguments: str) -> int:
    return main(["train", *arguments])


DATA = ["--expert", "data/expert.hdf5", "--supplementary", "data/pile.hdf5"]


def config(folder: str) -> dict[str, Any]:
    content = json.loads(Path(folder, "config.json").read_text())
    del content["wall_seconds"]
    return content


def test_a_run_is_repeated_from_its_folder(place: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ["--gradient-penalty", "0", "10", "--seeds", "2", "--recipe", "robust", "--ensemble", "2"]
    assert train("wbcu", *DATA, *TINY, *settings, "--out", "runs/first") == 0
    assert train("--from", "runs/first", "--out", "runs/again") == 0
    assert folder_bytes(Path("runs/again")) == folder_bytes(Path("runs/first"))
    assert Path("runs/again/run.toml").read_bytes() == Path("runs/first/run.toml").read_bytes()
    assert config("runs/again") == config("runs/first")
    monkeypatch.chdir(place / "runs")  # and from anywhere else, or when all of it has moved
    assert train("--from", "first", "--out", "elsewhere") == 0
    assert folder_bytes(Path("elsewhere")) == folder_bytes(Path("first"))


def test_isw_bc_is_another_name_of_wbcu(place: Path):
    """It is taken wherever a method is named, and files have one name for both."""
    assert REGISTRY["isw-bc"] is REGISTRY["wbcu"]
    assert "isw-bc" not in list(REGISTRY)
    assert make_algorithm("isw-bc", {"threshold": 0.1}) == make_algorithm("wbcu", {"threshold": 0.1})
    assert Request(methods=("bc", "isw-bc")).methods == ("bc", "wbcu")
    assert parse_settings(["isw-bc.threshold=0.1"]) == {"wbcu.threshold": 0.1}
    with pytest.raises(InputError, match="demosift's own"):
        register(type("Mine", (REGISTRY["wbcu"],), {"name": "isw-bc"}))
    assert train("isw-bc", *DATA, *TINY, "--out", "typed") == 0
    Path("asked.toml").write_text('algorithm = "isw-bc"\n')
    assert train("--config", "asked.toml", *DATA, *TINY, "--out", "read") == 0
    assert config("typed")["algorithm"] == config("read")["algorithm"] == "wbcu"
    assert Path("typed/run.toml").read_bytes() == Path("read/run.toml").read_bytes()


def test_a_run_goes_on_from_its_own_file(place: Path):
    assert train("bc", *DATA, *TINY, "--out", "whole", "--iterations", "20") == 0
    assert train("bc", *DATA, *TINY, "--out", "run") == 0
    assert train("--from", "run", "--out", "run", "--resume", "--iterations", "20") == 0
    assert folder_bytes(Path("run")) == folder_bytes(Path("whole"))
    assert read_toml(Path("run/run.toml"))["iterations"] == 20


def test_data_that_changed_is_said(place: Path, capsys: pytest.CaptureFixture[str]):
    assert train("bc", *DATA, *TINY, "--out", "run") == 0
    write_dataset(random_dataset(5, 60), "data/other.hdf5")
    before = tree(place / "run")
    assert train("--from", "run", "--supplementary", "data/other.hdf5", "--out", "asked") == 0
    shutil.move("data/other.hdf5", "data/pile.hdf5")
    capsys.readouterr()
    assert train("--from", "run", "--out", "again") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run: its data changed since" in said
    assert not Path("again").exists()
    assert tree(place / "run") == before
    assert train("--config", "run/run.toml", "--out", "again") == 0


def test_a_run_without_the_file_is_said(place: Path, capsys: pytest.CaptureFixture[str]):
    assert train("bc", *DATA, *TINY, "--out", "old") == 0
    Path("old/run.toml").unlink()
    capsys.readouterr()
    assert train("--from", "old", "--out", "again") == 2
    assert "old: has no run.toml" in capsys.readouterr().err
    assert train("--from", "nowhere", "--out", "again") == 2
    assert "nowhere: no run here" in capsys.readouterr().err


@pytest.mark.parametrize("name", REGISTRY)
def test_every_flag_of_every_method_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    asked = parse(["train", name, "--task", "hopper/noisy-expert", "--out", "run"])
    settings = settings_of(REGISTRY[name], asked)
    write_request(asked, settings)
    repeated = parse(["train", "--config", "run/run.toml", "--out", "run"])
    assert settings_of(REGISTRY[name], repeated) == settings
    differ = {key for key, value in vars(asked).items() if vars(repeated)[key] != value}
    assert differ <= {"config", "request", "exit_code"}


WRITTEN = """
algorithm = "wbcu"
expert = "data/expert.hdf5"
supplementary = "/data/pile.hdf5"
seeds = 3
disjoint = true
gradient-penalty = [0, 1.5]
learning-rate = 1e-4
decay = 0.2
hidden = [8]
"""


def asked(*arguments: str) -> dict[str, Any]:
    Path("given").mkdir()
    Path("given/run.toml").write_text(WRITTEN)
    return vars(parse(["train", *arguments, "--config", "given/run.toml", "--out", "x"]))


def test_a_file_says_what_flags_say(place: Path):
    options = asked()
    told = {"algorithm": "wbcu", "seeds": 3, "disjoint": True, "gradient_penalty": [0.0, 1.5], "hidden": [8]}
    told |= {"expert": "given/data/expert.hdf5", "supplementary": "/data/pile.hdf5", "learning_rate": [1e-4]}
    assert told.items() <= options.items()


def test_the_command_line_wins(place: Path):
    options = asked("wbcu", "--seeds", "4", "--no-disjoint", "--task", "hopper/noisy-expert", "--gradient-penalty", "7")
    assert (options["seeds"], options["disjoint"], options["gradient_penalty"]) == (4, False, [7.0])
    assert (options["task"], options["expert"], options["supplementary"]) == ("hopper/noisy-expert", None, None)


def test_a_recipe_on_the_command_line_wins(place: Path):
    options = asked("--recipe", "robust")
    assert options["recipe"] == "robust"
    assert not {"decay", "learning_rate"} & options.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("gradient_penality = 1", "unknown key 'gradient_penality'; the nearest is 'gradient-penalty'"),
        ("seed = 1\nfrom = 'x'", "unknown key 'from'"),
        ("no-disjoint = true", "unknown key 'no-disjoint'; the nearest is 'disjoint'"),
        ("[train]\nseeds = 1", "unknown key 'train'"),
        ("seeds = 'three'", "seeds: must be a whole number, not 'three'"),
        ("seeds = true", "seeds: must be a whole number, not True"),
        ("seeds = 1.5", "seeds: must be a whole number, not 1.5"),
        ("seeds = 0", "seeds: '0' is not a whole number from 1 to 1,000"),
        ("seeds = [1, 2]", "seeds: must be a whole number, not [1, 2]"),
        ("learning-rate = '1e-3'", "learning-rate: must be a number, not '1e-3'"),
        ("gradient-penalty = []", "gradient-penalty: needs at least one value"),
        ("gradient-penalty = [[1]]", "gradient-penalty: must be a number, not [1]"),
        ("disjoint = 1", "disjoint: must be true or false, not 1"),
        ("expert = 2026-11-16", "expert: must be text, not datetime.date"),
        ("precision = 'float8'", "precision: must be one of float32, bfloat16, not 'float8'"),
        ("algorithm = 'os.system'", "algorithm: must be one of "),
        ("algorithm = '--help'", "algorithm: must be one of "),
        ("algorithm = 3", "algorithm: must be one of "),
        ("seeds = ", "not TOML"),
        ("seeds = 1\nseeds = 1", "not TOML"),
        ("a = " + "[" * 9000, "not TOML"),
        ("a = " + "9" * 9000, "not TOML"),
        (".".join(["a"] * 99_999) + " = 1", "longer than 16,384 bytes"),
        ("\x00", "not TOML"),
        (b"\xff\xfe", "not text in UTF-8"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_a_file_may_not_say(content: str | bytes, message: str, place: Path, capsys: pytest.CaptureFixture[str]):
    Path("run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(place)
    named = () if b"algorithm" in Path("run.toml").read_bytes() else ("wbcu",)
    assert train(*named, *DATA, "--config", "run.toml", "--out", "x") == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"demosift: run.toml: {message}")
    assert said.err.count("\n") == 1
    assert len(said.err) < 300
    assert said.out == ""
    assert tree(place) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nothing.toml"], "nothing.toml: missing"),
        (["--config", "data"], "data: not a file"),
        (["--config", "/dev/zero"], "/dev/zero: not a file"),
        (["--config", "a.toml", "--from", "b"], "not both"),
    ],
)
def test_where_there_is_no_file(arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]):
    assert train(*arguments, "--out", "x") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("pile.hdf5", "../../pile.hdf5"),
        ("runs/pile.hdf5", "../pile.hdf5"),
        ("demo.hdf5::obs=a,b::filter=train", "../../demo.hdf5::obs=a,b::filter=train"),
        ("npz:folder", "npz:../../folder"),
        ("/data/pile.hdf5", "/data/pile.hdf5"),
        ("robomimic:~/pile.hdf5", "robomimic:~/pile.hdf5"),
        ("minari:hopper/expert-v0", "minari:hopper/expert-v0"),
    ],
)
def test_paths_are_relative_to_the_file(source: str, moved: str):
    assert move(source, Path(), Path("runs/first")) == moved
    assert move(moved, Path("runs/first"), Path()) == source


def test_toml_gives_back_what_was_written(tmp_path: Path):
    content = {
        "a": 'quote " \\ tab \t line \n \x7f \x00 ü 😀',
        "b": [1, 2],
        "c": [0.1, 1e-30, 1e300],
        "d": True,
        "e": -1,
    }
    write_toml(tmp_path / "x.toml", content, "a comment")
    assert tomllib.loads((tmp_path / "x.toml").read_text()) == content
