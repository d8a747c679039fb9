"""Data that are known to be bad, in training: the weights are those of `score`, and every way to train keeps them."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import random_dataset, tiny, tree
from test_episodes import BAD, GOOD, PILE, pile, put

import demosift as ds
from demosift.cli.main import main
from demosift.data import split_episodes
from demosift.learning.held_out import without
from demosift.results.scores import read_weights
from demosift.sift.method import KNOWN
from demosift.types import Demonstrations, InputError

SHORT = ["--iterations", "20", "--log-every", "10", "--checkpoint-every", "10", "--ensemble", "1", "--hidden", "8"]
FEW = f"{GOOD}-{GOOD + 1}"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    KNOWN.clear()
    yield
    KNOWN.clear()


def test_training_uses_the_weights_of_score(tmp_path: Path):
    """In memory and from files; without the bad set, or with another one, the weights are other ones."""
    bad, others = split_episodes(pile(goal=0.8, bad=12), range(GOOD, GOOD + 4))
    expert, rest = split_episodes(others, [0, GOOD, GOOD + 1])  # carelessly chosen: two of the three are bad
    data = ds.load(expert, rest, bad=bad)
    setting = ds.Sift(scorer="neighbours")
    scored = ds.score(expert, rest, bad=bad, scorer="neighbours")
    prepared = setting.prepare(data, tmp_path / "scores")
    assert np.array_equal(prepared.weight, scored.weight)  # type: ignore[arg-type]
    assert np.array_equal(setting.prepare(data, None).weight, scored.weight)  # type: ignore[arg-type]
    plain = setting.prepare(Demonstrations(data.expert, data.supplementary), None).weight
    assert plain is not None
    assert (scored.weight <= plain + 1e-12).all()
    assert scored.supplementary.sum() < 0.9 * plain[scored.num_expert :].sum()
    assert scored.summary["diagnosis"]["bad"]["episodes"] == 4
    assert "are known to be bad" in str(scored)
    assert "are known to be bad" in (tmp_path / "scores/report.html").read_text()
    left = without(data, np.arange(len(expert) + len(rest)) < 5)  # type: ignore[arg-type]
    assert left.bad is bad


def test_runs_keep_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`run.toml` names the episodes, so a run is repeated to the byte; a resumed run wants the same bad data."""
    source = put(tmp_path, "pile.hdf5")
    listed = tmp_path / "bad.txt"
    listed.write_text(FEW.replace("-", "\n"))
    files = ["--expert", f"{source}::episodes=0-2", "--supplementary", f"{source}::without=0-2"]
    ask = [*files, *SHORT, "--scorer", "neighbours"]
    first, again = tmp_path / "first", tmp_path / "again"
    assert main(["train", *ask, "--bad-episodes", str(listed), "--out", str(first)]) == 0
    config = json.loads((first / "config.json").read_text())
    assert config["data"][0]["bad"]["episodes"] == 2
    assert config["data"][0]["supplementary"]["episodes"] == GOOD + BAD - 5
    assert tomllib.loads((first / "run.toml").read_text())["bad-episodes"] == FEW
    named = [f"{source}::episodes=0-2", f"{source}::without=0-2,{FEW}"]
    scored = ds.score(*named, bad=f"{source}::episodes={FEW}", scorer="neighbours")
    np.testing.assert_array_equal(read_weights(first / "scores/0"), scored.weight)
    listed.unlink()
    KNOWN.clear()
    assert main(["train", "--from", str(first), "--out", str(again)]) == 0
    assert (again / "policy.safetensors").read_bytes() == (first / "policy.safetensors").read_bytes()
    (again / "policy.safetensors").unlink()
    assert main(["train", *ask, "--bad-episodes", FEW, "--out", str(again), "--resume"]) == 0
    assert (again / "policy.safetensors").read_bytes() == (first / "policy.safetensors").read_bytes()
    before = tree(tmp_path)
    capsys.readouterr()
    for flags in (["--bad-episodes", str(GOOD)], []):
        assert main(["train", *ask, *flags, "--out", str(again), "--resume"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert tree(tmp_path) == before
    # A bad set of its own takes the place of the file's episodes.
    assert main(["train", "--from", str(first), "--bad", f"{source}::episodes=14", "--out", str(tmp_path / "x")]) == 0
    assert json.loads((tmp_path / "x/config.json").read_text())["data"][0]["bad"]["episodes"] == 1


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = put(tmp_path, "pile.hdf5")
    other = str(tmp_path / "other.hdf5")
    ds.write_dataset(random_dataset(0, 30), other)
    expert, rest = f"{source}::episodes=0-2", f"{source}::without=0-2"
    files, out = ["--expert", expert, "--supplementary", rest], str(tmp_path / "run")
    before = tree(tmp_path)
    for flags, message in (
        (["bc", *files, "--bad", source], "bc: cannot use bad data"),
        (["wbcu", *files, "--bad-episodes", "7"], "wbcu: cannot use bad data"),
        ([*files, "--bad", source, "--bad-episodes", "3"], "--bad or --bad-episodes, not both"),
        ([*files, "--bad-episodes", "1"], "episode 1 is not one of these"),
        (["--expert", expert, "--supplementary", f"{source}::episodes=3-5", "--bad-episodes", "4-6"], "episode 6 is"),
        (["--expert", expert, "--supplementary", f"{source}::episodes=3-5", "--bad-episodes", "3-5"], "none is left"),
        ([*files, "--bad-episodes", "40"], "episode 40 does not exist"),
        ([*files, "--bad-episodes", "x"], "neither a number nor a range"),
        ([*files, "--bad", other], "observations: columns"),
        (["--expert", expert, "--bad-episodes", "3"], "give --supplementary"),
        (["--task", "hopper/noisy-expert", "--bad", source], "go with --expert"),
    ):
        assert main(["train", *flags, *SHORT, "--out", out]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert tree(tmp_path) == before
    with pytest.raises(InputError, match="give that set too"):
        ds.load(expert, bad=rest)
    weighted = Demonstrations(PILE, PILE, np.ones(2 * len(PILE)), bad=PILE)
    with pytest.raises(InputError, match="come with weights"):
        ds.fit(ds.Sift(), weighted, progress=False)
    with pytest.raises(InputError, match="bc: cannot use bad data"):
        ds.fit(tiny("bc"), ds.load(expert, rest, bad=source), progress=False)
