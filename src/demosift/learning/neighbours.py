"""The search for nearest neighbours: exact where a number depends on it, in float32 where a score does.

`find_nearest` is exact: the answer is that of all distances in float64. A product gives a bound for every distance, and
only rows that may be among the nearest are measured. With one neighbour to find it is fast as well, for a million rows
and ten thousand references: the product is a compiled one in float32, and its bound is that of a group of reference
rows, of which mostly one or two may hold the nearest.

`nearest` is a compiled program for several neighbours of every row of a large set. It is exhaustive too, but does not
see differences of about a thousandth. A library's search would be a few times slower: here one matrix product gives the
distances of a few reference rows from thousands of others, and minima and maxima alone keep each row's nearest so far
in order, which a processor does for many rows at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, Shaped

AT_A_TIME = 16  # reference rows
CHUNK = (
    1_000  # rows whose distances from every reference row are in memory together, where several neighbours are found
)
GROUP = 16  # reference rows that share a bound
TILE = 256  # reference rows in one product; it and a block's distances from them stay in the cache
BLOCK = 2_048  # rows that are searched for together
MEASURED = 20_000  # groups, or single rows, that are measured together
ROUNDING, EXACT_ROUNDING = 2.0**-24, 2.0**-53  # of float32 and of float64


def find_nearest(
    states: Float[np.ndarray, "rows obs"],
    reference: Float[np.ndarray, "references obs"],
    count: int,
    left_out: Callable[[slice], Bool[np.ndarray, "part references"]] | None = None,
) -> tuple[Int[np.ndarray, "rows neighbours"], Float[np.ndarray, "rows neighbours"]]:
    """The nearest reference rows of each state, the nearest first, and their distances; the first of equally near ones.

    `left_out` marks the reference rows that do not count for a slice of the states; where too few are left, the
    distance is infinite.
    """
    count = min(count, len(reference))
    if count == 1 and left_out is None:
        index, distance = find_one(states, reference)
        return index[:, None], distance[:, None]
    states, reference = states.astype(np.float64), reference.astype(np.float64)
    index, distance = np.empty((len(states), count), np.int64), np.empty((len(states), count))
    centre = reference.mean(axis=0)  # around it, an offset that all rows share costs no digits
    shifted = reference - centre
    squares = (shifted**2).sum(axis=1)
    norms = np.sqrt(squares)
    for start in range(0, len(states), CHUNK):
        part = slice(start, min(start + CHUNK, len(states)))
        own = states[part] - centre
        square = squares - 2 * own @ shifted.T  # and |x|^2, which is the same for every reference row
        if left_out is not None:
            square[left_out(part)] = np.inf
        # The bound of `possible_groups`, and some more, so that it covers the rounding of the distance itself.
        error = EXACT_ROUNDING * (2 * own.shape[1] + 40) * (norms + np.sqrt((own**2).sum(axis=1))[:, None]) ** 2
        index[part], squared = measure_rows(states[part], reference, square, error, count)
        distance[part] = np.sqrt(squared)
    return index, distance


def measure_rows(
    rows: Float64[np.ndarray, "rows columns"],
    reference: Float64[np.ndarray, "references columns"],
    square: Float64[np.ndarray, "rows references"],
    error: Float64[np.ndarray, "rows references"],
    count: int,
) -> tuple[Int[np.ndarray, "rows neighbours"], Float64[np.ndarray, "rows neighbours"]]:
    """The nearest reference rows and their squared distances, which `square` tells up to a number for each row.

    `square` is infinite where a reference row does not count, and wrong by `error` at most where it does: whatever that
    leaves possible is measured.
    """
    likely = np.argpartition(square, count - 1, axis=1)[:, :count]
    limit = np.take_along_axis(square + error, likely, axis=1).max(axis=1, keepdims=True)
    places, columns = np.nonzero((square - error <= limit) & np.isfinite(square))
    measured = np.full_like(square, np.inf)
    for start in range(0, len(places), MEASURED):
        part = places[start : start + MEASURED], columns[start : start + MEASURED]
        measured[part] = ((reference[part[1]] - rows[part[0]]) ** 2).sum(axis=-1)
    index, squared = np.empty((len(rows), count), np.int64), np.empty((len(rows), count))
    for place in range(count):
        index[:, place] = measured.argmin(axis=1)
        found = np.arange(len(rows)), index[:, place]
        squared[:, place] = measured[found]
        measured[found] = np.inf
    return index, squared


class Reference(NamedTuple):
    """Reference rows as the search needs them: around their centre, in tiles, with what bounds the rounding."""

    tiles: Float[Array, "tiles tile columns"]
    squares: Float[Array, "tiles tile"]  # infinite where a tile is not full
    norms: Float[Array, "tiles groups"]  # the longest row of each group
    exact: Float64[np.ndarray, "groups group columns"]  # as given; infinite where a group is not full
    centre: Float64[np.ndarray, "columns"]
    scale: float


def make_reference(rows: Float64[np.ndarray, "references columns"]) -> Reference:
    """Around the centre, an offset that all rows share costs no digits; in units of the longest, squares are finite."""
    centre = rows.mean(axis=0)
    missing = -len(rows) % TILE
    scale = float(np.sqrt(((rows - centre) ** 2).sum(axis=1).max())) or 1.0
    shifted = np.pad((rows - centre) / scale, ((0, missing), (0, 0))).astype(np.float32)
    squares = (shifted.astype(np.float64) ** 2).sum(axis=1)
    norms = np.sqrt(squares).reshape(-1, TILE // GROUP, GROUP).max(axis=-1)
    squares[len(rows) :] = np.inf
    exact = np.pad(rows, ((0, missing), (0, 0)), constant_values=np.inf).reshape(-1, GROUP, rows.shape[1])
    tiles = jnp.asarray(shifted.reshape(-1, TILE, rows.shape[1]))
    as_tiles = squares.reshape(-1, TILE).astype(np.float32)
    return Reference(tiles, jnp.asarray(as_tiles), jnp.asarray(norms, jnp.float32), exact, centre, scale)


@jax.jit
def possible_groups(
    tiles: Array, squares: Array, norms: Array, columns: Float[Array, "columns block"]
) -> Bool[Array, "groups block"]:
    """The groups of reference rows that may hold a row's nearest, whatever float32 has rounded away.

    With r and x the rows around the centre, |x - r|^2 is |r|^2 - 2 r.x and a number that is the same for every r.
    Rounding r, x, each of the d terms of the product, their sum and |r|^2 costs at most (2d + 8)|r||x| + 4|r|^2 units;
    the bound has some more. Of a row that is too long for float32 nothing is known, and every group is possible.
    """
    own = jnp.sqrt(jnp.sum(columns**2, axis=0))
    dimension = len(columns)

    def step(best: Array, tile: tuple[Array, ...]) -> tuple[Array, Array]:
        rows, row_squares, row_norms = tile
        product = jnp.matmul(rows, columns, precision=jax.lax.Precision.HIGHEST)
        least = jnp.min((row_squares[:, None] - 2 * product).reshape(TILE // GROUP, GROUP, -1), axis=1)
        norm = row_norms[:, None]
        error = ROUNDING * ((2 * dimension + 40) * norm * own[None] + 16 * norm**2) + dimension * 1e-36
        return jnp.minimum(best, jnp.min(least + error, axis=0)), least - error

    best, lowest = jax.lax.scan(step, jnp.full(columns.shape[1], jnp.inf), (tiles, squares, norms))
    return (lowest.reshape(-1, columns.shape[1]) <= best[None]) | ~jnp.isfinite(own)[None]


def measure_groups(
    rows: Float64[np.ndarray, "rows columns"],
    exact: Float64[np.ndarray, "groups group columns"],
    possible: Bool[np.ndarray, "groups rows"],
) -> tuple[Int[np.ndarray, "rows"], Float64[np.ndarray, "rows"]]:
    """The nearest row of the possible groups and its squared distance; the first of equally near ones."""
    groups, places = np.nonzero(possible)
    squared, index = np.empty(len(groups)), np.empty(len(groups), np.int64)
    for start in range(0, len(groups), MEASURED):
        part = slice(start, start + MEASURED)
        own = ((exact[groups[part]] - rows[places[part], None]) ** 2).sum(axis=-1)
        index[part] = own.argmin(axis=1)
        squared[part] = np.take_along_axis(own, index[part, None], axis=1)[:, 0]
    index += groups * exact.shape[1]
    order = np.lexsort((index, squared, places))
    first = order[np.searchsorted(places[order], np.arange(len(rows)))]
    return index[first], squared[first]


def find_one(
    rows: Shaped[np.ndarray, "rows columns"], reference: Shaped[np.ndarray, "references columns"]
) -> tuple[Int[np.ndarray, "rows"], Float64[np.ndarray, "rows"]]:
    """The nearest reference row of each row, and its distance. The next block is bounded while one is measured."""
    compared = make_reference(reference.astype(np.float64))
    index, distance = np.empty(len(rows), np.int64), np.empty(len(rows))

    def bound(start: int) -> tuple[Float64[np.ndarray, "block columns"], Bool[Array, "groups padded"]]:
        block = rows[start : start + BLOCK].astype(np.float64)
        with np.errstate(over="ignore"):
            columns = ((block - compared.centre) / compared.scale).astype(np.float32).T
        columns = np.pad(columns, ((0, 0), (0, BLOCK - len(block))))  # one program for every block
        return block, possible_groups(compared.tiles, compared.squares, compared.norms, jnp.asarray(columns))

    following = bound(0)
    for start in range(0, len(rows), BLOCK):
        block, possible = following
        following = bound(start + BLOCK)
        part = slice(start, start + len(block))
        index[part], squared = measure_groups(block, compared.exact, np.asarray(possible)[:, : len(block)])
        distance[part] = np.sqrt(squared)
    return index, distance


def nearest(
    reference: Float[Array, "references obs"], size: Int[Array, ""], obs: Float[Array, "rows obs"], neighbours: int
) -> Int[Array, "neighbours rows"]:
    """Which of the first `size` reference rows are nearest, in order.

    The number of a row takes the place of the last bits of its squared distance. So of two rows whose distances differ
    by less than about a thousandth, either may come first.
    """
    bits = len(reference).bit_length()
    number = jnp.arange(len(reference), dtype=jnp.int32)
    squares = jnp.where(number < size, jnp.sum(reference**2, axis=1), jnp.inf)
    own_squares, columns = jnp.sum(obs**2, axis=1), obs.T

    def step(found: tuple[Array, ...], part: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        rows, row_squares, row_number = part
        squared = jnp.maximum(row_squares[:, None] + own_squares[None] - 2 * (rows @ columns), 0.0)
        # Floats that are not negative have the same order as their bits.
        key = (jax.lax.bitcast_convert_type(squared, jnp.int32) & jnp.int32(-(1 << bits))) | row_number[:, None]
        kept = list(found)
        for new in key:
            for place, old in enumerate(kept):
                kept[place], new = jnp.minimum(old, new), jnp.maximum(old, new)
        return tuple(kept), None

    parts = (array.reshape(-1, AT_A_TIME, *array.shape[1:]) for array in (reference, squares, number))
    none = jnp.full(len(obs), np.iinfo(np.int32).max, jnp.int32)
    found, _ = jax.lax.scan(step, (none,) * neighbours, tuple(parts))
    return jnp.stack(found) & jnp.int32((1 << bits) - 1)
