"""A number for every row of data that is too large for the device: compiled once, row by row the same."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Shaped

APPLY_ROWS = 4_096  # rows that a compiled function is given at a time


def in_pieces(function: Callable[..., Array], *columns: Shaped[np.ndarray, "rows _"]) -> Float[np.ndarray, "rows"]:
    """A number for every row, by a compiled function that gets pieces of one size, so that it is compiled once."""
    rows = len(columns[0])
    out = np.empty(rows)
    for start in range(0, rows, APPLY_ROWS):
        piece = slice(start, min(start + APPLY_ROWS, rows))
        padding = ((0, start + APPLY_ROWS - piece.stop), (0, 0))
        given = (np.pad(array[piece], padding) if padding[0][1] else array[piece] for array in columns)
        out[piece] = np.asarray(function(*given))[: piece.stop - start]
    return out
