"""From the networks that train to the NumPy policy that acts and is saved."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from demosift.policy import KINDS, Layer, Policy
from demosift.types import EnvironmentSpec, InputError


def numpy_policy(
    network: Any,
    shift: Float[np.ndarray, "some obs"],
    scale: Float[np.ndarray, "some obs"],
    environment: EnvironmentSpec | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Policy:
    """The policy of stacked members. `network` has `layers`, a `kind` and a `mean_limit`, as `networks.Policy` does.

    `shift` and `scale` have a row per member, or fewer rows, which the members use in turn.
    """
    kind = getattr(network, "kind", None)
    if kind not in KINDS:
        raise InputError(f"{type(network).__name__}: a policy network's kind is {' or '.join(KINDS)}, not {kind!r}")
    layers = tuple(Layer(*map(np.asarray, layer)) for layer in jax.device_get(network.layers))
    times = len(layers[0].kernel) // len(shift)
    return Policy(
        kind=kind,
        layers=layers,
        shift=np.tile(shift, (times, 1)),
        scale=np.tile(scale, (times, 1)),
        mean_limit=network.mean_limit,
        environment=environment,
        metadata=metadata or {},
    )
