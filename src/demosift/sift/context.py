"""What surrounds a row says much about it: whoever acted well a moment ago mostly acts well now.

A single row tells little; a stretch of a hundred, or a whole episode, tells almost all. So after every row has been
weighed by itself, its log-weight is put beside the means over the rows around it and over its episode, and the same
few coefficients as in `calibration` turn the three into the weight that is kept. They too are fitted on weights from
models that left each row out. Where the surroundings say nothing about the expert's rows, they get no say.

One expert trajectory has but one mean over its episode, and ten over stretches of a hundred rows. A coefficient fitted
to that few must not be believed too far, hence the ridge, in units of log-weights: where rows hardly differ, neither
may their surroundings. Nor may the ceiling rise far: how much of the union is the expert's was estimated row by row,
and the means of two or three short episodes would set those apart from all others.
"""

import numpy as np
from jaxtyping import Float, Int

from demosift.sift.calibration import Coefficients, fit_coefficients

STRETCH = 100  # rows around a row, as many before it as after it
RIDGE = 3e-3
HIGHER = 3.0  # times the heaviest row by itself: the most that a row may weigh

Rows = Float[np.ndarray, "rows"]
Ends = Int[np.ndarray, "episodes"]


def surroundings(log_weight: Rows, ends: Ends) -> Float[np.ndarray, "3 rows"]:
    """Each row's log-weight, its mean over the stretch around it, and over its episode."""
    lengths = np.diff(ends, prepend=0)
    first, last = np.repeat(ends - lengths, lengths), np.repeat(ends, lengths)
    row = np.arange(len(log_weight))
    # Near the ends of an episode the stretch is moved inside, so that it keeps its length.
    start = np.clip(row - STRETCH // 2, first, np.maximum(last - STRETCH, first))
    stop = np.minimum(start + STRETCH, last)
    sums = np.concatenate([[0.0], np.cumsum(log_weight)])
    return np.stack(
        [log_weight, (sums[stop] - sums[start]) / (stop - start), (sums[last] - sums[first]) / (last - first)]
    )


def weigh_in_context(weight: Rows, ends: Ends, num_expert: int) -> tuple[Rows, Coefficients]:
    """The weights with their surroundings taken into account; unchanged where these say nothing."""
    features = surroundings(np.log(weight), ends)
    most = float(np.log(HIGHER * max(weight.max(), 1.0)))
    coefficients = fit_coefficients(features, num_expert, ridge=RIDGE, standardise=False, log_ceiling=most)
    return (weight if coefficients.useless else np.exp(coefficients.log_weight(features))), coefficients
