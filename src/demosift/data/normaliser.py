"""The state normaliser: fitted once to data, stored with the policy, applied to every state the policy sees."""

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from demosift.types import Demonstrations

NormaliseOver = Literal["supplementary", "union"]


class Normaliser(NamedTuple):
    """`(obs + shift) * scale`, per dimension. NumPy on the host or JAX on the device; a pytree of two leaves."""

    shift: Float[Any, "obs"]
    scale: Float[Any, "obs"]

    @classmethod
    def fit(cls, obs: Float[np.ndarray, "rows obs"]) -> "Normaliser":
        """Zero mean, unit (population) deviation; the 1e-3 keeps a dimension that hardly varies from blowing up.

        Reduced in float64 and then rounded to float32: the reference's float32 sums over a million rows are off by more
        than the rounding of the result.
        """
        shift = -np.mean(obs, axis=0, dtype=np.float64)
        scale = 1 / (np.std(obs, axis=0, dtype=np.float64) + 1e-3)
        return cls(shift.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def identity(cls, obs_dim: int) -> "Normaliser":
        return cls(np.zeros(obs_dim, np.float32), np.ones(obs_dim, np.float32))

    def apply(self, obs: Float[Any, "*rows obs"]) -> Float[Any, "*rows obs"]:
        # Equal ranks, because JAX is told to refuse implicit rank promotion.
        shape = (1,) * (obs.ndim - 1) + self.shift.shape
        return (obs + self.shift.reshape(shape)) * self.scale.reshape(shape)


def fit_normaliser(demonstrations: Demonstrations, over: NormaliseOver = "supplementary") -> Normaliser:
    """Statistics over the supplementary set (the reference's choice) or the union; over a lone expert set in either."""
    if over == "union" or demonstrations.supplementary is None:
        return Normaliser.fit(demonstrations.union.obs)
    return Normaliser.fit(demonstrations.supplementary.transitions.obs)
