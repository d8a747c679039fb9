"""The perceptron's passes as four GPU kernels of our own, for two equally wide hidden layers.

Between a product and what follows it (bias, ReLU, mask, sums over rows), XLA writes every activation and reads it back.
Here a tile of rows goes through both layers in one kernel, so that an activation is written once and read where it is
needed next:

    forward     x -> h1, h2, z                        both layers and the outputs
    backward    dz -> v2, v1, sums over rows          v_l: derivative by the pre-activation of layer l
    slope       h1, h2 -> v1, m2                      for one output; m2 says where h2 is positive
    tangent     gbar -> zbar h1 + u1, sums over rows  what the second derivative of a penalty needs (`value_and_slope`)

Weight gradients are plain products of these and stay with XLA. Everything except sums and outputs is bf16. The notation
is that of `networks.value_and_slope`. On a CPU the kernels can be interpreted, which is how they are tested.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

NARROW = 16  # the matrix units' smallest side, to which inputs and outputs are padded

LOW = jnp.bfloat16


class Tiling(NamedTuple):
    """Rows in a program, columns in a step of its loop over a hidden layer, and Triton's own options."""

    rows: int
    columns: int
    warps: int
    stages: int

    def over(self, width: int, body: Callable[[Any, Any], Any], start: Any) -> Any:
        def step(i: Array | int, carry: Any) -> Any:
            return body(pl.ds(i * self.columns, self.columns), carry)

        return jax.lax.fori_loop(0, width // self.columns, step, start)


TILING = Tiling(rows=64, columns=64, warps=4, stages=2)
MOST_WIDTH, MOST_INPUTS, MOST_OUTPUTS = 256, 64, 16


def takes(network: Any, rows: int) -> bool:
    """Whether the kernels can take this many rows through this network. The bounds are the largest sizes tried."""
    if len(network) != 3 or any(layer.bias is None for layer in network[:-1]):
        return False
    (inputs, width), (_, second), (_, outputs) = (layer.kernel.shape for layer in network)
    fits = padded(inputs) <= MOST_INPUTS and padded(outputs) <= MOST_OUTPUTS and TILING.columns <= width <= MOST_WIDTH
    return fits and width == second == padded(width) and rows > 0 and rows % TILING.rows == 0


def padded(size: int) -> int:
    """The next power of two that the matrix units accept."""
    return max(NARROW, 1 << (size - 1).bit_length())


def to_low(array: Float[Array, "..."], rows: int, columns: int) -> Float[Array, "rows columns"]:
    """In bf16, padded with zeros."""
    return jnp.pad(array.astype(LOW), ((0, rows - array.shape[0]), (0, columns - array.shape[1])))


SUMS = None  # the type of an output with a row of sums for each tile


def call(
    kernel: Any, tiled: Sequence[Array], whole: Sequence[Array], outputs: Sequence[tuple[int, Any]], interpret: bool
) -> Sequence[Array]:
    """Run a kernel over tiles of rows of some inputs and the whole of others. An output has columns and a type."""
    rows = tiled[0].shape[0]
    tiles = rows // TILING.rows

    def tile(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec((TILING.rows, columns), lambda i: (i, 0))

    def all_of(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i: (0,) * array.ndim)

    def output(columns: int, dtype: Any) -> tuple[pl.BlockSpec, jax.ShapeDtypeStruct]:
        if dtype is SUMS:
            own_row = pl.BlockSpec((None, columns), lambda i: (i, 0))
            return own_row, jax.ShapeDtypeStruct((tiles, columns), jnp.float32)
        return tile(columns), jax.ShapeDtypeStruct((rows, columns), dtype)

    out_specs, out_shape = zip(*(output(*each) for each in outputs), strict=True)
    return pl.pallas_call(
        kernel,
        grid=(tiles,),
        in_specs=[*(tile(array.shape[1]) for array in tiled), *map(all_of, whole)],
        out_specs=out_specs,
        out_shape=out_shape,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=TILING.warps, num_stages=TILING.stages),
    )(*tiled, *whole)


def forward_kernel(x_ref, w1_ref, b1_ref, w2_ref, b2_ref, w3_ref, h1_ref, h2_ref, z_ref):
    x = x_ref[...]
    width = w2_ref.shape[0]

    def layer(columns, total):
        h1 = jnp.maximum(triton.dot(x, w1_ref[:, columns]) + b1_ref[columns][None], 0.0).astype(LOW)
        h1_ref[:, columns] = h1
        return total + triton.dot(h1, w2_ref[columns, :])

    total = TILING.over(width, layer, jnp.zeros((TILING.rows, width), jnp.float32))
    h2 = jnp.maximum(total + b2_ref[...][None], 0.0).astype(LOW)
    h2_ref[...] = h2
    z_ref[...] = triton.dot(h2, w3_ref[...])


def backward_kernel(dz_ref, h1_ref, h2_ref, w2_ref, w3_ref, v1_ref, v2_ref, sums1_ref, sums2_ref):
    v2 = jnp.where(h2_ref[...] > 0, triton.dot(dz_ref[...], w3_ref[...], trans_b=True), 0.0)
    sums2_ref[...] = jnp.sum(v2, axis=0)
    v2 = v2.astype(LOW)
    v2_ref[...] = v2

    def layer(columns, carry):
        v1 = jnp.where(h1_ref[:, columns] > 0, triton.dot(v2, w2_ref[columns, :], trans_b=True), 0.0)
        sums1_ref[columns] = jnp.sum(v1, axis=0)
        v1_ref[:, columns] = v1.astype(LOW)
        return carry

    TILING.over(w2_ref.shape[0], layer, 0)


def slope_kernel(h1_ref, h2_ref, w2_ref, w3_ref, v1_ref, m2_ref):
    positive = h2_ref[...] > 0
    m2_ref[...] = positive.astype(LOW)
    v2 = jnp.where(positive, w3_ref[...], 0.0).astype(LOW)

    def layer(columns, carry):
        v1 = jnp.where(h1_ref[:, columns] > 0, triton.dot(v2, w2_ref[columns, :], trans_b=True), 0.0)
        v1_ref[:, columns] = v1.astype(LOW)
        return carry

    TILING.over(w2_ref.shape[0], layer, 0)


def tangent_kernel(g_ref, zbar_ref, h1_ref, v1_ref, m2_ref, w1_ref, a_ref, sums1_ref, sums2_ref):
    g, zbar = g_ref[...], zbar_ref[...]

    def layer(columns, carry):
        h1 = h1_ref[:, columns]
        u1 = jnp.where(h1 > 0, triton.dot(g, w1_ref[:, columns]), 0.0)
        a_ref[:, columns] = (zbar * h1.astype(jnp.float32) + u1).astype(LOW)
        sums1_ref[columns] = jnp.sum(zbar * v1_ref[:, columns].astype(jnp.float32), axis=0)
        sums2_ref[columns] = jnp.sum(zbar * m2_ref[:, columns].astype(jnp.float32), axis=0)
        return carry

    TILING.over(w1_ref.shape[1], layer, 0)


class Kept(NamedTuple):
    """What a forward pass keeps for the others, in bf16: padded inputs and kernels, and activations."""

    x: Array
    w1: Array
    w2: Array
    w3: Array
    h1: Array
    h2: Array


def run_forward(network: Any, x: Array, interpret: bool) -> tuple[Array, Kept]:
    first, second, last = network
    rows, width, outputs = x.shape[0], *last.kernel.shape
    x = to_low(x, rows, padded(x.shape[1]))
    w1, w2 = to_low(first.kernel, x.shape[1], width), to_low(second.kernel, width, width)
    w3 = to_low(last.kernel, width, padded(outputs))
    whole = (w1, first.bias, w2, second.bias, w3)
    h1, h2, z = call(forward_kernel, (x,), whole, [(width, LOW)] * 2 + [(w3.shape[1], jnp.float32)], interpret)
    z = z[:, :outputs]
    return z if last.bias is None else z + last.bias[None], Kept(x, w1, w2, w3, h1, h2)


def run_backward(dz: Float[Array, "rows padded"], kept: Kept, interpret: bool) -> tuple[Array, ...]:
    """v1, v2 and the sums of each over the rows."""
    width = kept.h1.shape[1]
    outputs = [(width, LOW)] * 2 + [(width, SUMS)] * 2
    v1, v2, *sums = call(backward_kernel, (dz, kept.h1, kept.h2), (kept.w2, kept.w3), outputs, interpret)
    return v1, v2, *(jnp.sum(each, axis=0) for each in sums)


def product(a: Array, b: Array) -> Float[Array, "..."]:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def apply(network: Any, x: Float[Array, "rows inputs"], interpret: bool = False) -> Float[Array, "rows outputs"]:
    """As `networks.apply`."""
    return _apply_forward(network, x, interpret)[0]


def _apply_forward(network: Any, x: Array, interpret: bool):
    z, kept = run_forward(network, x, interpret)
    return z, (network, kept)


def _apply_backward(interpret: bool, residuals: Any, dz: Array):
    network, kept = residuals
    first, second, last = network
    dz_low = to_low(dz, len(dz), kept.w3.shape[1])
    v1, v2, sums1, sums2 = run_backward(dz_low, kept, interpret)
    inputs, outputs = first.kernel.shape[0], last.kernel.shape[1]
    last_kernel = product(kept.h2.T, dz_low)[:, :outputs]
    gradient = (
        first._replace(kernel=product(kept.x.T, v1)[:inputs], bias=sums1),
        second._replace(kernel=product(kept.h1.T, v2), bias=sums2),
        last._replace(kernel=last_kernel, bias=None if last.bias is None else jnp.sum(dz, axis=0)),
    )
    return gradient, product(v1, kept.w1.T)[:, :inputs]


apply.defvjp(_apply_forward, _apply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def value_and_slope(network: Any, x: Float[Array, "rows inputs"], interpret: bool = False) -> tuple[Array, Array]:
    """As `networks.value_and_slope`."""
    return _slope_forward(network, x, interpret)[0]


def _slope_forward(network: Any, x: Array, interpret: bool):
    z, kept = run_forward(network, x, interpret)
    output, width = network[-1].kernel.T, kept.h1.shape[1]
    v1, m2 = call(slope_kernel, (kept.h1, kept.h2), (kept.w2, output), [(width, LOW)] * 2, interpret)
    slope = product(v1, kept.w1.T)[:, : x.shape[1]]
    return (z[:, 0], slope), (network, kept, v1, m2, slope)


def _slope_backward(interpret: bool, residuals: Any, cotangents: tuple[Array, Array]):
    network, kept, v1, m2, slope = residuals
    first, second, last = network
    output, width = last.kernel[:, 0], kept.h1.shape[1]
    zbar, gbar = cotangents[0][:, None], to_low(cotangents[1], *kept.x.shape)
    outputs = [(width, LOW)] + [(width, SUMS)] * 2
    a, *sums = call(tangent_kernel, (gbar, zbar, kept.h1, v1, m2), (kept.w1,), outputs, interpret)
    sums1, sums2 = (jnp.sum(each, axis=0) for each in sums)
    a0 = (zbar * kept.x.astype(jnp.float32) + gbar.astype(jnp.float32)).astype(LOW)
    q = product(a.T, m2)
    gradient = (
        first._replace(kernel=product(a0.T, v1)[: first.kernel.shape[0]], bias=sums1),
        second._replace(kernel=q * output[None], bias=sums2 * output),
        last._replace(
            kernel=(jnp.sum(second.kernel * q, axis=0) + second.bias * sums2)[:, None],
            bias=None if last.bias is None else jnp.sum(zbar, axis=0),
        ),
    )
    return gradient, zbar * slope


value_and_slope.defvjp(_slope_forward, _slope_backward)
