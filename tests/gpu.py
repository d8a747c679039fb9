"""Is a GPU right? `python tests/gpu.py`, or `make test-gpu`; needs a GPU that JAX can use, and no test runner.

Three questions, each against something computed another way:

kernels   each of the kernels that bf16 uses, alone and over members: outputs and gradients beside the plain networks'
training  ten iterations of every algorithm (one of those that step alike) beside the same ten on the processor, in
          float32; and 200 in bf16 with the kernels beside 200 without
padding   a member that is padded to the sizes of another environment beside itself alone
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from demosift.algorithms import REGISTRY, make_algorithm
from demosift.bench.speed import synthetic_data
from demosift.data.normaliser import Normaliser, fit_normaliser
from demosift.learning import kernels, members, networks
from demosift.learning.program import Program
from demosift.types import Dataset, Demonstrations, Transitions

ALIKE, CLOSE = 0.99, 1e-2  # cosine of what bf16 rounds; relative error of what float32 rounds
SEEDS = range(3)
SHAPES = [(14, 256, 1, 512), (14, 256, 1, 1024), (35, 256, 16, 256), (3, 64, 6, 64), (64, 128, 16, 192)]
OTHERS = {"iql": "seabo", "otr": "seabo", "sift": "wbcu-two-stage"}  # which steps as which
Numbers = dict[str, np.ndarray]
Found = Iterator[tuple[str, float, bool]]


def cosine(a: Any, b: Any) -> float:
    a, b = (np.asarray(each, np.float64).ravel() for each in (a, b))
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


def error(found: Any, wanted: Any) -> float:
    found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def with_gradients(function: Callable[..., Any], network: Any, x: jax.Array) -> list[jax.Array]:
    def loss(network: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        results = jax.tree.leaves(function(network, x))
        return sum(jnp.sum(jnp.sin(each) * (1 + place)) for place, each in enumerate(results)), results  # type: ignore

    return jax.tree.leaves(jax.grad(loss, argnums=(0, 1), has_aux=True)(network, x))


def make(shape: tuple[int, ...], seed: jax.Array) -> tuple[Any, jax.Array]:
    inputs, width, outputs, rows = shape
    sizes = (inputs, width, width, outputs)
    network = networks.init_perceptron(jax.random.key(seed), sizes, [networks.fan_in_uniform] * 3)
    return network, jax.random.normal(jax.random.key(seed + 100), (rows, inputs))


def check_kernels(interpret: bool) -> Found:
    for shape in SHAPES:
        inputs, width, outputs, rows = shape
        stacked = jax.vmap(partial(make, shape))(jnp.arange(len(SEEDS)))
        pairs: dict[str, tuple[Any, Any]] = {"apply": (networks.apply, kernels.apply)}
        if outputs == 1:
            pairs["value_and_slope"] = (networks.value_and_slope, kernels.value_and_slope)
        for name, (plain, ours) in pairs.items():
            assert kernels.takes(jax.tree.map(lambda leaf: leaf[0], stacked[0]), rows)
            wanted = jax.jit(jax.vmap(partial(with_gradients, plain)))(*stacked)
            found = jax.jit(jax.vmap(partial(with_gradients, lambda n, x, f=ours: f(n, x, interpret))))(*stacked)
            worst = min(cosine(a, b) for a, b in zip(found, wanted, strict=True))
            yield f"kernels: {name}, {rows} x {inputs} -> {width} -> {width} -> {outputs}", worst, worst > ALIKE


def trained(name: str, data: Demonstrations, steps: int, precision: members.Precision = "float32") -> Numbers:
    """How far the parameters of all networks went in so many iterations."""
    chosen = make_algorithm(name, {"batch_size": 256})
    data = chosen.prepare(data, None) if hasattr(chosen, "prepare") else data
    each = members.every_member([chosen], list(SEEDS), [data], [Normaliser.identity(data.expert.obs_dim)])
    stacked = members.stack_members(each)
    state = members.init_members(stacked)
    start = members.named_arrays(state)
    state, _ = members.advance(stacked, state, 0, steps, precision)
    return {key: array - start[key] for key, array in members.named_arrays(state).items() if "params" in key}


def check_training(names: list[str]) -> Found:
    data = synthetic_data()
    for name in names:
        found = trained(name, data, 10)
        with jax.default_device(jax.devices("cpu")[0]), mock.patch.object(jax, "default_backend", return_value="cpu"):
            jax.clear_caches()
            wanted = trained(name, data, 10)
        jax.clear_caches()
        # Adam's first steps are as long for a gradient that is rounding alone, so a few parameters go anywhere.
        worst = min(cosine(found[key], wanted[key]) for key in wanted if np.linalg.norm(wanted[key]) > 0)
        yield f"training: {name}, float32 beside the processor", worst, worst > ALIKE
        found = trained(name, data, 200, "bfloat16")
        with mock.patch.object(kernels, "takes", return_value=False):
            jax.clear_caches()
            wanted = trained(name, data, 200, "bfloat16")
        jax.clear_caches()
        whole = [np.concatenate([numbers[key].ravel() for key in sorted(wanted)]) for numbers in (found, wanted)]
        yield f"training: {name}, bf16 with and without the kernels", cosine(*whole), cosine(*whole) > 0.95


def smaller(data: Demonstrations, columns: int) -> Demonstrations:
    def cut(dataset: Dataset) -> Dataset:
        own = dataset.transitions
        rows = Transitions(
            own.obs[:, :columns], own.action[:, :-1], own.reward, own.next_obs[:, :columns], own.terminal
        )
        return Dataset(rows, timeout=dataset.timeout)

    assert data.supplementary is not None
    return Demonstrations(cut(data.expert), cut(data.supplementary))


def check_padding() -> Found:
    large, small = synthetic_data(), smaller(synthetic_data(), 5)
    for name in ("bc", "wbcu", "demodice"):
        chosen = make_algorithm(name, {})

        def member(data: Demonstrations, algorithm: Any = chosen) -> members.Member:
            return members.Member(algorithm, 0, data, fit_normaliser(data))

        together, alone = Program([member(large), member(small)]), Program([member(small)])
        for program in (together, alone):
            program.advance(0, 10)
        own = next(group.policy for group in together.policies() if group.policy.obs_dim == 5)
        obs = np.random.default_rng(0).normal(size=(64, 5))
        wrong = error(own.act(obs), alone.policies()[0].policy.act(obs))
        yield f"padding: {name}, a smaller environment beside a larger", wrong, wrong < CLOSE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name in REGISTRY if name not in OTHERS]
    parser.add_argument("--algorithms", nargs="+", default=names, metavar="NAME", help="all of a kind by default")
    parser.add_argument("--interpret", action="store_true", help="without a GPU, to try this script")
    options = parser.parse_args()
    if jax.default_backend() != "gpu" and not options.interpret:
        print("no GPU: JAX sees " + ", ".join(str(device) for device in jax.devices()), file=sys.stderr)
        sys.exit(2)
    jax.config.update("jax_default_matmul_precision", "highest")
    passed = failed = 0
    for check in (lambda: check_kernels(options.interpret), lambda: check_training(options.algorithms), check_padding):
        for what, number, right in check():
            print(f"{'ok    ' if right else 'WRONG '} {what}: {number:.5f}", flush=True)
            passed, failed = passed + right, failed + (not right)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
