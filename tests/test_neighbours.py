"""Nearest neighbours: the search finds what sorting all distances finds."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from demosift.learning import neighbours
from demosift.learning.neighbours import find_nearest, find_one, nearest


def sorted_distances(obs: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    squared = ((obs[:, None].astype(np.float64) - reference[None]) ** 2).sum(axis=-1)
    order = np.argsort(squared, axis=1, kind="stable")
    return order, np.take_along_axis(squared, order, axis=1)


def no_rows(part: slice) -> np.ndarray:
    """Leaves none out: the search is then the one for several neighbours, even if one is asked for."""
    return np.zeros((part.stop - part.start, 600), bool)


@pytest.mark.parametrize("count", [1, 5])
def test_the_exact_search_finds_what_sorting_finds(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neighbours, "CHUNK", 64)  # the last chunk is not full
    rng = np.random.default_rng(1)
    reference, obs = (rng.normal(size=(rows, 4)) for rows in (50, 200))
    order, squared = sorted_distances(obs, reference)
    index, distance = find_nearest(obs, reference, count)
    assert (index == order[:, :count]).all()
    np.testing.assert_allclose(distance, np.sqrt(squared[:, :count]), rtol=1e-12)


def test_rows_that_are_left_out_are_nobodys_neighbours():
    states, number = np.random.default_rng(1).normal(size=(6, 2)), np.arange(6)
    index, distance = find_nearest(states, states, 3, left_out=lambda part: number[part, None] % 2 == number % 2)
    assert ((index % 2 != number[:, None] % 2) & np.isfinite(distance)).all()
    index, distance = find_nearest(states, states, 3, left_out=lambda part: number[part, None] // 4 == number // 4)
    assert np.isinf(distance[:4]).any(axis=1).all(), "of two rows that are left, no third is the nearest"
    assert np.isfinite(distance[4:]).all()


def test_the_nearest_are_found_in_order():
    rng = np.random.default_rng(1)
    reference, obs = (rng.normal(size=(rows, 4)).astype(np.float32) for rows in (64, 500))
    order, squared = sorted_distances(obs, reference[:50])
    found = np.asarray(nearest(jnp.asarray(reference), jnp.int32(50), jnp.asarray(obs), 5)).T
    assert found.max() < 50  # the others are padding
    mine = ((obs[:, None] - reference[found]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(mine, squared[:, :5], rtol=2e-3, atol=1e-5)
    assert np.mean(found == order[:, :5]) > 0.99


# Exact means that of all distances in float64: the same row, the first of equally near ones, and the same distance.


def brute_force(rows: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    squared = ((reference[None].astype(np.float64) - rows[:, None]) ** 2).sum(axis=-1)
    return squared.argmin(axis=1), np.sqrt(squared.min(axis=1))


def clouds(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and references on which float32 alone goes wrong, each in its way. Neither fills its last block or tile."""
    rng = np.random.default_rng(3)
    reference, rows = (rng.normal(size=(count, 7)).astype(np.float32) for count in (600, 300))
    scale = np.array([1e-3, 1, 1, 1, 1e4, 1, 1], np.float32)
    match name:
        case "duplicates":
            reference[300:] = reference[299::-1]  # equally near rows, in another order and in other groups
            rows[::2] = reference[rng.integers(600, size=150)]
        case "near ties":  # in other groups, and equal in float32
            reference = reference.astype(np.float64)
            reference[300:] = reference[:300] + 1e-9 * rng.normal(size=(300, 7))
        case "nearer ties":  # and hardly different in float64
            reference, rows = reference.astype(np.float64), rows.astype(np.float64)
            reference[300:] = reference[:300] + 2e-15 * rng.normal(size=(300, 7))
        case "one reference for many":
            reference[:] = reference[5]
        case "large offsets":
            reference, rows = reference.astype(np.float64) + 1e6, rows.astype(np.float64) + 1e6
        case "scale differences":
            reference, rows = reference * scale, rows * scale
        case "an outlier":
            reference[77], rows[13] = 1e7, 3e7
        case "far from all":
            rows += 1e5
        case "beyond float32":
            rows[::7] = 1e30
            reference[4] = -3e25
        case "a constant column":  # in units of next to nothing, because it has no spread
            reference, rows = (
                np.append(each.astype(np.float64), [[640e6]] * len(each), 1) for each in (reference, rows)
            )
        case "a walk":  # as episodes are: thousands of states that hardly differ
            reference = np.cumsum(1e-3 * reference, axis=0) + 5
            rows = reference[rng.integers(600, size=300)] + 1e-6 * rows
    return rows, reference


CLOUDS = ("plain", "duplicates", "one reference for many", "large offsets", "scale differences", "an outlier")
CLOUDS = (*CLOUDS, "near ties", "nearer ties", "a constant column", "far from all", "beyond float32", "a walk")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 128)
    monkeypatch.setattr(neighbours, "MEASURED", 500)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", CLOUDS)
def test_one_neighbour_is_that_of_all_distances_in_float64(name: str):
    rows, reference = clouds(name)
    for found, wanted in zip(find_one(rows, reference), brute_force(rows, reference), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("count", [1, 3, 4])
def test_several_neighbours_are_those_of_all_distances_in_float64(name: str, count: int):
    rows, reference = (cloud.astype(np.float64) for cloud in clouds(name))
    order, squared = sorted_distances(rows, reference)
    index, distance = find_nearest(rows, reference, count, left_out=no_rows)
    np.testing.assert_array_equal(index, order[:, :count])
    np.testing.assert_array_equal(distance, np.sqrt(squared[:, :count]))


@pytest.mark.parametrize("count", [1, 3])
def test_several_neighbours_need_the_bound(count: int, monkeypatch: pytest.MonkeyPatch):
    """The check above can fail."""
    rows, reference = clouds("nearer ties")
    exact = sorted_distances(rows, reference)[0][:, :count]
    monkeypatch.setattr(neighbours, "EXACT_ROUNDING", 0.0)
    assert (find_nearest(rows, reference, count, left_out=no_rows)[0] != exact).any()


def in_float32(rows: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The rows that the products in float32 alone take for the nearest."""
    rows, reference = rows.astype(np.float32), reference.astype(np.float32)
    return ((reference**2).sum(axis=1)[None] - 2 * rows @ reference.T).argmin(axis=1)


def test_float32_alone_goes_wrong():
    """The check above can fail: these clouds need the bound."""
    for name in ("large offsets", "scale differences", "near ties", "a walk"):
        rows, reference = clouds(name)
        assert (in_float32(rows, reference) != brute_force(rows, reference)[0]).any(), name


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["an outlier", "near ties"])
def test_a_search_without_the_bound_shows(name: str, monkeypatch: pytest.MonkeyPatch):
    rows, reference = clouds(name)
    exact = brute_force(rows, reference)[0]
    monkeypatch.setattr(neighbours, "ROUNDING", 0.0)
    monkeypatch.setattr(neighbours, "possible_groups", inspect.unwrap(neighbours.possible_groups))  # traced anew
    assert (find_one(rows, reference)[0] != exact).any()


def test_few_groups_are_measured():
    """What makes it fast. Hardly more than one group of 16 is possible for rows in general position."""
    rows, reference = clouds("plain")
    compared = neighbours.make_reference(reference.astype(np.float64))
    columns = jnp.asarray(((rows - compared.centre) / compared.scale).T, jnp.float32)
    possible = neighbours.possible_groups(compared.tiles, compared.squares, compared.norms, columns)
    assert 1.0 <= np.asarray(possible).sum(axis=0).mean() < 1.1
