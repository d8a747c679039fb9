"""The recipe: how a policy is cloned, ensembles, and sift, the method made of both."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import CHUNK, SEED, STEPS, fit_tiny, random_dataset, random_demonstrations, tiny

from demosift.algorithms import BC, WBCU, make_algorithm
from demosift.cli.main import main
from demosift.data import write_dataset
from demosift.learning import fit as train
from demosift.learning.algorithm import describe
from demosift.learning.cloning import RECIPES, ROBUST, Cloner, clone, update_policy
from demosift.learning.learner import start
from demosift.learning.members import TrainingData, ensemble_seed, shares
from demosift.learning.networks import Layer, TanhGaussian
from demosift.learning.program import gather
from demosift.policy import Layer as PolicyLayer
from demosift.policy import Policy
from demosift.results.export import export_onnx
from demosift.results.run import load_run
from demosift.sift.method import KNOWN, Sift, best_episodes
from demosift.types import Dataset, Demonstrations, InputError, Transitions

SQUARED = Cloner(loss="squared")


def linear_policy(kernel: float = 0.3, bias: float = -0.1) -> TanhGaussian:
    """One observation, one action, no hidden layer: mean 0.3 s - 0.1, log standard deviation 0."""
    return TanhGaussian((Layer(jnp.array([[kernel, 0.0]]), jnp.array([bias, 0.0])),))


def rows(obs: list[float], action: list[float]) -> Transitions:
    obs_ = jnp.array(obs)[:, None]
    return Transitions(obs_, jnp.array(action)[:, None], jnp.zeros(len(obs)), obs_, jnp.zeros(len(obs), bool))


# The cloner


def test_the_squared_error_by_hand():
    weight = jnp.array([2.0, 0.5])
    _, loss = clone(start(linear_policy()), rows([1.0, -2.0], [0.5, 0.25]), weight, 1e-3, jnp.int32(0), SQUARED)
    taken = np.tanh(0.3 * np.array([1.0, -2.0]) - 0.1)
    np.testing.assert_allclose(loss, np.mean([2.0, 0.5] * (taken - [0.5, 0.25]) ** 2), rtol=1e-6)


def test_the_gradient_of_the_squared_error_is_the_finite_difference():
    """Adam's first step is the sign of the gradient times the rate."""
    weight, data = jnp.array([2.0, 0.5]), rows([1.0, -2.0], [0.5, 0.25])

    def loss(kernel: float) -> float:
        return float(clone(start(linear_policy(kernel)), data, weight, 1e-3, jnp.int32(0), SQUARED)[1])

    new, _ = clone(start(linear_policy()), data, weight, 1e-3, jnp.int32(0), SQUARED)
    moved = float(new.params.layers[0].kernel[0, 0]) - 0.3
    slope = (loss(0.301) - loss(0.299)) / 0.002
    np.testing.assert_allclose(moved, -1e-3 * np.sign(slope), rtol=1e-3)


def test_decay_is_decoupled():
    """Without a gradient nothing but the decay moves a parameter: p (1 - rate * decay)."""
    learner = start(linear_policy())
    nothing = jax.tree.map(jnp.zeros_like, learner.params)
    new = update_policy(learner, nothing, 0.01, jnp.int32(0), Cloner(decay=0.1))
    np.testing.assert_allclose(new.params.layers[0].kernel[0, 0], 0.3 * (1 - 0.001), rtol=1e-6)


def test_the_rate_falls_like_a_cosine():
    falling = Cloner(rate_schedule="cosine", horizon=1000)
    rates = [float(falling.rate(1e-3, jnp.int32(iteration))) for iteration in (0, 500, 1000, 2000)]
    np.testing.assert_allclose(rates, [1e-3, 5e-4, 0.0, 0.0], atol=1e-10)
    assert Cloner().rate(1e-3, jnp.int32(7)) == 1e-3


def test_the_average_follows_the_parameters_and_acts():
    learner = start(linear_policy(), averaged=True)
    gradient = jax.tree.map(jnp.ones_like, learner.params)
    new = update_policy(learner, gradient, 0.1, jnp.int32(0), Cloner(average=0.9))
    kept = 0.1  # (1 + 0) / (10 + 0)
    expected = kept * 0.3 + (1 - kept) * float(new.params.layers[0].kernel[0, 0])
    np.testing.assert_allclose(new.acting.layers[0].kernel[0, 0], expected, rtol=1e-5)
    assert start(linear_policy()).acting.layers[0].kernel[0, 0] == jnp.float32(0.3)


def test_the_floor_bounds_the_deviation():
    sharp = dataclasses.replace(linear_policy(), layers=(Layer(jnp.array([[0.3, 0.0]]), jnp.array([-0.1, -9.0])),))
    assert float(sharp.moments(jnp.zeros((1, 1)))[1][0, 0]) == -5.0
    floored = dataclasses.replace(sharp, log_std_floor=-1.0)
    assert float(floored.moments(jnp.zeros((1, 1)))[1][0, 0]) == -1.0
    run = fit_tiny("bc", iterations=CHUNK)
    setting = dataclasses.replace(tiny("bc"), cloner=Cloner(log_std_floor=1.0))  # type: ignore[type-var]
    other = train.fit(setting, random_demonstrations(), seeds=[SEED], iterations=CHUNK, progress=False)
    assert not np.array_equal(run.policy.layers[0].kernel, other.policy.layers[0].kernel)


@pytest.mark.parametrize("setting", [WBCU(), WBCU(cloner=ROBUST), BC(cloner=SQUARED), Sift(), Sift(cloner=Cloner())])
def test_settings_are_told_flat_and_read_back(setting: Any):
    told = describe(setting)
    json.dumps(told)
    assert make_algorithm(told.pop("algorithm"), told) == setting


def test_the_papers_methods_are_described_as_before():
    """New settings at their defaults are not told: the ids of earlier results stay what they were."""
    assert set(describe(WBCU())) == {
        *("algorithm", "gradient_penalty", "threshold", "learning_rate", "discriminator_learning_rate"),
        *("ratio", "penalty", "batch_size", "hidden"),
    }
    robust = make_algorithm("wbcu", RECIPES["robust"])
    assert describe(robust)["decay"] == 0.1
    assert robust.cloner == ROBUST  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        *("bc", "wbcu"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("nbcu", "wbcu-two-stage", "demodice", "dwbc")),
    ],
)
def test_every_method_takes_the_recipe(name: str):
    setting = dataclasses.replace(tiny(name), cloner=ROBUST)  # type: ignore[type-var]
    options: dict[str, Any] = {"seeds": [SEED], "iterations": STEPS, "log_every": CHUNK, "progress": False}
    run = train.fit(setting, random_demonstrations(), **options)
    assert run.members[0]["decay"] == 0.1
    assert run.members[0]["horizon"] == STEPS
    plain = fit_tiny(name)
    assert not np.array_equal(run.policy.layers[0].kernel, plain.policy.layers[0].kernel)


@pytest.mark.parametrize(
    ("changes", "options", "kind", "message"),
    [
        ({"cloner": Cloner("squared", -1.0)}, {}, "continuous", "the squared error has no standard deviation"),
        ({"cloner": SQUARED}, {}, "discrete", "discrete actions are cloned by cross-entropy"),
        ({"cloner": Cloner(average=1.0)}, {}, "continuous", "average: must be at least 0 and below 1"),
        ({"cloner": Cloner(decay=-1.0)}, {}, "continuous", "decay: -1.0 is not a number from 0 up"),
        ({}, {"ensemble": 0}, "continuous", "ensemble: 0 is not a whole number from 1"),
    ],
)
def test_contradictions_are_refused(
    changes: dict[str, Any], options: dict[str, Any], kind: str, message: str, tmp_path: Path
):
    setting = dataclasses.replace(tiny("bc"), **changes)  # type: ignore[type-var]
    with pytest.raises(InputError, match=message):
        train.fit(setting, random_demonstrations(kind), iterations=5, out=tmp_path / "run", progress=False, **options)
    assert not (tmp_path / "run").exists()


def test_a_falling_rate_ends_where_the_run_ends(tmp_path: Path):
    """So a longer run is another run."""
    options: dict[str, Any] = {
        "log_every": CHUNK,
        "checkpoint_every": CHUNK,
        "progress": False,
        "out": tmp_path / "run",
    }
    setting = dataclasses.replace(tiny("bc"), cloner=ROBUST)  # type: ignore[type-var]
    train.fit(setting, random_demonstrations(), iterations=CHUNK, **options)
    with pytest.raises(InputError, match="differs in members"):
        train.fit(setting, random_demonstrations(), iterations=2 * CHUNK, resume=True, **options)


# Ensembles


def ensemble(kind: str = "continuous", name: str = "bc", **options: Any) -> Any:
    return fit_tiny(name, kind, ensemble=3, **options)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_an_ensemble_acts_by_the_mean(kind: str, tmp_path: Path):
    policy = ensemble(kind, seeds=[SEED, SEED + 1]).policy
    assert (policy.num_members, policy.ensemble, len(policy.shift)) == (2, 3, 6)
    obs = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
    alone = dataclasses.replace(policy, ensemble=1)
    each = alone.outputs(np.repeat(obs, 3, axis=0)).reshape(2, 3, 7, -1)
    if kind == "continuous":
        expected = np.tanh(np.clip(each[..., :2], -7, 7)).mean(axis=1)
    else:
        shares = np.exp(each) / np.exp(each).sum(axis=-1, keepdims=True)
        expected = np.eye(2)[shares.mean(axis=1).argmax(axis=-1)]
    np.testing.assert_allclose(policy.act_members(obs), expected, rtol=1e-5, atol=1e-6)
    policy.save(tmp_path / "p.safetensors")
    again = Policy.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(again.act_members(obs), policy.act_members(obs))
    np.testing.assert_array_equal(again.member(1).act_members(obs[1:]), policy.act_members(obs)[1:])


def test_the_first_network_is_the_member_alone():
    """To rounding: members of another number are compiled differently."""
    first = dataclasses.replace(ensemble().policy, ensemble=1).members([0])
    alone = fit_tiny("bc").policy
    np.testing.assert_allclose(first.layers[0].kernel, alone.layers[0].kernel, rtol=1e-4, atol=1e-6)
    seeds = [ensemble_seed(seed, place) for seed in range(50) for place in range(10)]
    assert len(set(seeds)) == 500


def test_an_ensembles_run_is_killed_resumed_weighed_and_loaded(tmp_path: Path):
    options: dict[str, Any] = {"checkpoint_every": CHUNK, "out": tmp_path / "run"}
    ensemble(name="wbcu", iterations=CHUNK, **options)
    ensemble(name="wbcu", resume=True, **options)
    whole = ensemble(name="wbcu")
    run = load_run(tmp_path / "run")
    np.testing.assert_array_equal(run.policy.layers[0].kernel, whole.policy.layers[0].kernel)
    assert run.config["ensemble"] == 3
    assert len(run.metrics) == 2  # a row for the member, not one for each network
    weights = train.weigh(run, random_demonstrations())
    assert weights.shape == (1, 90)
    assert np.isfinite(weights).all()
    with pytest.raises(InputError, match="differs in ensemble"):
        fit_tiny("wbcu", resume=True, **options)


def test_disagreement_grows_off_the_data():
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (300, 3)).astype(np.float32)
    action = np.tanh(obs[:, :2]).astype(np.float32)
    ends = np.arange(300) % 100 == 99
    data = Demonstrations(Dataset(Transitions(obs, action, np.zeros(300, np.float32), obs, ends), np.zeros(300, bool)))
    setting = BC(learning_rate=3e-3, batch_size=64, hidden=(32, 32), cloner=ROBUST)
    policy = train.fit(setting, data, iterations=600, ensemble=5, normalise="union", progress=False).policy
    near, far = (policy.disagreement(factor * obs[None]).mean() for factor in (1.0, 6.0))
    assert far > 3 * near
    with pytest.raises(InputError, match="is one network"):
        fit_tiny("bc").policy.disagreement(obs[None])


def test_a_network_that_diverges_leaves_the_ensemble():
    kernel = np.zeros((6, 2, 2), np.float32)
    kernel[4] = np.nan
    zeros = np.zeros((6, 2), np.float32)
    with pytest.warns(UserWarning, match="1 of 3 networks diverged"):
        policy = gather(Policy("tanh-gaussian", (PolicyLayer(kernel, zeros),), zeros, zeros), 3)
    assert (policy.num_members, policy.ensemble) == (2, 2)
    assert np.isfinite(policy.layers[0].kernel).all()


@pytest.mark.parametrize("size", [0, 4, 2.0, "3"])
def test_a_file_whose_ensembles_do_not_fit_is_refused(size: Any, tmp_path: Path):
    policy = ensemble().policy
    policy.save(tmp_path / "p.safetensors")
    content = (tmp_path / "p.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    config = json.loads(header["__metadata__"]["demosift"])
    header["__metadata__"]["demosift"] = json.dumps({**config, "ensemble": size})
    changed = json.dumps(header).encode()
    (tmp_path / "p.safetensors").write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    with pytest.raises(InputError, match=r"cannot be ensembles of|ensemble is missing or of the wrong type"):
        Policy.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_an_ensemble_is_exported_with_parity(kind: str, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    exported = export_onnx(ensemble(kind).policy, tmp_path / "p.onnx")
    assert exported.difference is not None
    assert exported.difference < 1e-5


# Weights and sift


def test_rows_are_drawn_in_proportion_to_their_weights():
    weight = np.array([0.0, 1.0, 3.0, 0.0, 4.0])
    data = TrainingData(
        union=Transitions(*(jnp.zeros((8, 1)) for _ in range(5))),
        num_expert=jnp.int32(1),
        num_rows=jnp.int32(5),
        starts=jnp.zeros(1, int),
        num_starts=jnp.int32(1),
        cumulative=jnp.asarray(shares(weight, 8)),
    )
    drawn = np.asarray(data.draw_weighted(jax.random.key(0), 40_000))
    counts = np.bincount(drawn, minlength=8)
    np.testing.assert_allclose(counts / 40_000, np.append(weight / 8, [0, 0, 0]), atol=0.01)
    assert counts[[0, 3, 5, 6, 7]].sum() == 0


def test_every_row_of_a_large_pile_can_be_drawn():
    rows = 2**24  # twice as many as a float32 has places for
    steps = np.diff(shares(np.ones(2**20), 2**20).astype(float))
    assert np.abs(steps - 2**12).max() <= 1
    data = TrainingData(
        union=Transitions(*(jnp.zeros((1, 1)) for _ in range(5))),
        num_expert=jnp.int32(1),
        num_rows=jnp.int32(rows),
        starts=jnp.zeros(1, int),
        num_starts=jnp.int32(1),
        cumulative=jnp.arange(1, rows + 1, dtype=jnp.uint32) * jnp.uint32(2**8) - jnp.uint32(1),
    )
    drawn = np.asarray(data.draw_weighted(jax.random.key(0), 10_000))
    assert 0.48 < np.mean(drawn % 2) < 0.52


def test_of_a_large_pile_only_the_best_episodes_count():
    own = np.repeat([0.1, 0.9, 0.5, 0.8, 0.2, 0.7], 100)
    own[::7] /= 2
    weight = np.concatenate([np.full(600, 2.0), own])
    data = dataclasses.replace(Demonstrations(contradicting(0, True), contradicting(1, False)), weight=weight)
    found = best_episodes(data, 250)  # rows; the third episode exceeds them
    assert found.weight is not None
    best = np.repeat([False, True, False, True, False, True], 100)
    np.testing.assert_array_equal(found.weight[600:], np.where(best, own, 0.0))
    np.testing.assert_array_equal(found.weight[:600], weight[:600])
    np.testing.assert_array_equal(best_episodes(found, 250).weight, found.weight)
    assert best_episodes(data, 600) is data
    np.testing.assert_array_equal(Sift(most_rows=250).prepare(data, None).weight, found.weight)


def contradicting(seed: int, good: bool, num_rows: int = 600) -> Dataset:
    """The expert's action is the tanh of the state; everybody else's is the opposite."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (num_rows, 3)).astype(np.float32)
    action = np.tanh((2.0 if good else -2.0) * obs[:, :2]).astype(np.float32)
    ends = np.arange(num_rows) % 100 == 99
    return Dataset(Transitions(obs, action, np.zeros(num_rows, np.float32), obs, ends), np.zeros(num_rows, bool))


SMALL: dict[str, Any] = {"scorer": "neighbours", "hidden": (32, 32), "batch_size": 64}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    KNOWN.clear()
    yield
    KNOWN.clear()


def test_sift_clones_the_expert_and_not_the_rest(tmp_path: Path):
    """One score folder for the run; resumed, it is read again and not made again."""
    data = Demonstrations(contradicting(0, good=True, num_rows=200), contradicting(1, good=False))
    options: dict[str, Any] = {"iterations": 400, "log_every": 100, "checkpoint_every": 100, "progress": False}
    setting = Sift(learning_rate=3e-3, **SMALL)
    run = train.fit(setting, data, ensemble=2, out=tmp_path / "run", **options)
    obs = contradicting(2, good=True, num_rows=100).transitions.obs
    assert np.mean(np.sign(run.policy.act_members(obs[None])[0]) == np.sign(obs[:, :2])) > 0.9
    assert (tmp_path / "run/scores/0/report.html").is_file()
    everything = train.fit(BC(3e-3, 64, (32, 32)), Demonstrations(data.supplementary), **options)  # type: ignore[arg-type]
    assert np.mean(np.sign(everything.policy.act_members(obs[None])[0]) == np.sign(obs[:, :2])) < 0.1
    KNOWN.clear()
    (tmp_path / "run/policy.safetensors").unlink()
    again = train.fit(setting, data, ensemble=2, out=tmp_path / "run", resume=True, **options)
    np.testing.assert_array_equal(again.policy.layers[0].kernel, run.policy.layers[0].kernel)


def test_sift_refuses_what_it_cannot_score(tmp_path: Path):
    with pytest.raises(InputError, match="sift: needs a supplementary dataset"):
        train.fit(Sift(**SMALL), Demonstrations(random_dataset(0, 30)), iterations=5, progress=False)
    data = Demonstrations(contradicting(0, True, 200), contradicting(1, False))
    Sift(**SMALL).prepare(data, tmp_path / "scores")
    other = Demonstrations(contradicting(0, True, 100), contradicting(1, False))
    with pytest.raises(InputError, match="the scores are of other data"):
        Sift(**SMALL).prepare(other, tmp_path / "scores")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, good, rows_ in (("expert", True, 200), ("pile", False, 600)):
        write_dataset(contradicting(0, good, rows_), tmp_path / f"{name}.hdf5")
    files = ["--expert", str(tmp_path / "expert.hdf5"), "--supplementary", str(tmp_path / "pile.hdf5")]
    short = ["--iterations", "20", "--log-every", "10", "--checkpoint-every", "10", "--hidden", "8", "8", "--json"]
    out = tmp_path / "sift"
    assert main(["train", *files, *short, "--scorer", "neighbours", "--out", str(out)]) == 0  # sift: none is named
    config = json.loads((out / "config.json").read_text())
    assert config["ensemble"] == 5
    assert config["members"][0]["log_std_floor"] == -1.0
    out = tmp_path / "wbcu"
    flags = ["--recipe", "robust", "--decay", "0.3", "--gradient-penalty", "0", "1"]
    assert main(["train", "wbcu", *files, *short, *flags, "--out", str(out)]) == 0
    members = json.loads((out / "config.json").read_text())["members"]
    assert [(m["gradient_penalty"], m["decay"], m["learning_rate"]) for m in members] == [
        (0, 0.3, 1e-3),
        (1, 0.3, 1e-3),
    ]
    assert main(["train", "bc", *files, *short, "--loss", "squared", "--log-std-floor", "-1", "--out", "x"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
