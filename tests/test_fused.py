"""The GPU's kernels, interpreted: the same numbers as the plain networks, and bf16 only where it is meant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import STEPS, random_dataset, tiny

from demosift.algorithms import REGISTRY, Algorithm
from demosift.data.normaliser import Normaliser
from demosift.learning import kernels as fused
from demosift.learning import members, networks
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
    found: list[tuple[Any, Any]] = [(networks.apply, interpreted(fused.apply))]
    if network[-1].kernel.shape[1] == 1:
        found.append((networks.value_and_slope, interpreted(fused.value_and_slope)))
    return found


@pytest.mark.parametrize(("inputs", "outputs", "last_bias"), NETWORKS)
def test_in_float32_the_kernels_are_the_plain_networks(
    inputs: int, outputs: int, last_bias: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fused, "LOW", jnp.float32)
    network, x = make(inputs, outputs, last_bias)
    for plain, kernels in pairs(network):
        wanted, found = gradients(plain, network, x), gradients(kernels, network, x)
        assert jax.tree.structure(wanted) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.long
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
    ("sizes", "rows", "taken"),
    [
        ((14, 256, 256, 1), 256, True),
        ((64, 64, 64, 16), 64, True),
        ((14, 256, 256, 1), 200, False),
        ((14, 256, 256, 1), 0, False),
        ((14, 256, 1), 256, False),
        ((14, 1), 256, False),
        ((14, 256, 256, 256, 1), 256, False),
        ((14, 256, 128, 1), 256, False),
        ((14, 96, 96, 1), 256, False),
        ((14, 32, 32, 1), 256, False),
        ((14, 512, 512, 1), 256, False),
        ((65, 256, 256, 1), 256, False),
        ((14, 256, 256, 17), 256, False),
    ],
)
def test_what_the_kernels_take(sizes: tuple[int, ...], rows: int, taken: bool):
    kernels = [networks.glorot_uniform] * (len(sizes) - 1)
    network = networks.init_perceptron(jax.random.key(0), sizes, kernels)
    assert fused.takes(network, rows) == taken
    without_bias = (network[0]._replace(bias=None), *network[1:])
    assert not fused.takes(without_bias, rows)


def demonstrations() -> Demonstrations:
    return Demonstrations(random_dataset(0, 40), random_dataset(1, 60))


def stacked(algorithm: Algorithm) -> tuple[members.Members, Any]:
    data = demonstrations()
    together = members.stack_members(
        members.every_member([algorithm], [0, 1], [data], [Normaliser.identity(data.expert.obs_dim)])
    )
    return together, members.init_members(together)


# A pass forward and one back for a policy and for a network on data, three kernels where a penalty is; DWBC's
# discriminator has one hidden layer and stays with XLA.
@pytest.mark.long
@pytest.mark.parametrize(("name", "kernels"), [("bc", 2), ("wbcu", 7), ("demodice", 12), ("dwbc", 2)])
def test_a_gpu_would_run_them(name: str, kernels: int, monkeypatch: pytest.MonkeyPatch):
    """The whole training program, brought into the form that a GPU's compiler takes; there need not be one."""
    together, state = stacked(tiny(name, hidden=(64, 64), batch_size=64))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def count(precision: Any) -> int:
        def program(state: Any) -> Any:
            return members.advance(together, state, 0, 2, precision)

        return jax.jit(program).trace(state).lower(lowering_platforms=("cuda",)).as_text().count("xla.gpu.triton")

    assert (count("bfloat16"), count("float32")) == (kernels, 0)
    jax.clear_caches()  # programs for a GPU that is not there


@pytest.mark.long
@pytest.mark.parametrize("name", REGISTRY)
def test_training_in_bf16_is_near_training_in_float32(name: str):
    algorithm = tiny(name)
    losses: dict[str, list[np.ndarray]] = {}
    for precision in ("float32", "bfloat16", "float32"):
        together, state = stacked(algorithm)
        state, metrics = members.advance(together, state, 0, STEPS, precision)
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
        losses.setdefault(precision, []).append(np.asarray(metrics["policy_loss"]))
    once, again = losses["float32"]
    np.testing.assert_array_equal(once, again)
    assert (losses["bfloat16"][0] != once).all()
    np.testing.assert_allclose(losses["bfloat16"][0], once, rtol=0.05, atol=0.02)
