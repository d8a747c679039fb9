"""The bench of the recipe measures what it says. No test asserts a speed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from demosift.bench import recipe
from demosift.bench.recipe import STAGES, bench_recipe, table
from demosift.cli.main import main
from demosift.sift.method import Sift
from demosift.tasks.recipes import make_task
from demosift.types import Demonstrations


def small_task(task: str, seed: int) -> Demonstrations:
    """One episode of each set."""
    data = make_task(task, seed, pool=10)
    assert data.supplementary is not None
    rows = slice(int(data.supplementary.episode_ends[0]))
    return replace(data, supplementary=data.supplementary.take(rows))


def test_rows_stages_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipe, "make_task", small_task)
    monkeypatch.setattr(recipe, "METHOD", Sift(scorer="neighbours", hidden=(8, 8), batch_size=16))
    out = tmp_path / "recipe.json"
    answer, text = bench_recipe(["hopper"], iterations=10, ensembles=[2, 1], out=str(out))
    assert [(row["env"], row["ensemble"]) for row in answer["results"]] == [("hopper", 2), ("hopper", 1)]
    assert (answer["seed"], answer["iterations"], answer["plain_iterations"]) == (10, 10, 10)
    for row in answer["results"]:
        assert set(row["seconds"]) == set(STAGES)
        assert sum(row["seconds"].values()) == pytest.approx(60 * row["minutes"], abs=0.5)
        total, plain = 60 * row["minutes"], row["plain_seconds"]  # both are rounded, and small here
        assert (total - 0.4) / (plain + 0.06) <= row["ratio"] <= (total + 0.4) / max(plain - 0.06, 1e-3)
        assert -0.1 < row["score"] < 0.5, "ten iterations teach little"
    assert [row["target_minutes"] for row in answer["results"]] == [None, 1.0]
    assert json.loads(out.read_text())["results"] == answer["results"]
    assert out.with_suffix(".md").read_text() == f"{text}\n"


@pytest.mark.parametrize(("minutes", "shown"), [(3.4, "| 3.4\\* | 3 |"), (2.9, "| 2.9 | 3 |")])
def test_a_missed_target_is_marked(minutes: float, shown: str):
    seconds = dict.fromkeys(STAGES, 20 * minutes)
    row = {"env": "ant", "ensemble": 5, "seconds": seconds, "minutes": minutes, "target_minutes": 3.0}
    measured = {"score": 0.943, "plain_seconds": 30.0, "ratio": 2 * minutes}
    text = table([{**row, **measured}], {"seed": 10, "iterations": 25_000, "plain_iterations": 25_000})
    assert shown in text
    assert "| 94.3 | 30 |" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--envs", "magic"], "unknown environment 'magic'"),
        (["--out", "recipe.txt"], "are a .json file"),
        (["--ensemble", "0"], "argument --ensemble: '0' is not a whole number from 1 to 1,000"),
    ],
)
def test_bad_requests_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = main(["bench", "recipe", *flags])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert message in capsys.readouterr().err
