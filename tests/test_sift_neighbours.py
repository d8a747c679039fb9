"""Nearest neighbours: the search finds what sorting all distances finds."""

import jax.numpy as jnp
import numpy as np
import pytest

from demosift.sift import neighbours
from demosift.sift.folds import Plan
from demosift.sift.neighbours import ActionCloseness, StateCloseness, closeness, make_references, nearest
from demosift.sift.sample import Pool


def sorted_distances(obs: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    squared = ((obs[:, None].astype(np.float64) - reference[None]) ** 2).sum(axis=-1)
    order = np.argsort(squared, axis=1, kind="stable")
    return order, np.take_along_axis(squared, order, axis=1)


def random_pool(num_rows: int, num_models: int = 2) -> Pool:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(num_rows, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (num_rows, 2)).astype(np.float32)
    fold = (np.arange(num_rows) % num_models).astype(np.int8)
    return Pool(obs, action, num_rows // 2, Plan(num_models, 1, fold, np.arange(num_rows) < num_rows // 2))


def test_the_nearest_are_found_in_order():
    rng = np.random.default_rng(1)
    reference, obs = (rng.normal(size=(rows, 4)).astype(np.float32) for rows in (64, 500))
    order, squared = sorted_distances(obs, reference[:50])
    found = np.asarray(nearest(jnp.asarray(reference), jnp.int32(50), jnp.asarray(obs), 5)).T
    assert found.max() < 50  # the others are padding
    mine = ((obs[:, None] - reference[found]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(mine, squared[:, :5], rtol=2e-3, atol=1e-5)
    assert np.mean(found == order[:, :5]) > 0.99


@pytest.mark.parametrize("sizes", [(40, 33), (7, 3)])  # the smaller has fewer rows than neighbours are asked for
def test_closeness_is_that_of_sorted_distances(sizes: tuple[int, int]):
    pool = random_pool(120)
    rows = [np.arange(size) for size in sizes]
    references = make_references(pool, rows, 5)
    count = min(5, *sizes)
    for model, own in enumerate(rows):
        order, squared = sorted_distances(pool.obs, pool.obs[own])
        states = StateCloseness(references).features(model, pool.obs, pool.action)
        np.testing.assert_allclose(states, closeness(squared[:, count - 1]), rtol=1e-2, atol=2e-3)
        taken = pool.action[own][order[:, :count]]
        expected = closeness(((taken - pool.action[:, None]) ** 2).sum(axis=-1).min(axis=1))
        actions = ActionCloseness(references).features(model, pool.obs, pool.action)
        assert np.mean(np.abs(actions - expected) < 1e-3) > 0.99


def test_a_row_that_is_far_out_has_a_finite_closeness():
    pool = random_pool(40)
    references = make_references(pool, [np.arange(20)] * 2, 5)
    obs = np.array([[1e30, 0, 0], [0, 0, 0]], np.float32)
    found = StateCloseness(references).features(0, obs, pool.action[:2])[0]
    assert np.isfinite(found).all()
    assert found[0] < -10 < found[1]


def test_a_reference_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neighbours, "LARGEST_REFERENCE", 10)
    pool = random_pool(100)
    references = make_references(pool, [np.arange(100), np.arange(4)], 3)
    assert references.size.tolist() == [10, 4]
    np.testing.assert_array_equal(references.obs[0, 9], pool.obs[99])
    np.testing.assert_array_equal(references.obs[0, 0], pool.obs[0])
    assert references.obs.shape[1] % neighbours.AT_A_TIME == 0
