"""The bench measures what it says. No test asserts a speed."""

import json
from pathlib import Path
from typing import Any

import pytest

from demosift.algorithms import REGISTRY, WBCUTwoStage, make_algorithm
from demosift.bench import speed
from demosift.bench.speed import bench, describe_collect, measure
from demosift.learning.about import row_flops
from demosift.learning.cohort import Cohort
from demosift.types import InputError


def test_a_row_has_what_the_table_needs():
    row = measure(make_algorithm("bc", {"hidden": (16, 16), "batch_size": 8}), 2, seconds=0.05)
    assert (row["algorithm"], row["members"]) == ("bc", 2)
    assert row["member_iterations_per_second"] > 0
    assert row["bound"] > 0
    assert row["ratio"] == pytest.approx(row["member_iterations_per_second"] / row["bound"], rel=0.5)


def test_every_algorithm_has_its_work_counted():
    """Forward, backward and weight gradient of 256 rows through one 256 by 256 product: 3 * 256 * 2 * 256^2."""
    assert row_flops((256, 256)) == 2 * 256**2
    product = 256 * 2 * 256**2
    flops = {name: sum(work.flops for work in cls().work()) / product for name, cls in REGISTRY.items()}
    known = {"bc": 3, "nbcu": 3, "wbcu": 15, "wbcu-two-stage": 4, "demodice": 60, "dwbc": 8, "sift": 3}
    searching = dict.fromkeys(("iql", "seabo", "otr"), 16)  # V, policy, twins; targets, and the new V twice
    assert flops == {**known, **searching, "smodice": 26, "lobsdice": 60, "ilid": 3, "tailo": 96}
    assert all(work.rows > 0 for cls in REGISTRY.values() for work in cls().work())


def test_a_method_with_stages_is_measured_in_its_last(monkeypatch: pytest.MonkeyPatch):
    """Its last stage is what `work` counts: there the discriminator of two-stage WBCU only weighs."""
    seen = []

    class Spy(Cohort):
        def advance(self, first: int, steps: int) -> Any:
            seen.append(first)
            return super().advance(first, steps)

    monkeypatch.setattr(speed, "Cohort", Spy)
    measure(make_algorithm("wbcu-two-stage", {"hidden": (16, 16), "batch_size": 8}), 1, seconds=0.01)
    assert min(seen) >= WBCUTwoStage().discriminator_iterations


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InputError, match="unknown algorithm 'magic'"):
        bench(["magic"], [1])


def test_rows_are_kept_and_a_table_is_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured = []

    def fake(algorithm: Any, members: int, seconds: float, precision: str) -> dict[str, Any]:
        measured.append((algorithm.name, members, precision))
        rates = {"member_iterations_per_second": 1234.0, "bound": 2468.0, "ratio": 0.5}
        about = {"algorithm": algorithm.name, "members": members, "precision": precision}
        return {**about, "megaflop_per_iteration": 1.0, "matmul_gigaflops": 2.0, **rates}

    monkeypatch.setattr(speed, "measure", fake)
    out = tmp_path / "cpu.json"
    bench(["bc"], [1], out=str(out))
    answer, text = bench(["bc"], [1, 2], precisions=["float32", "bfloat16"], out=str(out))
    assert measured == [("bc", 1, "float32"), ("bc", 2, "float32"), ("bc", 1, "bfloat16"), ("bc", 2, "bfloat16")]
    assert json.loads(out.read_text()) == answer
    assert "| bc | 2 | bfloat16 | 1,234 | 1 | 2 | 2,468 | 0.50 |" in text
    assert out.with_suffix(".md").read_text() == f"{text}\n"
    monkeypatch.setattr(speed, "provenance", lambda: {"commit": "another"})
    bench(["bc"], [1], out=str(out))
    assert len(measured) == 5, "rows of another commit are not these"


def test_collecting_is_described():
    shares = {"waiting_for_simulation": 0.02, "waiting_for_learning": 0.9, "bound_by": "learning", "ratio": 0.8}
    rates = {"steps_per_second": 200.0, "flop_per_second": 8e10, "product_flop_per_second": 1e11}
    text = describe_collect({"environment": "ant", **shares, **rates})
    assert text.startswith("collect ant: 200 steps/s, bound by learning (waiting for simulation 2%")
    assert text.endswith("updates at 80 of 100 GFLOP/s, ratio 0.80")
