"""Acting in closed form, and the file."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from demosift.policy import Kind, Layer, Policy, RandomPolicy
from demosift.results.run import Run
from demosift.simulation import environments
from demosift.simulation.evaluation import load_policy
from demosift.simulation.simulate import rollout
from demosift.types import Bounds, EnvironmentSpec, InputError


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
    action = policy.act_members(obs)
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
    action = policy.act_members(obs)
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
    together = policy.act_members(obs)
    for m in range(5):
        for n in range(10):
            assert (policy.member(m).act_members(obs[m : m + 1, n : n + 1]) == together[m, n]).all()


def test_members():
    policy = make_policy()
    obs = np.random.default_rng(1).normal(size=(3, 4, 5))
    assert policy.num_members == 3
    assert (policy.members([2, 0]).act_members(obs[[2, 0]]) == policy.act_members(obs)[[2, 0]]).all()
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
    assert (loaded.act_members(obs) == policy.act_members(obs)).all()
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
        ({}, {"environment": {"id": "Hopper-v5"}}, "environment.kwargs"),
        ({}, {"mean_limit": "seven"}, "mean_limit"),
        ({}, {"log_std_range": [2, -5]}, "log_std_range"),
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


WIDE = EnvironmentSpec("own", action_low=(0.0, -2.0), action_high=(10.0, 2.0))
OBS = np.random.default_rng(1).normal(size=(4, 5))


def test_act_takes_one_observation_or_a_batch_and_acts_in_native_units():
    policy = make_policy(environment=WIDE)
    for member in (0, 2):
        expected = WIDE.scale_action(policy.member(member).act_members(OBS[None].astype(np.float32))[0])
        batch = np.asarray(policy.act(OBS, member=member))
        assert batch.dtype == np.float32
        assert (batch == expected).all()
        assert np.array_equal(policy.act(OBS[1].tolist(), member=member), expected[1])
    assert np.array_equal(policy.act(OBS), policy.act(OBS, member=0))
    assert np.shape(policy.act(OBS[:0])) == (0, 2)
    assert np.abs(make_policy().act(OBS)).max() <= 1  # no environment


def test_act_gives_an_integer_where_actions_are_discrete():
    policy = make_policy(kind="categorical", environment=EnvironmentSpec("own", num_actions=2))
    batch = np.asarray(policy.act(OBS))
    assert batch.shape == (4,)
    assert batch.dtype.kind == "i"
    assert type(policy.act(OBS[0])) is int
    assert [policy.act(obs) for obs in OBS] == batch.tolist()


def test_an_ensemble_acts_by_the_mean():
    networks = make_policy(members=3, environment=WIDE)
    together = np.asarray(replace(networks, ensemble=3).act(OBS))
    np.testing.assert_allclose(
        together, np.mean([np.asarray(networks.act(OBS, member=m)) for m in range(3)], axis=0), atol=1e-5
    )


def test_a_loop_with_act_is_a_rollout():
    spec = environments.resolve("Pendulum-v1")
    policy = make_policy(3, 1, members=2, environment=spec)
    (episode,) = rollout(policy, spec, [(1, 5)], num_workers=1)
    env, total, over = environments.make(spec), 0.0, False
    obs, _ = env.reset(seed=5)
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs, member=1))
        total, over = total + float(reward), terminated or truncated
    assert total == pytest.approx(episode.return_)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_draws_follow_the_gaussian(ensemble: int):
    policy = replace(make_policy(mean_limit=0.1, log_std_range=(-1.0, -0.9)), ensemble=ensemble)
    u = np.arctanh(np.asarray(policy.act(np.repeat(OBS[:1], 20_000, axis=0), 0, False, np.random.default_rng(0))))
    outputs = policy.outputs(np.repeat(OBS[None, :1], 3, axis=0))[:ensemble, 0].astype(float)
    mean, std = np.clip(outputs[:, :2], -0.1, 0.1), np.exp(np.clip(outputs[:, 2:], -1.0, -0.9))
    np.testing.assert_allclose(u.mean(axis=0), mean.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(u.var(axis=0), (std**2 + mean**2).mean(axis=0) - mean.mean(axis=0) ** 2, rtol=0.05)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_draws_follow_the_probabilities(ensemble: int):
    policy = replace(make_policy(kind="categorical", action_dim=4), ensemble=ensemble)
    drawn = np.asarray(policy.act(np.repeat(OBS[:1], 20_000, axis=0), 0, False, np.random.default_rng(0)))
    powers = np.exp(policy.outputs(np.repeat(OBS[None, :1], 3, axis=0))[:ensemble, 0])
    expected = (powers / powers.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 20_000, expected, atol=0.02)


def test_draws_are_repeated_by_the_generator():
    policy = make_policy(log_std_range=(-5.0, 2.0))
    first, again = (policy.act(OBS, deterministic=False, rng=np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(policy.act(OBS, deterministic=False), policy.act(OBS, deterministic=False))


def test_the_range_of_the_deviation_comes_from_the_run_and_is_in_the_file(tmp_path: Path):
    for settings, expected in (
        ({}, (-5.0, 2.0)),
        ({"log_std_floor": -1.0}, (-1.0, 2.0)),
        ({"loss": "squared"}, None),
    ):
        run = Run({"members": [settings, settings]}, make_policy(), [])
        run.policy.save(tmp_path / "p.safetensors")
        assert Policy.load(tmp_path / "p.safetensors").log_std_range == run.policy.log_std_range == expected
    expert = load_policy("expert", "hopper")
    assert np.shape(expert.act(np.zeros(11), deterministic=False)) == (3,)


@pytest.mark.parametrize(
    ("obs", "options", "words"),
    [
        (OBS[0, :3], {}, r"shape \(3,\), expected \(5,\) or \(rows, 5\)"),
        (OBS[None], {}, r"shape \(1, 4, 5\)"),
        (1.0, {}, r"shape \(\)"),
        ([np.nan] * 5, {}, "the observation holds NaN"),
        (np.where(np.arange(4)[:, None] == 2, np.inf, OBS), {}, "observation 2 holds NaN or infinity"),
        ((OBS[0], {}), {}, r"not an array of numbers; env\.reset\(\)"),
        (["a"] * 5, {}, "not an array of numbers"),
        (OBS, {"member": 3}, "member 3 does not exist: the policy has members 0 to 2"),
        (OBS, {"member": "x"}, "member x does not exist"),
        (OBS, {"deterministic": False}, "no standard deviation"),
    ],
)
def test_act_refuses(obs, options, words):
    with pytest.raises(InputError, match=words) as caught:
        make_policy().act(obs, **options)
    assert "\n" not in str(caught.value)


def test_a_seed_is_no_generator():
    with pytest.raises(InputError, match="not a NumPy generator"):
        make_policy(log_std_range=(-5.0, 2.0)).act(OBS, deterministic=False, rng=0)  # type: ignore[arg-type]


def test_the_random_policy_acts_too():
    batch = np.asarray(RandomPolicy(WIDE).act(np.zeros((500, 5)), rng=np.random.default_rng(0)))
    assert batch.shape == (500, 2)
    assert batch[:, 0].min() >= 0
    assert batch[:, 0].max() > 8
    assert type(RandomPolicy(EnvironmentSpec("own", num_actions=4)).act(np.zeros(5))) is int


def test_the_documented_example_runs():
    text = (Path(__file__).parent.parent / "docs" / "acting.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict = {}
    exec(snippet, found)
    assert (found["action"].shape, found["actions"].shape, found["drawn"].shape) == ((3,), (5, 3), (3,))


def test_a_policy_that_is_not_finite_is_not_written(tmp_path: Path):
    policy = make_policy()
    policy.layers[0].kernel[0, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"a\.safetensors: not written: the policy's parameters are not finite"):
        policy.save(tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_the_units_of_data_without_an_environment(tmp_path: Path):
    bounds = Bounds((-2.0, 0.0), (2.0, 10.0))
    policy = make_policy(stated_bounds=bounds)
    expected = bounds.from_unit(make_policy().member(0).act_members(OBS[None])[0])
    assert np.array_equal(policy.act(OBS), expected)
    policy.save(tmp_path / "p.safetensors")
    again = Policy.load(tmp_path / "p.safetensors")
    assert again.bounds == bounds
    assert np.array_equal(again.act(OBS), expected)
    with pytest.raises(ValueError, match="2 actions, its stated bounds 3"):
        make_policy(stated_bounds=Bounds((-1.0,) * 3, (1.0,) * 3))
