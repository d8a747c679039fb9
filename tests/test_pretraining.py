"""ILID and TAILO: discriminators that are trained first, what they select and weigh, and that it is done once."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from conftest import Killed, fit_tiny, folder_bytes, random_dataset, random_demonstrations, tiny, tree
from test_updates import (
    ACTION,
    BROKEN,
    EXACT,
    HIDDEN,
    OBS,
    ROWS,
    float64,
    learner_difference,
    leaves_after,
    make_learner,
    make_network,
    make_rows,
    relative_difference,
    weight_metrics,
)

from demosift.algorithms import ILID, TAILO, Batch, bc
from demosift.algorithms.ilid import clipped_loss, joint_weight, leads_to
from demosift.algorithms.tailo import PositiveUnlabelled, log_discounted_sum, safe_negatives
from demosift.data.normaliser import fit_normaliser
from demosift.learning import fit as train
from demosift.learning import prepared, pretraining, stages
from demosift.learning.losses import discriminator_loss
from demosift.learning.networks import Categorical, TanhGaussian
from demosift.learning.pretraining import Discriminator, Pair, Stage
from demosift.learning.runner import Bar
from demosift.results.folder import read_results
from demosift.results.prepared import PREPARED, write_prepared
from demosift.types import Dataset, Demonstrations, InputError, Transitions

STAGED = ("ilid", "tailo")
ENDS = np.array([4, 5, 12, 30])


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    prepared.KNOWN.clear()
    yield
    prepared.KNOWN.clear()


@pytest.fixture
def in_float64():
    with jax.enable_x64(True):
        yield


# Closed forms.


def selected_by_hand(hit: np.ndarray, ends: np.ndarray, steps: int) -> list[bool]:
    found = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        found += [any(hit[t + k] for k in range(steps) if t + k < end) for t in range(start, end)]
    return found


def test_rows_that_lead_to_a_hit():
    """`hit` is about a row's successor: row 3 ends the first episode, so its own successor is all it can lead to."""
    hit = np.zeros(7, bool)
    hit[[3, 4]] = True
    assert leads_to(hit, np.array([4, 7]), 1).tolist() == [False, False, False, True, True, False, False]
    assert leads_to(hit, np.array([4, 7]), 3).tolist() == [False, True, True, True, True, False, False]
    first_of_the_next = hit & (np.arange(7) == 4)
    assert not leads_to(first_of_the_next, np.array([4, 7]), 20)[:4].any()
    assert leads_to(first_of_the_next, np.array([7]), 20)[:4].all()  # without the episode's end it would count
    rng = np.random.default_rng(0)
    for steps in (1, 2, 5, 100):
        hit = rng.random(30) < 0.15
        assert leads_to(hit, ENDS, steps).tolist() == selected_by_hand(hit, ENDS, steps)


@pytest.mark.parametrize("form", ["paper", "code"])
def test_one_weight_gives_both_terms_of_ilid(form: str):
    rng = np.random.default_rng(0)
    ratio, selected, below = rng.uniform(1 / 9, 9, 20), rng.random(14) < 0.4, rng.random(14) < 0.5
    beta = below if form == "paper" else np.ones(14, bool)
    weight, loss = joint_weight(ratio, selected, beta, num_expert=6), rng.normal(size=20)
    used = np.concatenate([np.ones(6, bool), selected])
    first, second = np.mean((ratio * loss)[used]), np.mean((beta * loss[6:])[selected])
    np.testing.assert_allclose(np.mean(weight * loss), first + second, rtol=1e-12)
    assert (weight[6:][~selected] == 0).all()
    alone = joint_weight(ratio, np.zeros(14, bool), beta, num_expert=6)
    np.testing.assert_allclose(np.mean(alone * loss), np.mean((ratio * loss)[:6]), rtol=1e-12)


@pytest.mark.parametrize("discount", [0.0, 0.6, 0.9])
def test_discounted_future_is_the_sum_that_it_says(discount: float):
    reward = np.random.default_rng(1).normal(size=30)
    wanted = [reference.discounted_sum(np.exp(part), discount, 400) for part in np.split(reward, ENDS[:-1])]
    found = log_discounted_sum(reward, ENDS, discount)
    np.testing.assert_allclose(np.exp(found), np.concatenate(wanted), rtol=1e-10)
    with pytest.raises(AssertionError):  # were episodes not told apart
        np.testing.assert_allclose(
            log_discounted_sum(reward, ENDS[-1:], 0.6), np.log(np.concatenate(wanted)), rtol=0.01
        )


def test_discounted_future_does_not_overflow():
    reward = np.array([-2e4, 1e4, 2e4, 1e4])
    found = log_discounted_sum(reward, np.array([3, 4]), 0.998)
    np.testing.assert_allclose(found - found.max(), [2 * np.log(0.998), np.log(0.998), 0, -1e4], rtol=1e-8)


def test_safe_negatives_are_below_the_quantile():
    rng = np.random.default_rng(2)
    for episodes in (2, 5, 6, 15, 100):
        lengths = rng.integers(1, 9, episodes)
        ends, z = np.cumsum(lengths), rng.normal(size=lengths.sum())
        means = np.array([part.mean() for part in np.split(z, ends[:-1])])
        wanted = np.repeat(means < np.quantile(means, 0.8), lengths)
        np.testing.assert_array_equal(safe_negatives(z, ends, 0.8), wanted)
    assert safe_negatives(np.zeros(3), np.array([3]), 0.8).all()  # a lone episode: there is nothing else
    assert safe_negatives(np.zeros(6), np.array([2, 4, 6]), 0.8).sum() == 4  # equal means: the first ones


# One full update against float64 NumPy.

LOSSES: dict[str, tuple[Any, float, float, Any]] = {  # the loss, the penalty, the decay, and NumPy's loss with gradient
    "ilid": (clipped_loss, 0.0, 0.3, lambda n, e, o, amount: reference.ilid_discriminator_loss(n, e, o)),
    "tailo, first": (
        PositiveUnlabelled(0.2),
        3.0,
        0.0,
        lambda n, e, o, amount: reference.tailo_discriminator_loss(n, e, o, amount, 3.0, 0.2),
    ),
    "tailo, first, held at zero": (
        PositiveUnlabelled(0.9),
        3.0,
        0.0,
        lambda n, e, o, amount: reference.tailo_discriminator_loss(n, e, o, amount, 3.0, 0.9),
    ),
    "tailo, second": (
        discriminator_loss,
        3.0,
        0.0,
        lambda n, e, o, amount: reference.tailo_discriminator_loss(n, e, o, amount, 3.0, None),
    ),
}


def discriminator_case(name: str, dtype: Any = np.float64) -> tuple[Discriminator, Any, Pair]:
    rng = np.random.default_rng(18)  # a draw that reaches every branch: tested below
    loss, penalty, decay, _ = LOSSES[name]
    how = Discriminator(loss, 0.03, weight_decay=decay, gradient_penalty=penalty, batch_size=ROWS, hidden=HIDDEN)
    state = make_learner(rng, make_network(rng, (OBS, *HIDDEN, 1), last=8.0))
    expert, other = (make_rows(rng, discrete=False).obs for _ in range(2))
    shifted = other - (2.0 if "zero" in name else 0.0)
    batch = Pair(expert, shifted, rng.random((ROWS, 1)))  # type: ignore[arg-type]
    return how, *jax.tree.map(lambda a: jnp.asarray(a, dtype if a.dtype == np.float64 else a.dtype), (state, batch))


def discriminator_difference(name: str, how: Discriminator, state: Any, batch: Pair) -> float:
    new, metrics = jax.jit(lambda s, b: how.step(s, b, jnp.int32(0), jax.random.key(0)))(state, batch)
    network, (expert, other, amount) = float64(state.params), float64(batch)
    loss, gradient = LOSSES[name][3](network, expert, other, amount)
    wanted = leaves_after(state, gradient, how.learning_rate, epsilon=1e-8, decay=LOSSES[name][2])
    return max(learner_difference(new, wanted), relative_difference(metrics["discriminator_loss"], loss))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", LOSSES)
def test_a_discriminators_update_matches_numpy(name: str):
    how, state, batch = discriminator_case(name)
    assert discriminator_difference(name, how, state, batch) < EXACT
    for broken in (
        {"loss": discriminator_loss if name == "ilid" else clipped_loss},
        {"weight_decay": 0.1},
        {"gradient_penalty": 1.0},
    ):
        assert discriminator_difference(name, dataclasses.replace(how, **broken), state, batch) > BROKEN


@pytest.mark.usefixtures("in_float64")
def test_the_rows_reach_every_branch_of_the_losses():
    _, state, batch = float64(discriminator_case("ilid"))
    c = reference.sigmoid(reference.forward(state.params, np.concatenate([batch.expert, batch.other]))[-1])
    assert (c < 0.1).any()
    assert (c > 0.9).any()
    assert ((c > 0.1) & (c < 0.9)).any()
    for name, eta, above in (("tailo, first", 0.2, True), ("tailo, first, held at zero", 0.9, False)):
        _, state, batch = float64(discriminator_case(name))
        z_expert, z_other = (reference.forward(state.params, x)[-1] for x in (batch.expert, batch.other))
        rest = np.mean(reference.softplus(z_other)) - eta * np.mean(reference.softplus(z_expert))
        assert (rest > 0) is np.bool_(above)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", LOSSES)
def test_the_references_gradients_are_finite_differences(name: str):
    _, state, (expert, other, amount) = float64(discriminator_case(name))
    rng, leaves = np.random.default_rng(2), jax.tree.leaves(state.params)
    structure = jax.tree.structure(state.params)
    gradient = jax.tree.leaves(LOSSES[name][3](state.params, expert, other, amount)[1])
    direction = [rng.normal(size=leaf.shape) for leaf in leaves]

    def along(step: float) -> float:
        moved = [leaf + step * way for leaf, way in zip(leaves, direction, strict=True)]
        return LOSSES[name][3](jax.tree.unflatten(structure, moved), expert, other, amount)[0]

    wanted = sum(np.sum(g * way) for g, way in zip(gradient, direction, strict=True))
    np.testing.assert_allclose(wanted, (along(1e-6) - along(-1e-6)) / 2e-6, rtol=1e-6)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("name", STAGED)
def test_a_policys_update_matches_numpy(name: str, discrete: bool):
    """The rows drawn by weight are cloned, each alike; the others are there to be mistaken for them."""
    rng = np.random.default_rng(3)  # a draw with means on both sides of both limits
    limit = {"ilid": 9.0, "tailo": 7.0}[name]
    a: Any = {"ilid": ILID, "tailo": TAILO}[name](learning_rate=0.05, weight_decay=0.3, batch_size=ROWS, hidden=HIDDEN)
    sets = [make_rows(rng, discrete) for _ in range(5)]
    layers = make_network(rng, (OBS, *HIDDEN, ACTION if discrete else 2 * ACTION), last=6.0)
    state = bc.State(make_learner(rng, Categorical(layers) if discrete else TanhGaussian(layers, limit)))
    weight: Any = rng.random(ROWS)
    batch = Batch(*sets[:4], rng.random((2, ROWS, 1)), weight, sets[4])  # type: ignore[arg-type]
    state, batch = jax.tree.map(jnp.asarray, (state, batch))
    new, metrics = a.step(state, batch, jnp.int32(0), jax.random.key(0))

    def wanted(rows: Transitions, mean_limit: float) -> tuple[float, Any]:
        values = reference.forward(float64(layers), np.asarray(rows.obs))
        action = np.asarray(rows.action, np.float64)
        log_prob, bar = (
            reference.categorical(values[-1], action)
            if discrete
            else reference.tanh_gaussian(values[-1], action, mean_limit)
        )
        gradient, _ = reference.backward(float64(layers), values, -bar / ROWS)
        return -log_prob.sum() / ROWS, leaves_after(state.policy, gradient, 0.05, epsilon=1e-8, decay=0.3)

    loss, leaves = wanted(sets[4], limit)
    assert learner_difference(new.policy, leaves) < EXACT
    for key, number in {"policy_loss": loss, **weight_metrics(weight)}.items():
        assert relative_difference(metrics[key], number) < EXACT
    assert learner_difference(new.policy, wanted(sets[1], limit)[1]) > BROKEN
    if not discrete:
        assert learner_difference(new.policy, wanted(sets[4], 16.0 - limit)[1]) > BROKEN
    fallback, _ = a.step(state, batch._replace(weight=None, weighted=None), jnp.int32(0), jax.random.key(0))
    assert learner_difference(fallback.policy, wanted(sets[1 if name == "ilid" else 2], limit)[1]) < EXACT


# What is prepared, with discriminators that are known.


def fixed(sizes: tuple[int, ...], seed: int) -> Any:
    network = make_network(np.random.default_rng(seed), sizes, last=3.0)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), network)


@pytest.mark.parametrize("form", ["paper", "code"])
def test_ilid_weighs_as_its_equations_say(form: str, monkeypatch: pytest.MonkeyPatch):
    data = random_demonstrations()
    assert data.supplementary is not None
    given = []

    def known(wanted: list[Stage], *_: Any) -> Any:
        (stage,) = wanted
        given.append((stage.expert, stage.other))
        return [fixed((stage.inputs, 8, 1), len(given))]

    monkeypatch.setattr(stages, "pretrain", known)
    found = ILID(form=form, steps_ahead=2, hidden=(8,)).prepare(data, None).weight  # type: ignore[arg-type]
    normaliser = fit_normaliser(data, "union")
    expert, pile = (normaliser.apply(part.transitions.obs) for part in (data.expert, data.supplementary))

    def clipped(seed: int, x: np.ndarray) -> np.ndarray:
        z = reference.forward(float64(fixed((x.shape[1], 8, 1), seed)), x.astype(np.float64))[-1][:, 0]
        return np.clip(reference.sigmoid(z), 0.1, 0.9)

    hit = clipped(1, normaliser.apply(data.supplementary.transitions.next_obs)) >= 0.4
    kept = np.array(selected_by_hand(hit, data.supplementary.episode_ends, 2))
    x = np.concatenate([np.concatenate([expert, pile]), data.union.action], axis=1)
    used = np.concatenate([np.ones(30, bool), kept])
    d = clipped(2, x)
    beta = clipped(1, pile) <= 0.4 if form == "paper" else np.ones(60, bool)
    wanted = 90 * used * d / (1 - d) / used.sum()
    wanted[30:] += 90 * (kept & beta) / kept.sum()
    assert 0 < kept.sum() < 60
    assert found is not None
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for actual, rows in zip((*given[0], *given[1]), (expert, pile, x[:30], x[used]), strict=True):
        np.testing.assert_array_equal(actual, rows)


def test_tailo_weighs_as_its_equations_say(monkeypatch: pytest.MonkeyPatch):
    data = random_demonstrations()
    assert data.supplementary is not None
    given = []

    def known(wanted: list[Stage], *_: Any) -> Any:
        (stage,) = wanted
        given.append((stage.how.loss, stage.expert, stage.other, stage.iterations, stage.how.batch_size))
        return [fixed((stage.inputs, 8, 1), len(given))]

    monkeypatch.setattr(stages, "pretrain", known)
    found = TAILO(discount=0.9, hidden=(8,)).prepare(data, None).weight
    normaliser = fit_normaliser(data, "supplementary")
    expert, pile = (normaliser.apply(part.transitions.obs) for part in (data.expert, data.supplementary))
    z = [reference.forward(float64(fixed((3, 8, 1), seed)), pile.astype(np.float64))[-1][:, 0] for seed in (1, 2)]
    parts = np.split(np.arange(60), data.supplementary.episode_ends[:-1])
    means = np.array([z[0][part].mean() for part in parts])
    safe = np.concatenate([part for part, mean in zip(parts, means, strict=True) if mean < np.quantile(means, 0.8)])
    total = np.concatenate([reference.discounted_sum(np.exp(1.25 * z[1][part]), 0.9, 300) for part in parts])
    assert found is not None
    np.testing.assert_allclose(found, np.concatenate([np.zeros(30), total / total.max()]), rtol=1e-5)
    (first, *rows, iterations, size), (second, *others, more, _) = given
    assert (first, second, iterations, more, size) == (PositiveUnlabelled(0.2), discriminator_loss, 10_000, 40_000, 512)
    for actual, wanted in zip((*rows, *others), (expert, pile, expert, pile[safe]), strict=True):
        np.testing.assert_array_equal(actual, wanted)


# Probe problems.

QUICK: dict[str, Any] = {
    "hidden": (16, 16),
    "batch_size": 128,
    "learning_rate": 3e-3,
    "discriminator_learning_rate": 3e-3,
    "discriminator_iterations": 500,
}


def episodes(rows: list[tuple[np.ndarray, np.ndarray]]) -> Dataset:
    """Episodes from their states, of which the last is only reached, and their actions."""
    obs = np.concatenate([state[:-1] for state, _ in rows]).astype(np.float32)
    following = np.concatenate([state[1:] for state, _ in rows]).astype(np.float32)
    action = np.concatenate([action for _, action in rows]).astype(np.float32)[:, None]
    timeout = np.zeros(len(obs), bool)
    timeout[np.cumsum([len(action) for _, action in rows]) - 1] = True
    return Dataset(Transitions(obs, action, np.zeros(len(obs), np.float32), following, timeout & False), timeout)


def path(rng: np.random.Generator, x: list[float], y: float, action: list[float]) -> tuple[np.ndarray, np.ndarray]:
    state = np.stack([np.array(x), np.full(len(x), y)], axis=1)
    return state + 0.05 * rng.normal(size=state.shape), np.array(action)


def test_ilid_keeps_what_leads_to_the_experts_states():
    """The expert is at x = 1 and goes on by +0.5. Some episodes come back to it from x = -1 by other actions, and go on
    by -0.5 when they are there; a distractor stays far away. The way back is kept, the distractor is not; in the
    expert's states it is followed."""
    rng = np.random.default_rng(0)
    expert = episodes([path(rng, [1.0] * 5, 0.0, [0.5] * 4) for _ in range(12)])
    back = [path(rng, [-1.0, -1.0, 1.0, 1.0], 0.0, [-0.3, -0.3, -0.5]) for _ in range(16)]
    far = [path(rng, [0.0] * 7, -2.0, [0.8] * 6) for _ in range(8)]
    data = Demonstrations(expert, episodes([*back, *far]))
    method = ILID(**QUICK)
    weight = method.prepare(data, None).weight
    assert weight is not None
    returning, distractor = weight[48:96].reshape(16, 3), weight[96:]
    assert (distractor == 0).all()
    assert (returning[:, :2] > 0).all()
    assert (returning[:, 2] < 0.5 * weight[:48].mean()).all()  # the expert's states, another action: the ratio decides
    near = ILID(**QUICK, steps_ahead=1).prepare(data, None).weight
    assert near is not None
    assert (near[48:96].reshape(16, 3)[:, 0] == 0).all()  # two steps away
    run = train.fit(method, data, iterations=800, log_every=400, progress=False)
    acts = run.policy.act_members(np.array([[[1.0, 0.0], [-1.0, 0.0]]], np.float32))[0, :, 0]
    np.testing.assert_allclose(acts, [0.5, -0.3], atol=0.15)
    blind = episodes(far)
    with pytest.warns(UserWarning, match="no row of the pile leads to"):
        alone = method.prepare(Demonstrations(expert, blind), None).weight
    assert alone is not None
    assert (alone[48:] == 0).all()
    assert (alone[:48] > 0).all()


def missing_steps() -> Demonstrations:
    """From one start, the expert goes along y = 0. In the pile some do by +0.5, with two of three steps missing from
    the file, and others go off by -0.5."""
    rng = np.random.default_rng(0)
    along = [0.5 * step for step in range(10)]
    expert = episodes([path(rng, along, 0.0, [0.0] * 9) for _ in range(8)])
    good = [path(rng, along[::3], 0.0, [0.5] * 3) for _ in range(20)]
    bad = []
    for _ in range(20):
        state, action = path(rng, [0.0, -1.0, -2.0, -3.0], 0.0, [-0.5] * 3)
        state[1:, 1] += 2.0
        bad.append((state, action))
    return Demonstrations(expert, episodes([*good, *bad]))


TAILO_QUICK = {
    **QUICK,
    "discount": 0.9,
    "first_iterations": 300,
    "discriminator_batch_size": 128,
    "negative_share": 0.5,
}


def test_tailo_weighs_a_start_by_what_follows_it():
    """Good and bad episodes start alike, so no weight of the state alone can tell their first actions apart."""
    data = missing_steps()
    unknown = dataclasses.replace(
        data.expert, transitions=data.expert.transitions._replace(action=np.full((72, 1), np.nan, np.float32))
    )
    data = Demonstrations(unknown, data.supplementary)
    method = TAILO(**TAILO_QUICK)
    weight = method.prepare(data, None).weight
    assert weight is not None
    assert (weight[:72] == 0).all()
    good, bad = weight[72:132:3], weight[132::3]
    assert good.min() > 3 * bad.max()
    myopic = TAILO(**{**TAILO_QUICK, "discount": 0.0}).prepare(data, None).weight
    assert myopic is not None
    assert myopic[72:132:3].min() < myopic[132::3].max()  # the check above can fail
    run = train.fit(method, data, iterations=600, log_every=300, progress=False)
    acts = run.policy.act_members(np.array([[[0.0, 0.0], [1.5, 0.0]]], np.float32))[0, :, 0]
    np.testing.assert_allclose(acts, 0.5, atol=0.15)


def test_tailo_never_reads_the_experts_actions():
    data = random_demonstrations()
    rows = data.expert.transitions
    other = dataclasses.replace(data.expert, transitions=rows._replace(action=np.full_like(rows.action, np.nan)))
    first = fit_tiny("tailo", data=data)
    second = fit_tiny("tailo", data=Demonstrations(other, data.supplementary))
    assert first.metrics == second.metrics
    for name, array in (first.state or {}).items():
        np.testing.assert_array_equal(array, (second.state or {})[name], err_msg=name)
    assert not TAILO.needs_expert_actions


# Prepared once, kept, and continued.


def spy_on_stages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The stages and positions at which discriminators advance."""
    seen: list[tuple[str, int]] = []
    advance = pretraining.Pretraining.advance

    def spy(self: Any, position: int, steps: int) -> Any:
        seen.append((type(self).__name__, position))
        return advance(self, position, steps)

    monkeypatch.setattr(pretraining.Pretraining, "advance", spy)
    return seen


def test_settings_of_the_cloner_and_forms_share_what_is_prepared(monkeypatch: pytest.MonkeyPatch):
    seen = spy_on_stages(monkeypatch)
    weights = [
        tiny("ilid", **changes).prepare(random_demonstrations(), None).weight
        for changes in ({}, {"learning_rate": 1.0}, {"form": "code"})
    ]
    assert len(seen) == 2
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])  # type: ignore[arg-type]
    tiny("tailo").prepare(random_demonstrations(), None)
    tiny("tailo", kappa=2.0, discount=0.5).prepare(random_demonstrations(), None)
    assert len(seen) == 4
    tiny("ilid", sigma=0.35).prepare(random_demonstrations(), None)
    tiny("ilid").prepare(random_demonstrations(seed=3), None)
    assert len(seen) == 8


@pytest.mark.parametrize(("name", "number"), [("ilid", "sigma"), ("tailo", "kappa"), ("tailo", "discount")])
def test_members_that_share_data_share_what_is_prepared(name: str, number: str):
    settings = [tiny(name, **{number: value}) for value in (0.3, 0.4)]
    with pytest.raises(InputError, match="call fit once per class"):
        train.fit(settings, random_demonstrations(), iterations=5, progress=False)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("name", STAGED)
def test_killed_while_preparing_and_resumed(name: str, stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Chunks of one iteration, each with a checkpoint: it continues where it was killed, to the same bytes."""
    monkeypatch.setattr(pretraining, "CHUNK", 1)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", -1.0)
    seen = spy_on_stages(monkeypatch)
    fit_tiny(name, out=tmp_path / "whole")
    assert len(seen) == 10
    on_log, logged = Bar.on_log, []

    def killing(self: Bar, position: int, metrics: Any) -> None:
        logged.append(position)
        if len(logged) == 5 * stage + 4:
            raise Killed
        on_log(self, position, metrics)

    prepared.KNOWN.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "on_log", killing)
        with pytest.raises(Killed):
            fit_tiny(name, out=tmp_path / "cut")
    assert not (tmp_path / "cut/scores/0" / PREPARED).exists()
    seen.clear()
    fit_tiny(name, out=tmp_path / "cut", resume=True)
    assert 1 <= seen[0][1] <= 4  # not from zero
    assert len(seen) < 10 - 5 * stage
    assert folder_bytes(tmp_path / "cut") == folder_bytes(tmp_path / "whole")
    assert tree(tmp_path / "cut/scores") == tree(tmp_path / "whole/scores")
    assert list(tree(tmp_path / "cut/scores")) == [f"0/{PREPARED}"]
    assert read_results(tmp_path / "cut").unread == ()  # a report knows the file


def test_what_was_prepared_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data, place = random_demonstrations(), tmp_path / "0"
    first = tiny("ilid").prepare(data, place).weight
    content = tree(place)
    seen = spy_on_stages(monkeypatch)
    prepared.KNOWN.clear()
    np.testing.assert_array_equal(tiny("ilid").prepare(data, place).weight, first)  # type: ignore[arg-type]
    assert seen == []
    (place / PREPARED).write_bytes((place / PREPARED).read_bytes()[:-3])  # damaged: made again
    np.testing.assert_array_equal(tiny("ilid").prepare(data, place).weight, first)  # type: ignore[arg-type]
    assert len(seen) == 2
    assert tree(place) == content
    key = prepared.key_of(data, "ilid", 0.4, 20, 1e-5, 5, 16, (8, 8))
    write_prepared(place, key, {"likeness": np.ones(3)})  # not what the method writes: made again as well
    np.testing.assert_array_equal(tiny("ilid").prepare(data, place).weight, first)  # type: ignore[arg-type]
    assert tree(place) == content
    with pytest.raises(InputError, match="prepared from other data or settings"):
        tiny("ilid", sigma=0.3).prepare(data, place)


def test_held_out_rows_are_left_out_of_what_was_weighed():
    data = Demonstrations(random_dataset(0, 60), random_dataset(1, 60))
    for name in STAGED:
        run = fit_tiny(name, data=data, held_out=0.5)
        assert all(np.isfinite(row["held_out_loss"]) for row in run.metrics)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ILID(discriminator_learning_rate=1e30, hidden=(8, 8), discriminator_iterations=3), "states: diverged"),
        (TAILO(discount=1.0), "discount: 1.0 is not a number from 0 to"),
        (ILID(sigma=1.5), "sigma: 1.5 is not a number from 0 to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(method: Any, expected: str):
    with pytest.raises(InputError, match=expected):
        train.fit(method, random_demonstrations(), iterations=5, progress=False)
    with pytest.raises(InputError, match="needs a supplementary dataset"):
        method.prepare(Demonstrations(random_dataset(0, 30)), None)
