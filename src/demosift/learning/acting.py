"""From the networks that train to the NumPy policy that acts and is saved."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from demosift.policy import KINDS, Policy
from demosift.types import EnvironmentSpec, InputError


def numpy_policy(
    network: Any,
    shift: Float[np.ndarray, "some obs"],
    scale: Float[np.ndarray, "some obs"],
    environment: EnvironmentSpec | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Policy:
    """The policy of stacked members. `network` has what `networks.Policy` has: `layers`, a `kind`, ...

    `shift` and `scale` have a row per member, or fewer rows, which the members use in turn.
    """
    kind = getattr(network, "kind", None)
    if kind not in KINDS:
        raise InputError(f"{type(network).__name__}: a policy network's kind is {' or '.join(KINDS)}, not {kind!r}")
    # The layers' tuples are those of training; the policy has its own.
    layers = jax.tree.map(np.asarray, jax.device_get(network.layers))
    times = len(jax.tree.leaves(layers)[0]) // len(shift)
    return Policy(
        kind=kind,
        layers=layers,
        shift=np.tile(shift, (times, 1)),
        scale=np.tile(scale, (times, 1)),
        mean_limit=network.mean_limit,
        environment=environment,
        metadata=metadata or {},
        network=network.body,
    )
