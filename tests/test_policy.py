"""Acting in closed form, and the file."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from demosift.policy import Kind, Layer, Policy, RandomPolicy
from demosift.simulation import environments
from demosift.types import EnvironmentSpec, InputError


def make_policy(obs_dim=5, action_dim=2, members=3, hidden=(16, 16), kind: Kind = "tanh-gaussian", **kwargs) -> Policy:
    rng = np.random.default_rng(0)
    widths = [obs_dim, *hidden, action_dim * (2 if kind == "tanh-gaussian" else 1)]
    layers = tuple(
        Layer(
            rng.normal(0, 1 / np.sqrt(a), (members, a, b)).astype(np.float32),
            rng.normal(0, 0.1, (members, b)).astype(np.float32),
        )
        for a, b in pairwise(widths)
    )
    shift = rng.normal(size=(members, obs_dim)).astype(np.float32)
    scale = rng.uniform(0.5, 2, (members, obs_dim)).astype(np.float32)
    return Policy(kind, layers, shift, scale, **kwargs)


@pytest.mark.parametrize("hidden", [(), (16,), (16, 8)])
@pytest.mark.parametrize("mean_limit", [None, 0.5])
def test_acts_as_the_equations_say(hidden, mean_limit):
    policy = make_policy(hidden=hidden, mean_limit=mean_limit)
    obs = np.random.default_rng(1).normal(size=(3, 7, 5)).astype(np.float32)
    action = policy.act(obs)
    assert action.shape == (3, 7, 2)
    for m in range(3):
        x = (obs[m].astype(float) + policy.shift[m]) * policy.scale[m]
        for index, (kernel, bias) in enumerate(policy.layers):
            x = np.maximum(x, 0) if index else x
            x = x @ kernel[m].astype(float) + bias[m]
        mean = x[:, :2] if mean_limit is None else np.clip(x[:, :2], -mean_limit, mean_limit)
        np.testing.assert_allclose(action[m], np.tanh(mean), atol=1e-5)
    if mean_limit is not None:
        assert np.abs(action).max() == pytest.approx(np.tanh(mean_limit))  # the limit was met


def test_categorical_acts_with_the_largest_logit():
    policy = make_policy(kind="categorical", action_dim=4, hidden=())
    obs = np.random.default_rng(1).normal(size=(3, 50, 5)).astype(np.float32)
    action = policy.act(obs)
    assert action.dtype == np.int8
    assert (action.sum(-1) == 1).all()
    (kernel, bias) = policy.layers[0]
    logits = np.einsum("mni,mio->mno", (obs + policy.shift[:, None]) * policy.scale[:, None], kernel) + bias[:, None]
    assert (action.argmax(-1) == logits.argmax(-1)).all()
    assert len(np.unique(action.argmax(-1))) == 4


def test_an_action_does_not_depend_on_the_rows_beside_it():
    """Bit for bit; a matrix product of the whole batch would not give this."""
    policy = make_policy(obs_dim=17, action_dim=6, members=5, hidden=(256, 256))
    obs = np.random.default_rng(1).normal(size=(5, 10, 17)).astype(np.float32)
    together = policy.act(obs)
    for m in range(5):
        for n in range(10):
            assert (policy.member(m).act(obs[m : m + 1, n : n + 1]) == together[m, n]).all()


def test_members():
    policy = make_policy()
    obs = np.random.default_rng(1).normal(size=(3, 4, 5))
    assert policy.num_members == 3
    assert (policy.members([2, 0]).act(obs[[2, 0]]) == policy.act(obs)[[2, 0]]).all()
    with pytest.raises(InputError, match="member 3"):
        policy.member(3)
    with pytest.raises(InputError, match="member -1"):
        policy.member(-1)


def test_file_round_trip(tmp_path: Path):
    spec = environments.resolve("ant")
    policy = make_policy(27, 8, mean_limit=7.0, environment=spec, metadata={"b": "2", "a": "1"})
    policy.save(tmp_path / "a.safetensors")
    loaded = Policy.load(tmp_path / "a.safetensors")
    obs = np.random.default_rng(1).normal(size=(3, 4, 27))
    assert (loaded.act(obs) == policy.act(obs)).all()
    assert (loaded.kind, loaded.mean_limit, loaded.metadata) == ("tanh-gaussian", 7.0, {"a": "1", "b": "2"})
    assert loaded.environment == spec
    assert environments.short_name(spec) == "ant"
    assert "layers/2/kernel" in load_file(tmp_path / "a.safetensors")
    replace(loaded, metadata={"a": "1", "b": "2"}).save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


CONFIG = {"kind": "tanh-gaussian", "mean_limit": None, "environment": None, "metadata": {}}
TENSORS = {
    "normaliser/shift": np.zeros((1, 3), np.float32),
    "normaliser/scale": np.ones((1, 3), np.float32),
    "layers/0/kernel": np.zeros((1, 3, 4), np.float32),
    "layers/0/bias": np.zeros((1, 4), np.float32),
}


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({"layers/0/bias": None}, {}, "layers/0/bias"),
        ({"layers/0/kernel": None, "layers/0/bias": None}, {}, "layers/0/kernel"),
        ({"normaliser/scale": None}, {}, "normaliser/scale"),
        ({"layers/0/kernel": np.zeros((3, 4), np.float32)}, {}, "layer 0"),
        ({"layers/0/kernel": np.zeros((1, 2, 4), np.float32)}, {}, "layer 0"),
        ({"layers/0/kernel": np.zeros((2, 3, 4), np.float32)}, {}, "layer 0"),
        ({"normaliser/scale": np.ones((1, 1), np.float32)}, {}, "normaliser"),
        (
            {"layers/0/kernel": np.zeros((1, 3, 3), np.float32), "layers/0/bias": np.zeros((1, 3), np.float32)},
            {},
            "odd",
        ),
        ({"layers/0/kernel": np.full((1, 3, 4), np.nan, np.float32)}, {}, "NaN"),
        ({"layers/0/bias": np.zeros((1, 4), np.int32)}, {}, "int32"),
        ({}, {"kind": "pickle"}, "unknown kind"),
        ({}, {"environment": {"id": "Hopper-v5"}}, "action_low"),
        ({}, {"mean_limit": "seven"}, "mean_limit"),
        ({}, None, "demosift"),
    ],
)
def test_bad_files_are_refused(tmp_path, tensors, config, words):
    path = tmp_path / "bad.safetensors"
    content = {name: tensor for name, tensor in {**TENSORS, **tensors}.items() if tensor is not None}
    save_file(content, path, metadata=None if config is None else {"demosift": json.dumps({**CONFIG, **config})})
    with pytest.raises(InputError, match=words) as caught:
        Policy.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_good_file_of_the_refusals_is_good(tmp_path):
    save_file(TENSORS, tmp_path / "good.safetensors", metadata={"demosift": json.dumps(CONFIG)})
    assert Policy.load(tmp_path / "good.safetensors").action_dim == 2


def test_files_that_are_not_safetensors_are_refused(tmp_path):
    whole = tmp_path / "whole.safetensors"
    make_policy().save(whole)
    for name, content in {
        "cut": whole.read_bytes()[:-100],
        "header": whole.read_bytes()[:20],
        "empty": b"",
        "pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.",
    }.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(InputError, match=name) as caught:
            Policy.load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such"):
        Policy.load(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match="no such"):
        Policy.load(tmp_path)


def test_random_policy_is_uniform():
    rng = np.random.default_rng(0)
    box = RandomPolicy(EnvironmentSpec("own", action_low=(-2.0,) * 3, action_high=(2.0,) * 3))
    draws = np.stack([box.draw(rng) for _ in range(2000)])
    assert draws.shape == (2000, 3)
    assert draws.min() >= -1
    assert draws.max() <= 1
    np.testing.assert_allclose(draws.var(axis=0), 1 / 3, rtol=0.1)
    discrete = RandomPolicy(EnvironmentSpec("own", num_actions=4))
    draws = np.stack([discrete.draw(rng) for _ in range(2000)])
    np.testing.assert_allclose(draws.mean(axis=0), 0.25, atol=0.05)
