"""The scale bench measures what it says. No test asserts a speed."""

import json
from pathlib import Path

import numpy as np
import pytest

from demosift.bench import scale as bench_scale
from demosift.bench.scale import STAGES
from demosift.bench.scale import bench_scale as bench
from demosift.cli.main import main
from demosift.data import read_dataset


def test_a_pile_has_an_expert_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_scale, "BLOCK", 700)
    bench_scale.write_rows(tmp_path / "pile.hdf5", 6_000, 1)
    written = read_dataset(tmp_path / "pile.hdf5")
    assert written.episode_ends.tolist() == [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]
    bench_scale.write_rows(tmp_path / "expert.hdf5", 1_000, 0)
    expert = read_dataset(tmp_path / "expert.hdf5")
    kernel = np.linalg.lstsq(expert.transitions.obs, np.arctanh(expert.transitions.action.clip(-0.999, 0.999)))[0]
    error = (
        np.abs(np.tanh(written.transitions.obs @ kernel) - written.transitions.action).mean(axis=1).reshape(6, 1_000)
    )
    assert (error.mean(axis=1) < 0.1).tolist() == [True, False, False, True, False, False]


def test_an_address_is_for_the_cluster_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`score` refuses an address without the engine that it is for."""
    asked = []

    def measure(expert: Path, supplementary: Path, out: Path, scorer: str, engine: str, address: str | None):
        asked.append((engine, address))
        out.mkdir()
        return {}

    monkeypatch.setattr(bench_scale, "measure_score", measure)
    bench_scale.measure_rows(tmp_path, 2_000, "neighbours", ("local", "ray"), "10.0.0.1:6379")
    assert asked == [("local", None), ("ray", "10.0.0.1:6379")]


@pytest.mark.long
def test_rows_stages_and_a_table(tmp_path: Path):
    out = tmp_path / "scale.json"
    answer, text = bench([2_000], str(out), scorer="neighbours")
    (row,) = answer["results"]
    assert row["rows"] == 2_000
    assert 0.1 < row["peak_gigabytes"] < 4
    assert set(row["stages"]) == set(STAGES)
    assert row["stages"]["apply"] <= row["stages"]["weigh"]
    assert sum(row["stages"].values()) - row["stages"]["apply"] <= row["seconds"] + 0.5
    assert json.loads(out.read_text())["results"] == answer["results"]
    assert out.with_suffix(".md").read_text() == f"{text}\n"
    assert "| 2,000 |" in text


def test_another_suffix_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "scale", "--out", str(tmp_path / "scale.txt")]) == 2
    assert "are a .json file" in capsys.readouterr().err
