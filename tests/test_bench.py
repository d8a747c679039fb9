"""The bench measures what it says. No test asserts a speed."""

import pytest

from demosift.algorithms import BC, REGISTRY
from demosift.bench.speed import bench, describe_collect, iteration_work, measure, row_flops
from demosift.types import InputError


def test_a_row_has_what_the_table_needs():
    row = measure(BC(hidden=(16, 16), batch_size=8), 2, seconds=0.05)
    assert (row["algorithm"], row["members"]) == ("bc", 2)
    assert row["member_iterations_per_second"] > 0
    assert row["bound"] > 0
    assert row["ratio"] == pytest.approx(row["member_iterations_per_second"] / row["bound"], rel=0.5)


def test_every_algorithm_has_its_work_counted():
    """Forward, backward and weight gradient of 256 rows through one 256 by 256 product: 3 * 256 * 2 * 256^2."""
    assert row_flops((256, 256)) == 2 * 256**2
    assert sum(work.flops for work in iteration_work(BC())) == 3 * 256 * 2 * 256**2
    for algorithm in REGISTRY.values():
        assert all(work.rows > 0 and work.flops > 0 for work in iteration_work(algorithm()))


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InputError, match="unknown algorithm 'magic'"):
        bench(["magic"], [1])


def test_collecting_is_described():
    shares = {"waiting_for_simulation": 0.02, "waiting_for_learning": 0.9, "bound_by": "learning", "ratio": 0.8}
    rates = {"steps_per_second": 200.0, "flop_per_second": 8e10, "product_flop_per_second": 1e11}
    text = describe_collect({"environment": "ant", **shares, **rates})
    assert text.startswith("collect ant: 200 steps/s, bound by learning (waiting for simulation 2%")
    assert text.endswith("updates at 80 of 100 GFLOP/s, ratio 0.80")
