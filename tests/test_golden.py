"""Golden numbers: every algorithm after ten steps, as it was when somebody last looked.

A change that moves them needs a `[numbers]` line in CHANGELOG.md that says why; then rewrite them with

    python tests/test_golden.py --write
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COMBINATIONS, alone

from demosift.results.run import Row, Run

FILE = Path(__file__).parent / "golden/algorithms.json"
TOLERANCE = 1e-4  # float32 on another processor; a change of the maths moves most numbers by more


def summarise(run: Run) -> Row:
    """The metrics, and of each array of parameters its mean, spread and size."""
    parameters = {name: np.float64(array) for name, array in (run.state or {}).items() if ".params" in name}
    return {
        "metrics": run.metrics,
        "parameters": {
            name: {"mean": array.mean(), "std": array.std(), "abs_sum": np.abs(array).sum()}
            for name, array in sorted(parameters.items())
        },
    }


def differences(actual: Any, expected: Any, path: str = "") -> list[str]:
    """Where two summaries differ by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        return [line for key in expected for line in differences(actual[key], expected[key], f"{path}/{key}")]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(actual, expected, strict=True))
        return [line for index, (new, old) in pairs for line in differences(new, old, f"{path}/{index}")]
    if isinstance(expected, float) and isinstance(actual, float):
        same = abs(actual - expected) <= TOLERANCE * max(abs(expected), 0.1)
    else:
        same = actual == expected
    return [] if same else [f"{path}: {actual}, was {expected}"]


@pytest.mark.parametrize(("name", "kind"), COMBINATIONS)
def test_golden_numbers(name: str, kind: str):
    stored = json.loads(FILE.read_text())[f"{name}, {kind}"]
    assert not differences(summarise(alone(name, kind)), stored), "see this file's docstring"


def test_every_stored_number_is_compared():
    assert set(json.loads(FILE.read_text())) == {f"{name}, {kind}" for name, kind in COMBINATIONS}


def test_a_moved_number_shows():
    stored = summarise(alone("wbcu", "continuous"))
    moved = json.loads(json.dumps(stored))
    moved["metrics"][1]["weight_mean"] *= 1.001
    moved["parameters"][".policy.params.layers[1].kernel"]["abs_sum"] *= 1.001
    assert len(differences(moved, stored)) == 2
    del moved["metrics"][0]["policy_loss"]
    assert len(differences(moved, stored)) == 3


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    FILE.parent.mkdir(exist_ok=True)
    content = {f"{name}, {kind}": summarise(alone(name, kind)) for name, kind in COMBINATIONS}
    FILE.write_text(json.dumps(content, indent=1) + "\n")
