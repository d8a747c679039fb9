"""WBCU with a linear discriminator: solver, margin, and the checks of Lemmas 1 and 2, Theorems 5 and 6, Example 1."""

import json
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog, root

from demosift.theory import linear, margin
from demosift.theory.claim import Check, Claim, Finding, generator
from demosift.theory.claims import landscape, separation, worked_example
from demosift.theory.drawing import to_files
from demosift.theory.linear import Minimiser, Rows, dataset, minimise
from demosift.theory.separable import Family, almost_equal, example, integers

RNG = np.random.default_rng


def some_rows(seed: int, number: int = 6, dimension: int = 3) -> Rows:
    """Instances whose rows count differently, as pairs of state and action do."""
    rng = RNG(seed)
    rows = Family(length=(0.5, 2.0), fewest_expert=3).draw(rng, number, dimension)
    weights = [part * rng.uniform(0.5, 1.5, part.shape) for part in (rows.expert, rows.union)]
    return replace(rows, expert=weights[0], union=weights[1])


def test_gradient_and_hessian_are_the_derivatives():
    rows = some_rows(0)
    theta = RNG(1).normal(size=(len(rows), 3))
    for axis, nudge in enumerate(1e-5 * np.eye(3)):
        slope = (linear.loss(rows, theta + nudge) - linear.loss(rows, theta - nudge)) / 2e-5
        np.testing.assert_allclose(linear.gradient(rows, theta)[:, axis], slope, atol=1e-9)
        bend = (linear.gradient(rows, theta + nudge) - linear.gradient(rows, theta - nudge)) / 2e-5
        np.testing.assert_allclose(linear.hessian(rows, theta)[:, axis], bend, atol=1e-9)


def test_loss_is_the_papers():
    rows = dataset([[1.0, 2.0]], [[0.5, 0.0]], [[-1.0, 1.0]])
    theta = np.array([[0.3, -0.2]])
    c = 1.0 / (1.0 + np.exp(-rows.features[0] @ theta[0]))
    assert linear.loss(rows, theta)[0] == pytest.approx(-np.log(c[0]) - np.mean(np.log(1.0 - c)), rel=1e-14)


def cvxpy_minimiser(rows: Rows) -> np.ndarray:
    theta = cp.Variable(rows.dimension)
    z = rows.features[0] @ theta
    objective = cp.sum(cp.multiply(rows.expert[0], cp.logistic(-z)) + cp.multiply(rows.union[0], cp.logistic(z)))
    cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert theta.value is not None
    return theta.value


def test_minimiser_is_cvxpys_and_scipys():
    rows = some_rows(2)
    found = minimise(rows)
    assert found.finite.all()
    for index in range(len(rows)):
        one = rows[index : index + 1]
        of_cvxpy = cvxpy_minimiser(one)
        np.testing.assert_allclose(found.theta[index], of_cvxpy, atol=1e-4)
        other = root(
            lambda theta, one=one: linear.gradient(one, theta[None])[0],
            np.zeros(3),
            jac=lambda theta, one=one: linear.hessian(one, theta[None])[0],
            tol=1e-14,
        )
        np.testing.assert_allclose(found.theta[index], other.x, rtol=1e-9, atol=1e-11)
        assert linear.loss(one, found.theta[index][None])[0] <= linear.loss(one, of_cvxpy[None])[0] + 1e-15


def test_minimiser_is_exact_to_the_last_digits():
    rows = Family().draw(RNG(3), 3000, 3)
    found = minimise(rows)
    assert np.nanmax(found.residual) <= 1e-14
    assert found.iterations < 60
    pulls = np.einsum("in,ind->i", rows.expert + rows.union, np.abs(rows.features))
    left = np.abs(linear.gradient(rows, found.theta)).max(-1) / pulls
    assert np.nanmax(left) <= 1e-14


def test_one_hot_features_give_the_tabular_ratio():
    """theta = log(d^E / d^U) on every row: the closed form of Equation 8, c / (1 - c) = d^E / d^U."""
    a, b = RNG(4).dirichlet(np.ones(4), 2)
    rows = Rows(np.eye(4)[None], a[None], b[None], np.ones((1, 4), bool), np.zeros((1, 4), bool))
    np.testing.assert_allclose(minimise(rows).theta[0], np.log(a / b), rtol=1e-12)


def test_a_one_hot_row_without_expert_data_has_no_finite_weight():
    """Tabular WBCU's weight zero is a limit: no theta attains it."""
    rows = Rows(
        np.eye(2)[None], np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]), np.ones((1, 2), bool), np.zeros((1, 2), bool)
    )
    assert not minimise(rows).finite[0]
    direction = linear.recession_direction(rows)
    assert direction is not None
    np.testing.assert_allclose(direction, [0.0, -1.0], atol=1e-12)


NONE = np.empty((0, 2))


@pytest.mark.parametrize(
    ("expert", "good", "bad", "finite"),
    [
        ([[1.0, 0.0]], NONE, [[0.0, -1.0]], False),  # full rank and separable
        ([[1.0, 0.0], [0.3, 0.0]], [[0.0, -0.1]], [[5.0, -1.0]], False),  # both on one side of what D^E leaves free
        ([[1.0, 0.0]], [[0.0, 1.0]], [[0.0, -1.0]], True),  # one on either side
        ([[1.0, 0.0], [0.0, 1.0]], NONE, [[-1.0, -1.0]], True),  # D^E spans the space
        ([[1.0, 0.0]], NONE, [[-1.0, 0.0]], True),  # rank one: a minimiser, though not only one
        ([[0.0, 0.0]], NONE, [[-1.0, 0.0]], False),  # the expert's features say nothing
        ([[0.0, 0.0]], NONE, [[0.0, 0.0]], True),  # no features do
    ],
)
def test_instances_without_a_minimiser_are_told_apart(expert: list, good: list, bad: list, finite: bool):
    rows = dataset(expert, good, bad)
    found = minimise(rows)
    assert found.finite[0] == finite
    assert np.isnan(found.theta).all() == (not finite)
    direction = linear.recession_direction(rows)
    assert (direction is None) == finite
    if direction is not None:
        falling = [linear.loss(rows, length * direction[None])[0] for length in (0.0, 1.0, 4.0, 16.0)]
        assert np.all(np.diff(falling) < 0.0)


def test_the_shortest_minimiser_where_rows_do_not_span_the_space():
    found = minimise(dataset([[2.0, 1.0]], NONE, [[-2.0, -1.0]]))
    assert found.theta[0] @ [-1.0, 2.0] == pytest.approx(0.0, abs=1e-15)
    assert found.residual[0] <= 1e-14


def test_detection_agrees_with_linear_programming():
    """Features of few whole numbers, so that rows are often parallel, equal or zero."""
    rng = RNG(5)
    rows = Family().draw(rng, 300, 3)
    used = (rows.good | rows.bad)[..., None]
    rows = replace(rows, features=rng.integers(-1, 2, rows.features.shape) * used * 1.0)
    found = linear.has_minimiser(rows)
    for index in range(len(rows)):
        signed = np.concatenate(
            [-rows.features[index][rows.expert[index] > 0.0], rows.features[index][rows.union[index] > 0.0]]
        )
        best = linprog(signed.sum(0), A_ub=signed, b_ub=np.zeros(len(signed)), bounds=[(-1.0, 1.0)] * 3)
        assert found[index] == (best.fun > -1e-7)
    assert 0.1 < found.mean() < 0.9


def test_largest_margin_is_cvxpys():
    rows = Family().draw(RNG(6), 12, 3)
    found = margin.maximum_margin(rows)
    assert found.separable.all()
    assert np.abs(found.excess).max() < 1e-10
    np.testing.assert_allclose(np.linalg.norm(found.theta, axis=-1), 1.0, rtol=1e-14)
    for index in range(len(rows)):
        theta, least, most = cp.Variable(3), cp.Variable(), cp.Variable()
        constraints = [
            rows.features[index][rows.good[index]] @ theta >= least,
            rows.features[index][rows.bad[index]] @ theta <= most,
            cp.norm(theta) <= 1.0,
        ]
        problem = cp.Problem(cp.Maximize(least - most), constraints)
        problem.solve(solver=cp.CLARABEL)
        assert margin.margin(rows, found.theta)[index] == pytest.approx(problem.value, rel=1e-6)


def test_largest_margin_in_the_plane_by_trying_all_directions():
    rows = Family().draw(RNG(7), 5, 2)
    angles = np.linspace(0.0, 2.0 * np.pi, 20_001)
    best = margin.margin(rows, margin.maximum_margin(rows).theta)
    tried = [margin.margin(rows, np.tile([np.cos(angle), np.sin(angle)], (5, 1))) for angle in angles]
    assert np.all(best >= np.max(tried, 0) - 1e-14)
    np.testing.assert_allclose(best, np.max(tried, 0), rtol=1e-4)


def test_inseparable_instances_have_no_largest_margin():
    touching = dataset([[1.0, 0.0], [-1.0, 0.0]], NONE, [[0.0, 0.0]])
    assert not margin.maximum_margin(touching).separable[0]
    line = dataset([[1.0], [-1.0]], np.empty((0, 1)), [[0.5]])
    assert not margin.maximum_margin(line).separable[0]
    assert np.isnan(margin.maximum_margin(line).theta).all()
    nothing_bad = dataset([[1.0, 0.0]], NONE, NONE)
    assert not margin.maximum_margin(nothing_bad).separable[0]


def test_taus_are_ordered_and_the_segments_is_bracketed():
    found = margin.solve(Family(length=(0.3, 3.0)).draw(RNG(8), 500, 3))
    of = found.rows, found.star, found.bar
    printed, corrected, segment = (tau(*of) for tau in margin.TAUS.values())
    exact = np.full(len(found), np.inf)
    for t in np.linspace(0.0, 1.0, 201):
        hessian = linear.hessian(found.rows, found.star + t * (found.bar - found.star))
        exact = np.minimum(exact, np.linalg.eigvalsh(hessian)[:, 0])
    rounding = 1e-12 * np.linalg.eigvalsh(linear.hessian(found.rows, 0.0 * found.bar))[:, -1]
    for low, high in (
        (printed, corrected),
        (corrected, segment),
        (segment, exact),
        (exact, margin.segment_tau_from_above(*of)),
        (segment, margin.growth(*of)),
    ):
        assert np.all(low <= high + rounding)


def test_longer_features_have_a_shorter_minimiser_and_the_same_separation():
    found = margin.solve(Family().draw(RNG(9), 200, 2))
    longer = found.with_length(np.full(len(found), 0.7))
    np.testing.assert_allclose(np.linalg.norm(longer.star, axis=-1), 0.7)
    solved = minimise(longer.rows).theta
    np.testing.assert_allclose(solved, longer.star, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        margin.margin(longer.rows, longer.star), margin.margin(found.rows, found.star), rtol=1e-9
    )


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_families_satisfy_the_assumption(dimension: int):
    rows = Family().draw(RNG(10), 400, dimension)
    assert margin.maximum_margin(rows).separable.all()
    np.testing.assert_allclose(rows.expert.sum(-1), 1.0)
    np.testing.assert_allclose(rows.union.sum(-1), 1.0)
    assert np.all((rows.expert > 0.0) <= rows.good)
    assert not np.any(rows.good & rows.bad)
    assert rows.bad.any(-1).all()


@pytest.mark.parametrize("make", [integers, lambda rng, number: almost_equal(rng, Family().draw(rng, number, 1))])
def test_one_dimensional_families_stay_separable(make):
    rows = make(RNG(11), 2000)
    sides = rows.features[..., 0] * margin.maximum_margin(rows).theta
    assert np.all(sides[rows.good] > 0.0)
    assert np.all(sides[rows.bad] < 0.0)


def test_almost_equal_means_are_a_millionth_apart():
    rows = almost_equal(RNG(12), Family(length=(1.0, 1.0)).draw(RNG(12), 2000, 1))
    supplementary, expert = separation.exact_sums(rows)
    number = (rows.expert > 0.0).sum(-1)
    apart = np.abs(expert - supplementary) / (number * ((rows.union > 0.0).sum(-1) - number))
    assert np.mean(np.abs(apart - 1e-6) < 1e-10) > 0.5


# The checks: each holds, and each turns when what it checks is broken.


def run(check: Check, scale: float = 0.05, **broken: Any) -> Finding:
    return check(RNG(13), scale, **broken)


def backwards(rows: Rows) -> Minimiser:
    """A learner that has learned the opposite."""
    learned = minimise(rows)
    return replace(learned, theta=-learned.theta)


def unfinished(rows: Rows) -> Minimiser:
    """A learner that stops after its first step, and says how far it got."""
    theta = -np.linalg.solve(
        linear.hessian(rows, np.zeros(rows.features[:, 0].shape)) + 1e-9 * np.eye(rows.dimension),
        linear.gradient(rows, np.zeros(rows.features[:, 0].shape))[..., None],
    )[..., 0]
    residual = np.abs(linear.gradient(rows, theta)).max(-1)
    return Minimiser(theta, np.ones(len(rows), bool), residual, 1)


def test_lipschitz_holds_and_turns():
    assert run(landscape.check_lipschitz).holds
    at_other_end = run(landscape.check_lipschitz, constant=lambda rows, theta: margin.lipschitz(rows, -theta))
    assert not at_other_end.holds
    smaller = run(landscape.check_lipschitz, constant=lambda rows, theta: 0.99 * margin.lipschitz(rows, theta))
    assert not smaller.holds
    assert smaller.slack < 0.0
    assert smaller.counterexample is not None
    case = dataset(*(smaller.counterexample[part] for part in ("expert", "good", "bad")))
    bar, theta = (np.array([smaller.counterexample[name]]) for name in ("bar", "theta"))
    drop = margin.margin(case, bar) - margin.margin(case, theta)
    assert drop[0] > 0.99 * margin.lipschitz(case, theta)[0] * np.linalg.norm(bar - theta)


def test_lipschitz_is_not_one_constant():
    """L at theta bounds how far the margin falls towards theta, not how far it rises."""
    assert 0.1 < run(landscape.check_lipschitz).numbers["no_common_constant"] < 0.5


def test_growth_holds_and_turns():
    finding = run(landscape.check_growth)
    assert finding.holds
    assert finding.numbers["without_minimiser"]["d = 3"] > 0.0
    assert finding.numbers["full_rank_without_minimiser"]["rank"] == 2
    for name in margin.TAUS:
        factor = 1.01 + 10.0 * finding.numbers["least_room"][name]
        larger = run(landscape.check_growth, taus={name: lambda *of, n=name, f=factor: f * margin.TAUS[n](*of)})
        assert not larger.holds, name
        assert larger.counterexample is not None
        assert larger.slack < 0.0
    assert not run(landscape.check_growth, taus={"zero": lambda *of: np.zeros(len(of[0]))}).holds
    assert not run(landscape.check_growth, learn=unfinished).holds


@pytest.fixture(scope="module")
def theorem() -> Finding:
    return run(separation.check_theorem, 0.02)


def test_theorem_holds(theorem: Finding):
    assert theorem.holds
    assert theorem.slack > 0.0
    assert min(theorem.numbers["satisfied"].values()) >= 0.02 * 10_000
    assert sum(separation.WANTED.values()) == 10_000
    frequencies = theorem.numbers["frequencies"]["d = 2"]
    assert frequencies["printed"] <= frequencies["corrected"] <= frequencies["segment"] < frequencies["conclusion"]
    assert theorem.numbers["frequencies"]["d = 3"]["without_minimiser"] > 0.0


@pytest.mark.parametrize("name", list(margin.TAUS))
def test_theorem_turns_with_a_tau_too_large(name: str):
    larger = run(separation.check_theorem, 0.02, taus={name: lambda *of: 30.0 * margin.TAUS[name](*of)})
    assert not larger.holds
    assert larger.slack <= 0.0
    assert larger.counterexample is not None
    rows = dataset(*(larger.counterexample[part] for part in ("expert", "good", "bad")))
    assert margin.margin(rows, minimise(rows).theta)[0] <= 0.0
    assert margin.maximum_margin(rows).separable[0]


def test_theorem_turns_with_a_broken_learner():
    assert run(separation.check_theorem, 0.01, learn=backwards).numbers["unsolved"] > 0
    assert not run(separation.check_theorem, 0.01, learn=backwards).holds


def test_theorem_is_not_called_checked_on_too_few_instances(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(separation, "MOST_BATCHES", 1)
    tiny = run(separation.check_theorem, 0.01, taus={"tiny": lambda *of: 1e-9 * margin.proof_tau(*of)})
    assert not tiny.holds
    assert not tiny.numbers["enough"]
    assert tiny.slack < 0.0


def test_one_dimension_holds_and_turns():
    finding = run(separation.check_one_dimension)
    assert finding.holds
    assert finding.numbers["ties"] > 0
    assert 0.5 < finding.numbers["condition_holds"] < 0.95
    assert 20 * finding.instances >= 100_000
    assert finding.numbers["without_bad_samples"] == {"condition": False, "separates": True}
    ways: list[dict[str, Any]] = [
        {"learn": backwards},
        {"condition": lambda rows, bar: ~separation.scores_are_lower(rows, bar)},
        {"condition": not_strict},
        {"condition": ignoring_the_direction},
        {"condition": of_good_samples_only},
    ]
    for broken in ways:
        turned = run(separation.check_one_dimension, **broken)
        assert not turned.holds, broken
        assert turned.counterexample is not None
        assert turned.slack < 0.0
    assert not run(separation.check_one_dimension, learn=unfinished).holds


def not_strict(rows: Rows, bar: np.ndarray) -> np.ndarray:
    """Wrong only where the means are equal."""
    supplementary, expert = separation.exact_sums(rows)
    return bar * supplementary <= bar * expert


def ignoring_the_direction(rows: Rows, bar: np.ndarray) -> np.ndarray:
    return separation.scores_are_lower(rows, np.ones_like(bar))


def of_good_samples_only(rows: Rows, bar: np.ndarray) -> np.ndarray:
    return separation.scores_are_lower(replace(rows, union=rows.union * rows.good), bar)


def test_worked_example_without_rounding():
    """The paper's 0.520 comes from its rounded numbers. With the proof's own tau the condition holds too."""
    computed = worked_example.recompute(example())
    assert f"{np.sqrt(2.0 * (1.309 - 1.287) / 0.163):.3f}" == f"{computed['left_from_rounded']:.3f}" == "0.520"
    left = " ".join(f"{computed[f'left_{name}']:.4f}" for name in ("segment", "printed", "corrected"))
    assert left == "0.5224 0.7747 0.6325"


def test_worked_example_agrees_with_cvxpy():
    rows = example()
    found = cvxpy_minimiser(rows)
    np.testing.assert_allclose(minimise(rows).theta[0], found, atol=1e-5)
    assert f"{found[0]:.3f} {found[1]:.3f}" == "-0.310 0.993"


def test_worked_example_holds_and_turns():
    assert run(worked_example.check_example).holds
    moved = dataset([[0.0, 1.0], [-1.0, 0.0]], [[-0.5, 0.0]], [[0.0, -0.51]])
    assert not run(worked_example.check_example, rows=moved).holds
    assert not run(worked_example.check_example, learn=unfinished).holds
    for name in worked_example.PRINTED:
        text, label = worked_example.PRINTED[name]
        wrong = {**worked_example.PRINTED, name: (f"{float(text) + 0.001:.3f}", label)}
        assert not run(worked_example.check_example, printed=wrong).holds, name


def test_learning_scheme_holds_and_turns():
    finding = run(worked_example.check_scheme, 1.0)
    assert finding.holds
    assert 0.0 < finding.numbers["margin"] / np.linalg.norm(finding.numbers["star"]) < finding.numbers["largest_margin"]
    assert not run(worked_example.check_scheme, learn=backwards).holds
    mixed = dataset([[1.0, 0.0], [0.0, 1.0]], [[-1.0, -0.2]], [[0.1, 0.1]])
    turned = run(worked_example.check_scheme, rows=mixed)
    assert not turned.holds
    assert to_files(worked_example.CLAIMS[1], turned.numbers)


@pytest.mark.parametrize(
    "claim", [*landscape.CLAIMS, *separation.CLAIMS, *worked_example.CLAIMS], ids=lambda claim: claim.name
)
def test_pictures_need_the_numbers_alone(claim: Claim):
    finding = claim.check(generator(0, claim.name), 0.01)
    numbers = json.loads(json.dumps(finding.numbers, allow_nan=False))
    assert to_files(claim, numbers)["svg"].startswith(b"<?xml")
