"""The products of a layer, in the form that takes a CPU the least time.

XLA packs a transposed left side slowly: where x or delta has few columns, x^T delta, the gradient by a kernel, takes
up to ten times as long as x @ kernel. So what is transposed is written out first. Without the barriers XLA would fuse
it with the product again. For square matrices this gains nothing, unless they are stacked.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jaxtyping import Array, Float

NARROW = 64  # columns


def kernel_gradient(
    x: Float[Array, "*stack rows inputs"], delta: Float[Array, "*stack rows outputs"]
) -> Float[Array, "*stack inputs outputs"]:
    """x^T delta."""
    times = partial(jnp.matmul, preferred_element_type=jnp.promote_types(delta.dtype, jnp.float32))
    if jax.default_backend() == "cpu":
        if delta.shape[-1] < NARROW:
            return optimization_barrier(times(delta.mT, x)).mT
        if x.shape[-1] < NARROW or x.ndim > 2:
            return times(optimization_barrier(x.mT), delta)
    return times(x.mT, delta)


@jax.custom_vjp
def product(x: Float[Array, "*rows inputs"], kernel: Float[Array, "inputs outputs"]) -> Float[Array, "*rows outputs"]:
    """x @ kernel."""
    return x @ kernel


def _backward(residuals: tuple[Array, Array], delta: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    rows, deltas = (array.reshape(-1, array.shape[-1]) for array in (x, delta))
    return delta @ kernel.T, kernel_gradient(rows, deltas)


product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _backward)
