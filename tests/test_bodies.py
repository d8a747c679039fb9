"""Bodies of policies other than the perceptron: what trains in JAX acts in NumPy, is saved by name and found again."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import OBS_DIM, fit_tiny, random_demonstrations, tiny

import demosift as ds
from demosift.learning.bodies import LAYER_NORM, init_layer_norm
from demosift.learning.networks import init_policy
from demosift.registry import NETWORKS
from demosift.results.run import Run

SIZES = (OBS_DIM, 8, 8, 4)


def trained(kind: str = "continuous", name: str = "bc", **options: Any) -> Run:
    return fit_tiny(name, kind, network="layer-norm", **options)


def test_layer_norm_by_hand():
    """One hidden layer: (1, 2) W = (3, -1), of mean 1 and deviation 2; so (1, -1), and ReLU leaves (1, 0)."""
    params = {
        "layer_0": {
            "kernel": np.array([[1.0, 1.0], [1.0, -1.0]], np.float32),
            "bias": np.zeros(2, np.float32),
            "gain": np.array([2.0, 1.0], np.float32),
            "shift": np.array([0.5, 0.0], np.float32),
        },
        "layer_1": {"kernel": np.array([[3.0], [5.0]], np.float32), "bias": np.ones(1, np.float32)},
    }
    outputs = LAYER_NORM.outputs(params, np.array([[1.0, 2.0]], np.float32))
    np.testing.assert_allclose(outputs, [[3.0 * 2.5 + 1.0]], rtol=1e-5)


def test_jax_and_numpy_agree():
    params = init_layer_norm(jax.random.key(0), SIZES)
    x = np.random.default_rng(0).normal(size=(5, OBS_DIM)).astype(np.float32)
    ours = LAYER_NORM.outputs(jax.tree.map(np.asarray, params), x)
    assert isinstance(ours, np.ndarray)
    np.testing.assert_allclose(ours, jax.jit(LAYER_NORM.apply)(params, jnp.asarray(x)), atol=1e-6)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_policy_acts_and_is_saved(kind: str, tmp_path: Path):
    run = trained(kind, seeds=2, ensemble=2)
    assert [member["network"] for member in run.members] == ["layer-norm"] * 2
    run.save(tmp_path / "run")
    policy, obs = ds.load_policy(tmp_path / "run"), random_demonstrations(kind).expert.transitions.obs
    assert isinstance(policy, ds.Policy)
    assert (policy.network, policy.num_members, policy.ensemble) == (LAYER_NORM, 2, 2)
    for member in range(2):
        np.testing.assert_array_equal(policy.act(obs, member=member), run.policy.act(obs, member=member))
    np.testing.assert_array_equal(policy.act(obs[3]), np.asarray(policy.act(obs))[3])
    assert np.shape(policy.act(obs, deterministic=False)) == np.shape(policy.act(obs))
    policy.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "run/policy.safetensors").read_bytes()


def test_a_method_that_makes_its_policy_itself_takes_it():
    run = trained(name="dwbc")
    assert run.policy.network is LAYER_NORM
    assert np.isfinite(run.metrics[-1]["policy_loss"])


def test_held_out_losses_and_resuming(tmp_path: Path):
    options: dict[str, Any] = {"held_out": 0.5, "patience": 50, "data": random_demonstrations(num_rows=80)}
    options["data"] = ds.Demonstrations(random_demonstrations(seed=5, num_rows=80).supplementary)  # type: ignore[arg-type]
    whole = trained(out=tmp_path / "whole", checkpoint_every=5, **options)
    trained(out=tmp_path / "run", checkpoint_every=5, **{**options, "iterations": 5})
    resumed = trained(out=tmp_path / "run", checkpoint_every=5, resume=True, **options)
    assert resumed.metrics == whole.metrics
    np.testing.assert_array_equal(resumed.policy.shift, whole.policy.shift)
    for own, other in zip(jax.tree.leaves(resumed.policy.layers), jax.tree.leaves(whole.policy.layers), strict=True):
        np.testing.assert_array_equal(own, other)


def test_simulating_processes_need_no_jax():
    code = (
        "import pickle, sys; network = pickle.loads(sys.stdin.buffer.read()); "
        "print(network.name); sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(LAYER_NORM), capture_output=True, check=True)
    assert done.stdout.decode().strip() == "layer-norm"


def test_a_network_of_the_script_itself_cannot_be_sent():
    def apply(params: Any, x: Any) -> Any:
        return x

    apply.__module__ = "__main__"
    with pytest.raises(ds.InputError, match="'mine': simulating processes cannot import it"):
        pickle.dumps(ds.Network("mine", init_layer_norm, apply))


@pytest.mark.parametrize(
    ("init", "apply", "message"),
    [
        (lambda key, sizes: [], lambda params, x: x, "init must give a dictionary"),
        (lambda key, sizes: {"a/b": jnp.zeros(1)}, lambda params, x: x, "words without a slash"),
        (lambda key, sizes: {"a": jnp.zeros(1)}, lambda params, x: x, r"apply must turn \(2, 1, 3\) into \(2, 1, 4\)"),
    ],
)
def test_functions_that_do_not_fit_are_refused(init: Any, apply: Any, message: str):
    obs, action = jnp.zeros((1, OBS_DIM)), jnp.zeros((1, 2))
    body = ds.Network("odd", init, apply)
    with pytest.raises(ds.InputError, match=message):
        init_policy(jax.random.key(0), obs, action, (8,), jax.nn.initializers.glorot_uniform(), body=body)


def test_an_unknown_network_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ds.InputError, match="unknown network 'deep'; choose one of perceptron, layer-norm"):
        fit_tiny("bc", network="deep", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_parameters_of_another_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = trained()
    run.save(tmp_path / "run")
    monkeypatch.setitem(
        NETWORKS, "layer-norm", ds.Network("layer-norm", init_layer_norm, lambda params, x: params["w"])
    )
    with pytest.raises(ds.InputError, match="network 'layer-norm' cannot use these parameters: KeyError: 'w'"):
        ds.load_policy(tmp_path / "run")


def test_a_network_that_is_given_is_registered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NETWORKS, "_known", dict(NETWORKS._known))
    mine = ds.Network("mine", init_layer_norm, LAYER_NORM.apply)
    assert ds.fit(tiny("bc"), random_demonstrations(), network=mine, iterations=2).policy.network is mine
    assert NETWORKS["mine"] is mine
