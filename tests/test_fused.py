"""The GPU's kernels, interpreted: the same numbers as the plain networks, and bf16 only where it is meant."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_dataset

from demosift import fused, members, networks
from demosift.algorithms import BC, WBCU
from demosift.data.normaliser import Normaliser
from demosift.types import Demonstrations

ROWS = 128
NETWORKS = [(14, 1, True), (14, 1, False), (35, 16, True), (3, 6, True)]


def make(inputs: int, outputs: int, last_bias: bool, width: int = 64) -> tuple[networks.Perceptron, jax.Array]:
    sizes = (inputs, width, width, outputs)
    network = networks.init_perceptron(jax.random.key(0), sizes, [networks.fan_in_uniform] * 3, last_bias=last_bias)
    return network, jax.random.normal(jax.random.key(1), (ROWS, inputs))


def gradients(function: Any, network: networks.Perceptron, x: jax.Array) -> Any:
    """Of a function of all it returns, by parameters and inputs, beside its value."""

    def loss(network: networks.Perceptron, x: jax.Array) -> jax.Array:
        results = jax.tree.leaves(function(network, x))
        return sum(jnp.sum(jnp.sin(result) * (1 + index)) for index, result in enumerate(results))  # type: ignore

    return function(network, x), jax.grad(loss, argnums=(0, 1))(network, x)


def interpreted(function: Any) -> Any:
    return lambda network, x: function(network, x, True)


def pairs(network: networks.Perceptron) -> list[tuple[Any, Any]]:
    found = [(networks.apply, interpreted(fused.apply))]
    if network[-1].kernel.shape[1] == 1:
        found.append((networks.value_and_slope, interpreted(fused.value_and_slope)))
    return found


@pytest.mark.parametrize(("inputs", "outputs", "last_bias"), NETWORKS)
def test_in_float32_the_kernels_are_the_plain_networks(
    inputs: int, outputs: int, last_bias: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fused, "Low", jnp.float32)
    network, x = make(inputs, outputs, last_bias)
    for plain, kernels in pairs(network):
        wanted, found = gradients(plain, network, x), gradients(kernels, network, x)
        assert jax.tree.structure(wanted) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("inputs", "outputs", "last_bias"), NETWORKS)
def test_in_bf16_they_are_near_and_give_float32(inputs: int, outputs: int, last_bias: bool):
    network, x = make(inputs, outputs, last_bias)
    with jax.default_matmul_precision("bfloat16"):
        without_kernels = [gradients(plain, network, x) for plain, _ in pairs(network)]
    for (plain, kernels), rounded in zip(pairs(network), without_kernels, strict=True):
        wanted = gradients(plain, network, x)
        for found in (gradients(kernels, network, x), rounded):
            for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
                assert b.dtype == jnp.float32
                assert jnp.vdot(a, b) > 0.99 * jnp.linalg.norm(a) * jnp.linalg.norm(b)
                assert jnp.any(a != b) or a.size <= outputs  # a sum over rows may come out the same


@pytest.mark.parametrize(
    ("rows", "widths", "taken"),
    [
        (256, (256, 256), True),
        (128, (64, 64), True),
        (200, (256, 256), False),
        (256, (256,), False),
        (256, (), False),
        (256, (256, 128), False),
        (256, (96, 96), False),
        (256, (32, 32), False),
    ],
)
def test_what_the_kernels_take(rows: int, widths: tuple[int, ...], taken: bool):
    assert fused.tileable(rows, widths) == taken


def demonstrations() -> Demonstrations:
    return Demonstrations(random_dataset(0, 40), random_dataset(1, 60))


def stacked(algorithm: Any) -> tuple[members.Members, Any]:
    data = demonstrations()
    together = members.stack_members([algorithm], [0, 1], [data], [Normaliser.identity(data.expert.obs_dim)])
    return together, members.init_members(together)


def test_a_gpu_would_run_them(monkeypatch: pytest.MonkeyPatch):
    """The whole training program, brought into the form that a GPU's compiler takes; there need not be one."""
    algorithm = WBCU(hidden=(64, 64), batch_size=ROWS)
    together, state = stacked(algorithm)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def kernels(precision: Any) -> int:
        def program(state: Any) -> Any:
            return members.advance(together, state, 0, 2, precision)

        return jax.jit(program).trace(state).lower(lowering_platforms=("cuda",)).as_text().count("xla.gpu.triton")

    # The policy's two passes, the discriminator's two on the data; at the penalised points three.
    assert kernels("bfloat16") == 7
    assert kernels("float32") == 0


@pytest.mark.parametrize("algorithm", [BC(), WBCU()])
def test_training_in_bf16_is_near_training_in_float32(algorithm: Any):
    algorithm = dataclasses.replace(algorithm, hidden=(16, 16), batch_size=32)
    losses = {}
    for precision in ("float32", "bfloat16", "float32"):
        together, state = stacked(algorithm)
        state, metrics = members.advance(together, state, 0, 20, precision)
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
        losses.setdefault(precision, []).append(np.asarray(metrics["policy_loss"]))
    once, again = losses["float32"]
    np.testing.assert_array_equal(once, again)
    assert (losses["bfloat16"][0] != once).all()
    np.testing.assert_allclose(losses["bfloat16"][0], once, rtol=0.02)
