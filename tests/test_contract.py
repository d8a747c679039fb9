"""What every algorithm of the registry promises, whatever its maths: a new one gets these tests by being registered.

Programs that compute the same thing are compiled differently, so results are compared to a tolerance where the programs
differ and byte by byte where they are the same.
"""

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import (
    CHUNK,
    COMBINATIONS,
    OBS_DIM,
    SEED,
    STEPS,
    Killed,
    alone,
    fit_tiny,
    folder_bytes,
    kill_at,
    random_demonstrations,
    tiny,
)
from jaxtyping import TypeCheckError

from demosift.algorithms import REGISTRY
from demosift.data.normaliser import fit_normaliser
from demosift.learning import fit as train
from demosift.learning import losses
from demosift.learning import members as programs
from demosift.learning.cohort import Cohort
from demosift.learning.networks import Policy as Network
from demosift.learning.networks import TanhGaussian, apply
from demosift.results.run import Run, load_run
from demosift.types import Transitions

Arrays = dict[str, np.ndarray]
each_algorithm = pytest.mark.parametrize(("name", "kind"), COMBINATIONS)


def arrays(run: Run) -> Arrays:
    assert run.state is not None
    return dict(run.state)


def member(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def assert_close(actual: Arrays, expected: Arrays, tolerance: float = 2e-5) -> None:
    """float32 after ten steps: Adam's normalised steps let rounding through, so not tighter."""
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], tolerance, tolerance, err_msg=name)


def assert_same(actual: Arrays, expected: Arrays) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@each_algorithm
def test_the_same_seed_gives_the_same_run(name: str, kind: str):
    first, again = alone(name, kind), fit_tiny(name, kind)
    assert_same(arrays(again), arrays(first))
    assert again.metrics == first.metrics
    with pytest.raises(AssertionError):
        assert_close(arrays(fit_tiny(name, kind, seeds=[SEED + 1])), arrays(first))


@each_algorithm
def test_metrics_are_finite_and_per_member(name: str, kind: str):
    rows = alone(name, kind).metrics
    assert [(row["iteration"], row["member"]) for row in rows] == [(CHUNK, 0), (STEPS, 0)]
    values = {key: [row[key] for row in rows] for key in rows[0]}
    for key, measured in values.items():
        finite = [value for value in measured if value is not None]
        assert np.isfinite(finite).all(), key
        # Two stages report what they do not train as null, each for its part of the run.
        partly = {"wbcu-two-stage": ("loss", "accuracy"), "smodice": ("loss", "accuracy", "mean", "share")}
        assert len(finite) == (1 if key.endswith(partly.get(name, ())) else 2), key
    assert values["policy_loss"][-1] is not None
    assert "weight_mean" in values or name in ("bc", "nbcu")


@each_algorithm
def test_scan_equals_a_loop_of_steps(name: str, kind: str):
    """And the loop's keys are the contract: everything random in iteration i follows from (seed, i)."""
    data = tiny(name).prepare(random_demonstrations(kind), None)
    members = programs.stack_members(programs.every_member([tiny(name)], [SEED], [data], [fit_normaliser(data)]))
    algorithm, state = member(members.algorithm, 0), member(programs.init_members(members), 0)
    step = jax.jit(lambda *arguments: algorithm.step(*arguments))
    sample = jax.jit(lambda key: members.shared.batch(members.shared.draw(key, algorithm.batch_size)))
    _, train_key = jax.random.split(jax.random.key(SEED))
    short = state
    for iteration in range(STEPS):
        batch_key, step_key = jax.random.split(jax.random.fold_in(train_key, iteration))
        batch, short = sample(batch_key), state
        assert batch.union.terminal.any()
        state, _ = step(state, batch, jnp.int32(iteration), step_key)
    scanned = {key: array[0] for key, array in arrays(alone(name, kind)).items()}
    assert_close(programs.named_arrays(state), scanned)
    with pytest.raises(AssertionError):
        assert_close(programs.named_arrays(short), scanned)


def advance_on_gpu_path(members: programs.Members, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """Ten steps as a GPU takes them, vmapped; a fresh function, or JAX would find the CPU's program in its cache."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.lax, "map", None)

    @jax.jit
    def ten_steps(members: programs.Members) -> Any:
        state = inspect.unwrap(programs.init_members)(members)
        return inspect.unwrap(programs._advance)(members, state, jnp.int32(0), STEPS)[0]

    return programs.named_arrays(ten_steps(members))


@each_algorithm
def test_a_member_among_others_equals_itself_alone(name: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    """On the GPU's path, beside a member with more data, so padded; alone, on the CPU's path and without padding."""
    sources = [random_demonstrations(kind, seed=10, num_rows=90), random_demonstrations(kind)]
    sources = [tiny(name).prepare(source, None) for source in sources]
    members = programs.stack_members(
        programs.every_member([tiny(name)], [SEED + 1, SEED], sources, [fit_normaliser(s) for s in sources])
    )
    assert members.own.union.reward.shape == (2, 120)
    assert members.own.num_rows.tolist() == [120, 90]
    stacked = advance_on_gpu_path(members, monkeypatch)
    expected = {key: array[0] for key, array in arrays(alone(name, kind)).items()}
    assert_close({key: array[1] for key, array in stacked.items()}, expected)
    with pytest.raises(AssertionError):
        assert_close({key: array[0] for key, array in stacked.items()}, expected)


def test_padding_would_show_if_it_were_drawn():
    """The check above can fail: with the padding counted as data, the member differs."""
    sources = [random_demonstrations(seed=10, num_rows=90), random_demonstrations()]
    data = jax.tree.map(jnp.asarray, programs.load_data(sources[1], fit_normaliser(sources[1]), 120, 25))
    for num_rows, drawn in ((90, False), (120, True)):
        batch = data.batch(data._replace(num_rows=np.int32(num_rows)).draw(jax.random.key(0), 200))
        assert bool((batch.union.obs == 0).all(axis=1).any()) is drawn
    assert not bool((batch.expert.obs == 0).all(axis=1).any())


def test_a_batch_is_the_rows_that_were_drawn():
    """Each set from its own rows, with replacement; amounts of mixing in [0, 1), no two alike."""
    source = random_demonstrations()
    data = jax.tree.map(jnp.asarray, programs.load_data(source, fit_normaliser(source), 120, 25))
    keys = jax.random.split(jax.random.key(0), 20)
    draws = jax.vmap(lambda key: data.draw(key, 50))(keys)
    limits = {"expert": (0, 30), "union": (0, 90), "supplementary": (30, 90), "initial": (0, 15)}
    for name, (low, high) in limits.items():
        assert set(np.unique(getattr(draws, name))) == set(range(low, high)), name
    assert 0.0 <= draws.uniform.min() < 0.01
    assert 0.99 < draws.uniform.max() < 1.0
    assert draws.uniform.mean() == pytest.approx(0.5, abs=0.03)
    assert len(np.unique(draws.uniform)) > 0.99 * draws.uniform.size
    assert len({column.tobytes() for column in np.asarray(draws.expert)}) == len(keys)

    draw = member(draws, 3)
    batch = data.batch(draw)
    starts = programs.episode_starts(source)
    for name, index in {**draw._asdict(), "initial": starts[draw.initial]}.items():
        if index is None:
            continue  # rows drawn by weight, where the data has weights: test_recipe.py
        if name == "uniform":
            np.testing.assert_array_equal(batch.uniform, draw.uniform)
            continue
        for field, array in getattr(batch, name)._asdict().items():
            np.testing.assert_array_equal(array, getattr(data.union, field)[index], err_msg=f"{name} {field}")


@each_algorithm
def test_a_saved_policy_acts_the_same(name: str, kind: str, tmp_path: Path):
    run = alone(name, kind)
    run.save(tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    obs = observations()
    np.testing.assert_array_equal(loaded.policy.act_members(obs), run.policy.act_members(obs))
    assert loaded.metrics == run.metrics
    assert_same(arrays(loaded), arrays(run))
    assert json.loads(json.dumps(run.config)) == loaded.config


def observations() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(1, 50, OBS_DIM)).astype(np.float32)


def act(network: Network, obs: jax.Array) -> jax.Array:
    if isinstance(network, TanhGaussian):
        return jnp.tanh(network.moments(obs)[0])
    return jax.nn.one_hot(jnp.argmax(apply(network.layers, obs), axis=-1), network.layers[-1].kernel.shape[-1])


@each_algorithm
def test_the_network_and_the_policy_act_alike(name: str, kind: str):
    """JAX trains it, NumPy acts with it: the same action, and `Policy` is what applies the normaliser."""
    data, run, algorithm = random_demonstrations(kind), alone(name, kind), tiny(name)
    members = programs.stack_members(programs.every_member([algorithm], [SEED], [data], [fit_normaliser(data)]))
    network = algorithm.policy(member(programs.fill(programs.init_members(members), arrays(run)), 0))
    obs = observations()
    expected = act(network, jnp.asarray(fit_normaliser(data).apply(obs[0])))
    np.testing.assert_allclose(run.policy.act_members(obs)[0], expected, atol=1e-6)
    assert np.abs(run.policy.outputs(obs)[0] - apply(network.layers, jnp.asarray(obs[0]))).max() > 1e-3


@each_algorithm
def test_killed_and_resumed_equals_uninterrupted(name: str, kind: str, tmp_path: Path, trained: list[int]):
    options: dict[str, Any] = {"iterations": 4 * CHUNK, "checkpoint_every": CHUNK}
    fit_tiny(name, kind, out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        fit_tiny(name, kind, out=tmp_path / "cut", callbacks=kill_at(3 * CHUNK), **options)
    assert not (tmp_path / "cut/policy.safetensors").exists()

    trained.clear()
    fit_tiny(name, kind, out=tmp_path / "cut", resume=True, **options)
    assert trained == [2 * CHUNK, 3 * CHUNK]  # not from zero
    assert folder_bytes(tmp_path / "cut") == folder_bytes(tmp_path / "whole")


def test_a_run_resumed_with_another_key_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The check above can fail: if iterations are counted from zero again, the bytes differ."""
    options: dict[str, Any] = {"iterations": 4 * CHUNK, "checkpoint_every": CHUNK}
    fit_tiny("bc", "continuous", out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        fit_tiny("bc", "continuous", out=tmp_path / "cut", callbacks=kill_at(3 * CHUNK), **options)
    advance = Cohort.advance
    monkeypatch.setattr(Cohort, "advance", lambda cohort, first, steps: advance(cohort, first - 2 * CHUNK, steps))
    fit_tiny("bc", "continuous", out=tmp_path / "cut", resume=True, **options)
    assert folder_bytes(tmp_path / "cut") != folder_bytes(tmp_path / "whole")


def test_settings_and_seeds_make_the_members():
    """Every setting with every seed, settings first; a member is the run that its setting and seed would be alone."""
    settings = [tiny("wbcu", gradient_penalty=penalty) for penalty in (0.0, 1.0, 10.0)]
    run = train.fit(settings, random_demonstrations(), seeds=[SEED, SEED + 1], iterations=STEPS, log_every=CHUNK)
    assert [(m["gradient_penalty"], m["seed"]) for m in run.members] == [
        (penalty, seed) for penalty in (0.0, 1.0, 10.0) for seed in (SEED, SEED + 1)
    ]
    assert [row["member"] for row in run.metrics] == [*range(6), *range(6)]
    assert all(np.isfinite(list(row.values())).all() for row in run.metrics)

    single = alone("wbcu", "continuous")
    assert_close(
        {key: array[2] for key, array in arrays(run).items()}, {key: array[0] for key, array in arrays(single).items()}
    )
    np.testing.assert_allclose(
        [list(row.values())[2:] for row in run.metrics if row["member"] == 2],
        [list(row.values())[2:] for row in single.metrics],
        rtol=1e-4,
    )
    obs = observations()
    np.testing.assert_allclose(run.policy.member(2).act_members(obs), single.policy.act_members(obs), atol=1e-5)

    discriminators = arrays(run)[".discriminator.params[0].kernel"]
    policies = arrays(run)[".policy.params.layers[0].kernel"]
    for stacked in (discriminators, policies):
        assert len({array.tobytes() for array in stacked}) == 6  # no two alike


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(REGISTRY, 2)])
def test_no_two_algorithms_share_a_program(first: str, second: str):
    """jit finds a compiled program by its arguments' tree: where hashes collide, only equality tells classes apart."""
    assert jax.tree.structure(tiny(first)) != jax.tree.structure(tiny(second))


def test_weigh_is_the_algorithms_own_weight():
    """`weigh` puts a run's arrays, settings and normaliser back together; here they were never separated."""
    data, algorithm = random_demonstrations(), tiny("wbcu")
    normaliser = fit_normaliser(data)
    members = programs.stack_members(programs.every_member([algorithm], [SEED], [data], [normaliser]))
    state = member(programs.fill(programs.init_members(members), arrays(alone("wbcu", "continuous"))), 0)
    rows = Transitions(*(jnp.asarray(array) for array in programs.load_data(data, normaliser, 90, 15).union))
    expected = algorithm.weigh(state, rows)
    weights = train.weigh(alone("wbcu", "continuous"), data)
    np.testing.assert_allclose(weights, np.asarray(expected)[None], rtol=1e-5)
    assert weights.std() > 1e-3


def test_shapes_are_checked_while_tests_run():
    """The classic bug of this loss, caught twice: by the annotation, and by JAX where nothing is annotated."""
    with pytest.raises(TypeCheckError):
        losses.weighted_loss(jnp.ones(4), jnp.ones((4, 1)))
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.add(jnp.ones(4), jnp.ones((4, 1)))
