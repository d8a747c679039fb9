"""The scores bench: measures worked out by hand, continued where it stopped, and tables that mark missed targets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_dataset

from demosift.bench import scores as bench
from demosift.cli.main import main
from demosift.tasks.recipes import ORIGINS
from demosift.types import Dataset, Demonstrations, InputError, Origin


def supplementary(seed: int = 1) -> Dataset:
    """Ten episodes of six rows; the first half of them clean, the others noisy."""
    data = random_dataset(seed, 60)
    code = np.repeat([ORIGINS.index("clean"), ORIGINS.index("noisy")], 30).astype(np.int8)
    return Dataset(data.transitions, data.timeout, origin=Origin(code, ORIGINS))


def test_judges_by_hand(monkeypatch: pytest.MonkeyPatch):
    data = supplementary()
    length = np.diff(data.episode_ends, prepend=0)

    def judged(episode: np.ndarray) -> bench.Judged:
        return bench.Judged(np.repeat(episode, length), episode)

    right, wrong = judged(np.repeat([2.0, 0.5], 5)), judged(np.repeat([0.5, 2.0], 5))
    assert bench.separation(right, data) == 1.0
    assert bench.separation(wrong, data) == 0.0
    monkeypatch.setattr(bench, "NEEDLES", 5)
    assert bench.precision(right, data) == 1.0
    assert bench.precision(wrong, data) == 0.0
    assert bench.correlation(judged(data.returns()), data) == pytest.approx(1.0)
    assert bench.correlation(judged(-data.returns()), data) == pytest.approx(-1.0)
    assert bench.correlation(judged(np.ones(10)), data) == 0.0


@pytest.mark.parametrize("name", bench.AGREEMENT)
def test_agreement_looks_at_no_expert(name: str):
    """Ten episodes of one way to act, the last five of them with noise: these agree less."""
    rng = np.random.default_rng(0)
    data = random_dataset(1, 600)
    obs = data.transitions.obs
    action = np.tanh(obs @ rng.normal(size=(obs.shape[1], data.transitions.action.shape[1]))).astype(np.float32)
    noisy = np.arange(len(obs)) >= 300
    action[noisy] = rng.uniform(-1, 1, action[noisy].shape)
    code = np.where(noisy, ORIGINS.index("noisy"), ORIGINS.index("clean")).astype(np.int8)
    pile = Dataset(data.transitions._replace(action=action), data.timeout, origin=Origin(code, ORIGINS))
    asked = bench.request("noisy-expert", "hopper", 0, name, Demonstrations(random_dataset(3, 12), pile))
    one, other = (
        bench.measure_scorer(asked, Demonstrations(random_dataset(seed, 12), pile))["value"] for seed in (3, 4)
    )
    assert one == other
    assert one > 0.9
    assert asked["members"] == 0


class Counted:
    """Replaces data and scoring, and records what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[bench.Key] = []
        self.data_seed = 0
        self.fail_at: bench.Key | None = None
        monkeypatch.setattr(bench, "make_data", self.make_data)
        monkeypatch.setattr(bench, "measure_scorer", self.measure)

    def make_data(self, measure: str, env: str, seed: int, replay: str | None) -> Demonstrations:
        return Demonstrations(random_dataset(self.data_seed, 12), supplementary(seed))

    def measure(self, asked: bench.Row, data: Demonstrations) -> bench.Row:
        if bench.key(asked) == self.fail_at:
            raise KeyboardInterrupt
        self.calls.append(bench.key(asked))
        value = 0.9 if asked["scorer"] == "wbcu" else 0.995
        return {**asked, "value": value, "target": bench.target(asked["measure"], asked["env"]), "seconds": 1.0}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def run(out: Path, **changes: Any) -> tuple[bench.Row, str]:
    given: dict[str, Any] = {"scorers": ["contrast", "wbcu"], "envs": ["hopper"], "seeds": 2} | changes
    return bench.bench_scores(**given, measures=["noisy-expert"], out=str(out))


FIRST = [
    ("noisy-expert", "hopper", 0, "contrast"),
    ("noisy-expert", "hopper", 0, "wbcu"),
    ("noisy-expert", "hopper", 1, "contrast"),  # the others are measured with the first seed alone
]


def test_an_interrupted_bench_goes_on(counted: Counted, tmp_path: Path):
    out = tmp_path / "scores.json"
    counted.fail_at = FIRST[1]
    with pytest.raises(KeyboardInterrupt):
        run(out)
    assert [bench.key(row) for row in json.loads(out.read_text())["results"]] == FIRST[:1]
    counted.fail_at = None
    run(out)
    assert counted.calls == FIRST
    run(out)
    assert counted.calls == FIRST


def test_other_data_and_other_settings_are_measured_again(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "scores.json"
    run(out, seeds=1)
    counted.data_seed = 5
    run(out, seeds=1)
    assert counted.calls == FIRST[:2] * 2
    monkeypatch.setattr(bench, "make_scorer", lambda name: bench.SCORERS[name](neighbours=7))  # type: ignore[call-arg]
    answer, _ = run(out, seeds=1, scorers=["contrast"])
    assert counted.calls == FIRST[:2] * 2 + FIRST[:1]
    assert len(answer["results"]) == 2  # the newer ones


def test_parts_are_merged(counted: Counted, tmp_path: Path):
    out = tmp_path / "scores.json"
    run(out, envs=["ant"])
    answer, text = run(out)
    assert [row["env"] for row in answer["results"]] == ["hopper"] * 3 + ["ant"] * 3
    assert json.loads(out.read_text())["results"] == answer["results"]
    assert out.with_suffix(".md").read_text() == f"{text}\n"
    assert "| scorer | members | hopper | ant | seconds |" in text
    assert "| contrast | 3 | 0.995 (0.995) | 0.995 (0.995) | 1 |" in text
    assert "| wbcu | 1 | 0.900\\* | 0.900\\* | 1 |" in text  # missed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--scorers", "magic"], "unknown scorer 'magic'"),
        (["--envs", "magic"], "unknown environment 'magic'"),
        (["--measures", "magic"], "unknown measure 'magic'"),
        (["--replay", "nowhere"], "holds no folder of hopper"),
        (["--out", "scores.txt"], "are a .json file"),
        (["--out", "OTHER"], "not results of demosift bench scores"),
    ],
)
def test_bad_requests_are_refused(
    options: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "other.json").write_text('{"results": [1]}')
    assert main(["bench", "scores", *(each.replace("OTHER", str(tmp_path / "other.json")) for each in options)]) == 2
    assert expected in capsys.readouterr().err


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text("[]")
    with pytest.raises(InputError, match="not results"):
        run(path)
    assert path.read_text() == "[]"
