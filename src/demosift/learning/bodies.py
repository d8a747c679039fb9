"""Bodies of policies other than the perceptron. JAX is imported to start training, not to act: processes that simulate
use this module too.
"""

from itertools import pairwise
from typing import Any

from demosift.policy import Network, Params

EPSILON = 1e-5  # under the root of a layer's variance


def init_layer_norm(key: Any, sizes: tuple[int, ...]) -> Params:
    import jax
    import jax.numpy as jnp

    draw = jax.nn.initializers.glorot_uniform()
    params: dict[str, Any] = {}
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        kernel = draw(jax.random.fold_in(key, index), (inputs, outputs))
        params[f"layer_{index}"] = {"kernel": kernel, "bias": jnp.zeros(outputs)}
        if index < len(sizes) - 2:
            params[f"layer_{index}"] |= {"gain": jnp.ones(outputs), "shift": jnp.zeros(outputs)}
    return params


def apply_layer_norm(params: Params, x: Any) -> Any:
    """Layers whose outputs are brought to mean 0 and variance 1, row by row, before ReLU."""
    xp = x.__array_namespace__()
    for index in range(len(params)):
        layer = params[f"layer_{index}"]
        x = xp.matmul(x, layer["kernel"])
        x = x + xp.broadcast_to(layer["bias"], x.shape)
        if "gain" in layer:
            centred = x - xp.mean(x, axis=-1, keepdims=True)
            x = centred / xp.sqrt(xp.mean(centred**2, axis=-1, keepdims=True) + EPSILON)
            x = x * xp.broadcast_to(layer["gain"], x.shape) + xp.broadcast_to(layer["shift"], x.shape)
            x = xp.maximum(x, xp.zeros_like(x))
    return x


LAYER_NORM = Network("layer-norm", init_layer_norm, apply_layer_norm)
