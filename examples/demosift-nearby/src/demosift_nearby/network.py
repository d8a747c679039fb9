"""A convolution over the observation's entries, then a hidden layer: for observations that are a row of readings."""

from typing import Any

import demosift as ds

CHANNELS, WIDTH = 4, 3


def init(key: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    import jax  # only to train: whoever acts or simulates never calls this function
    import jax.numpy as jnp

    draw, (obs, *_, hidden, outputs) = jax.nn.initializers.glorot_uniform(), sizes
    keys = jax.random.split(key, 3)
    flat = CHANNELS * max(obs - WIDTH + 1, 1)
    shapes = {"filter": (min(WIDTH, obs), CHANNELS), "hidden": (flat, hidden), "head": (hidden, outputs)}
    layers = zip(shapes.items(), keys, strict=True)
    return {name: {"kernel": draw(own, shape), "bias": jnp.zeros(shape[1])} for (name, shape), own in layers}


def apply(params: Any, x: Any) -> Any:
    xp = x.__array_namespace__()  # NumPy's functions or JAX's, as x is

    def affine(layer: Any, x: Any) -> Any:
        product = xp.matmul(x, layer["kernel"])
        return product + xp.broadcast_to(layer["bias"], product.shape)

    width = params["filter"]["kernel"].shape[0]
    places = x.shape[-1] - width + 1
    windows = xp.stack([x[..., place : place + width] for place in range(places)], axis=-2)
    found = affine(params["filter"], windows)
    found = xp.maximum(found, xp.zeros_like(found))
    hidden = affine(params["hidden"], xp.reshape(found, (*x.shape[:-1], -1)))
    return affine(params["head"], xp.maximum(hidden, xp.zeros_like(hidden)))


CONVOLUTION = ds.Network("convolution", init, apply)
