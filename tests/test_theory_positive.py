"""The positive result: WBCU with a linear discriminator, from counts to imitation gaps."""

import json
from dataclasses import replace

import numpy as np
import pytest

from demosift.theory.claim import Finding
from demosift.theory.claims import positive
from demosift.theory.drawing import to_files
from demosift.theory.learners import bc, nbcu, weighted
from demosift.theory.linear import Minimiser, Rows, minimise

RNG = np.random.default_rng
SCALE = 0.2


def run(**broken) -> Finding:
    return positive.check_positive(RNG(0), SCALE, **broken)


@pytest.fixture(scope="module")
def finding() -> Finding:
    return run()


def test_it_holds(finding: Finding):
    assert finding.holds
    assert finding.slack > 0.0
    assert finding.numbers["largest_difference"] == 0.0
    gaps = finding.numbers["gaps"]
    assert gaps["wbcu"] == gaps["bc"]
    assert gaps["separating"][-1] < 0.1 * gaps["bc"][-1]
    assert np.all(np.diff(gaps["separating"]) < 0.0)
    assert np.all(np.array(gaps["separating"]) >= np.array(gaps["oracle"]) - 1e-12)
    assert np.mean(finding.numbers["separates"]["separating"]) > 0.5
    assert np.max(finding.numbers["separates"]["useless"]) == 0.0


def backwards(rows: Rows) -> Minimiser:
    learned = minimise(rows)
    return replace(learned, theta=-learned.theta)


def nothing(rows: Rows) -> Minimiser:
    learned = minimise(rows)
    return replace(learned, theta=0.0 * learned.theta)


@pytest.mark.parametrize(
    "broken",
    [
        {"features": positive.of_states},
        {"useless": positive.separating},
        {"learn": backwards},
        {"learn": nothing},
    ],
    ids=["features do not separate", "useless features separate", "learns the opposite", "learns nothing"],
)
def test_it_turns(broken: dict):
    turned = run(**broken)
    assert not turned.holds
    assert turned.slack < 0.0
    assert turned.counterexample is not None


def test_it_turns_where_the_policy_is_not_that_of_all_expert_data(monkeypatch: pytest.MonkeyPatch):
    """A positive margin must give that very policy: one that mixes in a millionth of something else shows."""
    monkeypatch.setattr(positive, "weighted", lambda *of: 0.999999 * weighted(*of) + 0.000001 / positive.ACTIONS)
    turned = run()
    assert not turned.holds
    assert turned.numbers["largest_difference"] > 1e-7


def test_it_turns_where_tabular_wbcu_is_not_bc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(positive, "wbcu", nbcu)
    assert not run().holds


def test_data_has_the_sizes_asked_for():
    instance = positive.world()
    split = positive.draw_data(RNG(1), instance, 100, 7)
    assert set(split.data.num_expert) == {positive.NUM_EXPERT}
    assert set(split.data.supplementary[:, 0].sum((-2, -1))) == {100}
    assert set(split.good[:, 0].sum((-2, -1))) == {30}
    np.testing.assert_array_equal(split.good + split.bad, split.data.supplementary)
    # No sample is good and bad at once, and bad ones never do what the expert would.
    assert not np.any((split.of_expert.expert > 0) & (split.bad > 0))
    assert split.bad[:, instance.expert > 0.0].sum() == 0


def test_rows_hold_the_samples_shares_and_labels():
    instance = positive.world()
    split = positive.draw_data(RNG(2), instance, 30, 3)
    features = positive.separating(RNG(3), instance, 3)
    rows = positive.rows_of(split, features)
    assert len(rows) == 3 * positive.HORIZON
    np.testing.assert_allclose(rows.expert.sum(-1), 1.0)
    np.testing.assert_allclose(rows.union.sum(-1), 1.0)
    np.testing.assert_array_equal(rows.good | rows.bad, rows.union > 0.0)
    replicate, step, state, action = 1, 2, 4, 0
    row = replicate * positive.HORIZON + step, state * positive.ACTIONS + action
    np.testing.assert_array_equal(rows.features[row], features[replicate, step, state, action])
    assert rows.expert[row] == split.data.expert[replicate, step, state, action] / positive.NUM_EXPERT


def test_features_of_the_state_alone_make_wbcu_nbcu():
    split = positive.draw_data(RNG(4), positive.world(), 100, 5)
    linear = positive.linear_wbcu(split, positive.of_states(RNG(5), positive.world(), 5))
    np.testing.assert_allclose(linear.plain, nbcu(split.data), atol=1e-12)
    assert not linear.separates.any()


def test_a_perfect_feature_makes_wbcu_bc_on_all_expert_data():
    instance = positive.world()
    split = positive.draw_data(RNG(6), instance, 100, 5)
    features = np.zeros((5, positive.HORIZON, positive.STATES, positive.ACTIONS, positive.DIMENSION))
    features[..., 0] = np.where(instance.expert > 0.0, 1.0, -1.0)
    linear = positive.linear_wbcu(split, features)
    assert linear.separates.all()
    np.testing.assert_array_equal(linear.thresholded, bc(split.of_expert))


def test_picture_needs_the_numbers_alone(finding: Finding):
    numbers = json.loads(json.dumps(finding.numbers, allow_nan=False))
    assert to_files(positive.CLAIMS[0], numbers)["png"].startswith(b"\x89PNG")
