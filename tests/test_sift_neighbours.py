"""Log-ratios by nearest neighbours are those of sorted distances."""

import numpy as np
import pytest
from test_neighbours import sorted_distances

from demosift.sift import neighbours
from demosift.sift.folds import Plan
from demosift.sift.neighbours import (
    action_closeness,
    closeness,
    make_references,
    state_closeness,
)
from demosift.sift.training_sample import TrainingSample


def random_sample(num_rows: int, num_models: int = 2) -> TrainingSample:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(num_rows, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (num_rows, 2)).astype(np.float32)
    fold = (np.arange(num_rows) % num_models).astype(np.int8)
    return TrainingSample(obs, action, num_rows // 2, Plan(num_models, 1, fold, np.arange(num_rows) < num_rows // 2))


@pytest.mark.parametrize("sizes", [(40, 33), (7, 3)])  # the smaller has fewer rows than neighbours are asked for
def test_closeness_is_that_of_sorted_distances(sizes: tuple[int, int]):
    sample = random_sample(120)
    rows = [np.arange(size) for size in sizes]
    references = make_references(sample, rows, 5)
    count = min(5, *sizes)
    for model, own in enumerate(rows):
        order, squared = sorted_distances(sample.obs, sample.obs[own])
        states = state_closeness(references, model, sample.obs, sample.action)
        np.testing.assert_allclose(states, closeness(squared[:, count - 1]), rtol=1e-2, atol=2e-3)
        taken = sample.action[own][order[:, :count]]
        expected = closeness(((taken - sample.action[:, None]) ** 2).sum(axis=-1).min(axis=1))
        actions = action_closeness(references, model, sample.obs, sample.action)
        assert np.mean(np.abs(actions - expected) < 1e-3) > 0.99


def test_a_row_that_is_far_out_has_a_finite_closeness():
    sample = random_sample(40)
    references = make_references(sample, [np.arange(20)] * 2, 5)
    obs = np.array([[1e30, 0, 0], [0, 0, 0]], np.float32)
    found = state_closeness(references, 0, obs, sample.action[:2])[0]
    assert np.isfinite(found).all()
    assert found[0] < -10 < found[1]


def test_a_reference_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neighbours, "LARGEST_REFERENCE", 10)
    sample = random_sample(100)
    references = make_references(sample, [np.arange(100), np.arange(4)], 3)
    assert references.size.tolist() == [10, 4]
    np.testing.assert_array_equal(references.obs[0, 9], sample.obs[99])
    np.testing.assert_array_equal(references.obs[0, 0], sample.obs[0])
    assert references.obs.shape[1] % neighbours.AT_A_TIME == 0
