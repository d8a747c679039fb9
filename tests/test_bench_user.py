"""The bench of what a user waits for measures what it says. No test asserts a speed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from demosift.bench import user
from demosift.bench.watching import KINDS, REST, kind_of
from demosift.cli.main import main, parse


def test_every_command_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    sizes = {"NUM_CELLS": 85, "EVALUATIONS": 3, "TIMES": 1, "EPISODES": 2, "ROWS": (1_100,), "SIDE": 8, "BARE_STEPS": 9}
    for name, value in sizes.items():
        monkeypatch.setattr(user, name, value)
    monkeypatch.setattr(user, "STARTS", {name: ["-c", "pass"] for name in ("import numpy", "import jax")})
    verbs = []

    def measure(folder: Path, command: Sequence[str]) -> dict[str, Any]:
        options = parse(list(command))  # which refuses what is not understood
        verbs.append(options.verb)
        if options.verb == "report":
            assert main(list(command)) == 0
            page = (folder / "grid" / "report.html").read_text()
            assert "Left out" not in page
            assert "Oracle" in page
        for data in (options.expert, options.supplementary) if options.verb in ("train", "score") else ():
            assert Path(data).is_file()
        return {"seconds": 2.0, "cpu_seconds": 1.0, "shares": {"importing": 0.75, "tracing": 0.25}}

    monkeypatch.setattr(user, "measure", measure)
    out = tmp_path / "user.json"
    assert main(["bench", "user", "--rows", "1000", "2000", "--out", str(out)]) == 0
    assert len(json.loads(out.read_text())["commands"]) == len(verbs)
    text = capsys.readouterr().out
    assert verbs == ["train", "train", "score", "score", "score", "report", "evaluate"]
    assert user.beside("`train`", {"cpu_seconds": 3.0}, "import jax", 2.0)["ratio"] == 1.5
    assert "| `report`, 85 cells | 2.0 | 1.0 | parsing them |" in text
    assert "| importing 75%, tracing 25% |" in text
    assert out.with_suffix(".md").read_text().strip() in text


def test_a_command_is_watched(tmp_path: Path):
    found = user.measure(tmp_path, ["evaluate", "random", "--env", "hopper", "--episodes", "1"])
    assert set(found["shares"]) <= {*KINDS, REST}
    assert sum(found["shares"].values()) == pytest.approx(1, abs=0.02)
    assert found["shares"]["importing"] > 0
    assert found["shares"]["simulating"] > 0
    assert found["cpu_seconds"] > 0


def test_a_command_that_fails_is_no_result(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"report ended with 2: .*no such folder"):
        user.measure(tmp_path, ["report", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        (["/x/demosift/cli/main.py:main"], REST),
        (["/x/demosift/learning/fit.py:fit", "/x/jax/_src/pjit.py:cache_miss"], "computing"),
        (["/x/demosift/learning/fit.py:fit", "/x/jax/_src/compiler.py:compile_or_get_cached"], "compiling"),
        (["/x/demosift/report/page.py:write", "/x/matplotlib/figure.py:draw", "<frozen importlib._b>:f"], "importing"),
    ],
)
def test_what_a_stack_says(places: list[str], kind: str):
    assert kind_of(places) == kind
