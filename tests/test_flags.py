"""Flags of every verb, as the parser has them: numbers that make no sense are refused before anything is done."""

import argparse
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_dataset, tree

import demosift as ds
from demosift.cli.main import main, make_parser, parse
from demosift.cli.parsers import subcommands
from demosift.data import write_dataset
from demosift.files import atomic_folder, atomic_write, own_folder
from demosift.ranges import MEMBERS, POSITIVE, Range
from demosift.types import InputError

NONSENSE = ["nan", "inf", "-inf", "-1", "0", "1e20", "1e400", "9" * 30, "9" * 5000, "", " ", "²", "1e", "0x10", "one"]
# What is no nonsense for some flags: zero of these, less than zero of those, and large numbers of these.
ZERO = """--seed --member --checkpoint-seconds --time-limit --seconds --discount --evaluate-every --gradient-penalty
    --gradient-penalties --nu-penalty --alpha --threshold --decay --weight-decay --average --log-std-floor
    --learning-rate --discriminator-learning-rate --critic-learning-rate --critic-decay --sigma --kappa --beta
    --temperature --bias"""
NEGATIVE = "--log-std-floor --bias"
LARGE = """--learning-rate --discriminator-learning-rate --critic-learning-rate --gradient-penalty --gradient-penalties
    --nu-penalty --alpha --eta --threshold --decay --weight-decay --critic-decay --episodes --kappa --beta
    --temperature --bias"""
NOT_ZERO = {("score", "--threshold"), ("filter", "--threshold"), ("reproduce", "--evaluate-every")}
NOT_ZERO |= {("collect", "--evaluate-every")}
NOT_LARGE = {(verb, "--episodes") for verb in ["collect", "record", "task", "evaluate", "reproduce", "train"]}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every verb, and of every algorithm of `train`."""

    found = subcommands(make_parser(["train"]))
    algorithms = subcommands(found.pop("train"))
    return found | {f"train {name}": parser for name, parser in algorithms.items()}


PARSERS = parsers()


def is_fine(verb: str, flag: str, text: str) -> bool:
    if text in ("0", "0x10"):
        return text == "0" and flag in ZERO.split() and (verb, flag) not in NOT_ZERO
    if text == "-1":
        return flag in NEGATIVE.split()
    return text in ("1e20", "9" * 30) and flag in LARGE.split() and (verb.split()[0], flag) not in NOT_LARGE


def required(parser: argparse.ArgumentParser, but: argparse.Action) -> list[str]:
    """Arguments that the verb cannot do without."""
    words = []
    for action in parser._actions:
        if action is not but and not action.option_strings:
            words += ["x"] if action.nargs != "?" else []
        elif action is not but and action.required:
            words += [action.option_strings[0], "x"]
    return words


def named(action: argparse.Action, text: str) -> list[str]:
    return [f"{action.option_strings[-1]}={text}"] if action.option_strings else [text]


def refusal(verb: str, words: list[str]) -> str | None:
    """What the verb's parser says against these words; None if it takes them."""
    try:
        PARSERS[verb].parse_args(words)
    except InputError as error:
        return str(error)
    return None


def numbers(verb: str) -> list[argparse.Action]:
    return [action for action in PARSERS[verb]._actions if action.type is not None]


def test_every_number_has_a_range():
    """So that none is read by `int` or `float` alone."""
    every = [action for verb in PARSERS for action in numbers(verb)]
    assert [action for action in every if not isinstance(getattr(action.type, "allowed", None), Range)] == []
    assert len(every) > 100


@pytest.mark.parametrize("verb", PARSERS)
def test_nonsense_is_refused(verb: str):
    for action in numbers(verb):
        flag, words = action.option_strings[-1], required(PARSERS[verb], action)
        for text in NONSENSE:
            said = refusal(verb, [*words, *named(action, text)])
            assert (said is None) == is_fine(verb, flag, text), (flag, text)
            assert said is None or (f"argument {flag}: " in said and len(said) < 300)


@pytest.mark.parametrize("verb", PARSERS)
def test_empty_text_is_refused(verb: str):
    for action in PARSERS[verb]._actions:
        if action.nargs != 0:
            assert refusal(verb, [*named(action, ""), *required(PARSERS[verb], action)])


def test_two_dashes_are_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """argparse drops them, and stores an empty list."""
    monkeypatch.chdir(tmp_path)
    for flag in ("--seeds", "--supplementary", "--task"):
        assert main(["train", "bc", "--expert", "x", "--out", "o", f"{flag}=--"]) == 2
        assert capsys.readouterr().err == f"demosift: argument {flag}: -- is no value (try demosift --help)\n"


def test_the_flag_that_is_empty_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text('expert = "a\\u0000b"')
    for words, what in [
        (["--out", ""], "--out: is empty"),
        (["--config", "x.toml", "--out", "o"], "expert: holds a NUL"),
    ]:
        assert main(["train", "bc", *words]) == 2
        said = capsys.readouterr().err
        assert what in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("verb", PARSERS)
def test_a_value_twice_is_refused(verb: str):
    for action in PARSERS[verb]._actions:
        if action.nargs == "+":
            twice = 2 * ([*action.choices][:1] if action.choices else ["1" if action.type else "x"])
            words = [*required(PARSERS[verb], action), *action.option_strings[-1:], *twice]
            assert "is given twice" in (refusal(verb, words) or "")


@pytest.mark.parametrize("arguments", ["train bc --expert x --seeds 1000000000", "collect hopper --steps nan", "demo"])
def test_nothing_is_written(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments.split(), "--out", "" if arguments == "demo" else "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_the_last_seed_is_a_seed(capsys: Any, tmp_path: Path):
    last = ["--seed", str(2**31 - 1), "--seeds", "2", "--out", str(tmp_path / "x")]
    for verb in (["train", "bc", "--expert", "x"], ["collect", "hopper"], ["reproduce", "noisy-expert"]):
        assert main([*verb, *last]) == 2
        assert "the last seed: 2147483648 is not" in capsys.readouterr().err


PLACES = [".", "/", "..", "a/..", "x" * 5000]


@pytest.mark.parametrize("out", PLACES, ids=lambda out: out[:4])
def test_places_that_cannot_be_written_are_one_line(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """Even where they are empty folders."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    assert main(["theory", "--claims", "binomial-lemma", "--out", out]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for write in (atomic_folder, atomic_write):
        with pytest.raises((InputError, OSError)), write(out):
            pytest.fail("it began to work")
    assert list(tmp_path.iterdir()) == [here]
    assert list(here.iterdir()) == []


def test_a_working_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InputError, match="x: cannot write: the working folder was removed"), atomic_write("x"):
        pass


def test_a_loop_of_links_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    for command in ("theory --claims binomial-lemma --out a", "record random --env hopper --out lerobot:a", "report a"):
        assert main(command.split()) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert sorted(os.listdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "command", ["train bc --expert x.hdf5", "collect hopper", "reproduce noisy-expert", "reproduce coverage", "demo"]
)
def test_a_folder_that_holds_something_else_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """Also where it is the one that the command is given in."""
    monkeypatch.chdir(tmp_path)
    write_dataset(random_dataset(0, 12), "x.hdf5")
    before = tree(tmp_path)
    for out in (".", str(tmp_path), f"../{tmp_path.name}"):
        assert main([*command.split(), "--out", out]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "the folder is not empty" in said
    assert tree(tmp_path) == before


def test_folders_on_the_way_are_not_left_behind(tmp_path: Path, capsys: Any):
    place = tmp_path / "a" / "b"
    for command in (f"export {tmp_path} --out {place}/x.onnx", f"collect CartPole-v1 --out {place}/x"):
        assert main(command.split()) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(InputError), own_folder(place):
        raise InputError("no")
    assert not any(tmp_path.iterdir())


def test_a_long_value_is_not_repeated_whole(capsys: Any):
    assert main(["record", "random", "--env", "x" * 5000, "--out", "y.hdf5"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("demosift: unknown environment 'xxx")
    assert len(said) < 1100


@pytest.mark.parametrize("prefix", ["minari:", "robomimic:", "lerobot:", "npz:"])
def test_an_unknown_home_is_one_line(prefix: str, tmp_path: Path, capsys: Any):
    for flags in (["x", "--out", f"{prefix}~nobody-of-that-name/x"], [f"{prefix}~nobody-of-that-name/x", "--out", "y"]):
        assert main(["filter", *flags, "--scores", str(tmp_path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_home_is_meant_wherever_a_shell_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """As in `--out=~/x`, which became a folder named `~`."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.toml").write_text('algorithm = "bc"\nexpert = "~/x.hdf5"\n')
    options = parse(["train", "--config=~/c.toml", "--out=~/run"])
    assert (options.expert, options.out) == (f"{tmp_path}/x.hdf5", f"{tmp_path}/run")
    record = ["record", "random", "--env", "Pendulum-v1", "--episodes", "1"]
    assert main([*record, "--out=~/a.hdf5"]) == 0
    assert (tmp_path / "a.hdf5").is_file()
    capsys.readouterr()
    for words in ([*record, "--out=~nobody-of-that-name/a.hdf5"], ["theory", "--out", "~nobody-of-that-name"]):
        assert main(words) == 2
        assert "argument --out: ~nobody-of-that-name" in capsys.readouterr().err
    assert not any(here.iterdir())


def test_one_function_knows_where_home_is():
    """The others would raise where nobody knows."""
    sources = {path.name: path.read_text() for path in Path(ds.__file__).parent.rglob("*.py")}
    assert [name for name, text in sources.items() if ".expanduser(" in text or "Path.home(" in text] == ["files.py"]


# The same in Python


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, 0.5, True, "1", None, 10**30, np.float32(1)])
def test_counts_are_whole_numbers_in_their_range(value: Any):
    with pytest.raises(InputError, match=r"seeds: .* is not a whole number from 1 to 1,000"):
        MEMBERS.check("seeds", value)


def test_numbers_of_numpy_are_numbers():
    MEMBERS.check("seeds", np.int64(3))
    POSITIVE.check("rate", np.float32(0.5), 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 10**9}, "seeds: 1000000000"),
        ({"seeds": [-1]}, "seeds: -1"),
        ({"iterations": 0}, "iterations: 0"),
        ({"iterations": 10**12}, "iterations: 1000000000000"),
        ({"ensemble": 10**9}, "ensemble: 1000000000"),
        ({"log_every": 0}, "log_every: 0"),
        ({"held_out": math.nan}, "held_out: nan"),
        ({"held_out": 0.5, "patience": 0}, "patience: 0"),
    ],
    ids=str,
)
def test_fit_refuses_them(given: dict[str, Any], message: str):
    from conftest import random_demonstrations, tiny

    with pytest.raises(InputError, match=message):
        ds.fit(tiny("bc"), random_demonstrations(), **{"iterations": 10, "progress": False, **given})


def test_networks_that_cannot_fit_are_refused_before_anything_is_written(tmp_path: Path):
    from conftest import random_demonstrations

    wide, long = ds.BC(hidden=(65_536, 65_536)), ds.BC(hidden=(65_536,), batch_size=2**20)
    for setting, seeds in ((wide, 1_000), (long, 100)):
        with pytest.raises(InputError, match=r"networks of these sizes need .* GB or more"):
            ds.fit(setting, random_demonstrations(), seeds=seeds, out=tmp_path / "run", progress=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 0},
        {"learning_rate": math.nan},
        {"learning_rate": -1.0},
        {"hidden": (8, 0)},
        {"hidden": (10**9,)},
        {"hidden": (8,) * 1_000},
        {"gradient_penalty": math.inf},
    ],
    ids=str,
)
def test_settings_are_refused(settings: dict[str, Any]):
    from conftest import random_demonstrations

    with pytest.raises(InputError, match=f"wbcu: {next(iter(settings))}: .* is not"):
        ds.fit(ds.WBCU(**settings), random_demonstrations(), iterations=10, progress=False)
