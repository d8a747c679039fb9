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

from demosift.data.folds import AT_A_TIME
from demosift.sift.calibration import Coefficients, fit_sets, thinning

STRETCH = 100  # rows around a row, as many before it as after it
RIDGE = 3e-3
HIGHER = 3.0  # times the heaviest row by itself: the most that a row may weigh

Rows = Float[np.ndarray, "rows"]
Ends = Int[np.ndarray, "episodes"]


class Surroundings:
    """What surrounds rows; it is worked out for the rows that are asked for, since all at once may be too many."""

    def __init__(self, log_weight: Rows, ends: Ends) -> None:
        self.log_weight, self.ends = log_weight, ends
        self.starts = np.concatenate([[0], ends[:-1]])
        self.sums = np.zeros(len(log_weight) + 1)
        np.cumsum(log_weight, out=self.sums[1:])

    def of(self, row: Int[np.ndarray, "rows"]) -> Float[np.ndarray, "3 rows"]:
        """Each row's log-weight, its mean over the stretch around it, and over its episode."""
        episode, sums = np.searchsorted(self.ends, row, side="right"), self.sums
        first, last = self.starts[episode], self.ends[episode]
        # Near the ends of an episode the stretch is moved inside, so that it keeps its length.
        start = np.clip(row - STRETCH // 2, first, np.maximum(last - STRETCH, first))
        stop = np.minimum(start + STRETCH, last)
        means = (sums[stop] - sums[start]) / (stop - start), (sums[last] - sums[first]) / (last - first)
        return np.stack([self.log_weight[row], *means])


def weigh_in_context(weight: Rows, ends: Ends, num_expert: int) -> tuple[Rows, Coefficients]:
    """The weights with their surroundings taken into account; unchanged where these say nothing."""
    around, num_rows = Surroundings(np.log(weight), ends), len(weight)
    most = float(np.log(HIGHER * max(weight.max(), 1.0)))
    expert, union = around.of(np.arange(num_expert)), around.of(np.arange(0, num_rows, thinning(num_rows)))
    coefficients = fit_sets(expert, union, RIDGE, standardise=False, log_ceiling=most)
    if coefficients.useless:
        return weight, coefficients
    found = np.empty(num_rows)
    for start in range(0, num_rows, AT_A_TIME):
        rows = np.arange(start, min(start + AT_A_TIME, num_rows))
        found[rows] = np.exp(coefficients.log_weight(around.of(rows)))
    return found, coefficients
