"""The bench of rewards measures what it says. No test asserts a speed."""

import json
from pathlib import Path

import pytest

from demosift.bench import rewards
from demosift.cli.main import main


def test_rows_transport_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, value in (("REFERENCES", 40), ("DIMENSIONS", (3, 5)), ("STEPS", 20), ("EPISODES", 2)):
        monkeypatch.setattr(rewards, name, value)
    out = tmp_path / "rewards.json"
    assert main(["bench", "rewards", "--rows", "100", "--out", str(out)]) == 0
    answer, text = json.loads(out.read_text()), capsys.readouterr().out
    assert [(row["rows"], row["references"], row["dimension"]) for row in answer["search"]] == [
        (100, 40, 3),
        (100, 40, 5),
    ]
    assert all(row["seconds"] >= 0 and row["product_cpu_seconds"] >= 0 for row in answer["search"])
    assert answer["transport"]["episodes"] == 2
    assert "| 100 | 40 | 5 |" in text
    assert out.with_suffix(".md").read_text().strip() in text
