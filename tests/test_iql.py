"""Implicit Q-learning: its losses, one full update in NumPy, and a chain whose answer is known."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import optax
import pytest
from conftest import fit_tiny, random_demonstrations, tiny
from test_updates import (
    ACTION,
    BROKEN,
    EXACT,
    HIDDEN,
    OBS,
    ROWS,
    float64,
    in_float64,  # noqa: F401
    learner_difference,
    leaves_after,
    make_learner,
    make_network,
    make_rows,
    relative_difference,
    weight_metrics,
)

from demosift.algorithms import IQL, NBCU, OTR, SEABO, iql, seabo
from demosift.learning import cloning
from demosift.learning import fit as train
from demosift.learning.algorithm import Batch
from demosift.learning.cloning import Cloner
from demosift.learning.networks import Categorical, TanhGaussian
from demosift.types import Dataset, Demonstrations, InputError, Transitions

# Closed forms.


def test_the_expectile_of_two_values():
    """tau (1 - v) = (1 - tau) v, so v = tau for values 0 and 1: there the loss has no slope, and only there."""
    q = jnp.array([0.0, 1.0])
    slope = jax.grad(lambda v, tau: iql.expectile_loss(q - v, tau))
    for tau in (0.5, 0.7, 0.9):
        assert float(slope(tau, tau)) == pytest.approx(0.0, abs=1e-6)
        assert float(slope(tau + 0.05, tau)) > 0.01
        assert float(slope(tau - 0.05, tau)) < -0.01
    # By hand: (0.3 * 4 + 0.7 * 9)/2.
    assert float(iql.expectile_loss(jnp.array([-2.0, 3.0]), 0.7)) == pytest.approx(3.75)


def test_weights_and_targets_by_hand():
    weight = iql.advantage_weight(jnp.array([0.0, 0.5, -1.0, 5.0]), 3.0)
    np.testing.assert_allclose(weight, [1.0, np.exp(1.5), np.exp(-3.0), 100.0], rtol=1e-6)
    ends = jnp.array([False, True])
    np.testing.assert_allclose(iql.bellman_target(jnp.ones(2), jnp.full(2, 10.0), ends, 0.9), [10.0, 1.0])


# One update.

SIZES: dict[str, Any] = {"batch_size": ROWS, "hidden": HIDDEN}
# Unequal and large, so that a mix-up shows; the fourth iteration of eight has half of the learning rate.
NUMBERS: dict[str, Any] = {
    "expectile": 0.8,
    "temperature": 4.0,
    "discount": 0.9,
    "target_rate": 0.1,
    "bias": 0.3,
    "learning_rate": 0.05,
    "critic_learning_rate": 0.03,
    "cloner": Cloner(rate_schedule="cosine", horizon=8),
}
ITERATION, RATE = 4, 0.025


class Case(NamedTuple):
    algorithm: Any
    discrete: bool = False


CASES = {
    "iql": Case(IQL(**NUMBERS, **SIZES)),
    "iql, discrete": Case(IQL(**NUMBERS, **SIZES), discrete=True),
    "seabo": Case(SEABO(alpha=2.0, beta=0.7, **NUMBERS, **SIZES)),
    "otr": Case(OTR(**NUMBERS, **SIZES)),
}


def make(case: Case) -> tuple[iql.State, Batch]:
    rng = np.random.default_rng(0)  # a draw whose advantages have both signs, and one weight is cut
    sets = [make_rows(rng, case.discrete) for _ in range(4)]
    layers = make_network(rng, (OBS, *HIDDEN, ACTION if case.discrete else 2 * ACTION))
    policy = make_learner(rng, Categorical(layers) if case.discrete else TanhGaussian(layers))
    value = make_learner(rng, make_network(rng, (OBS, *HIDDEN, 1)))
    twins, targets = (tuple(make_network(rng, (OBS + ACTION, *HIDDEN, 1), last=2.0) for _ in "12") for _ in "12")
    amounts: Any = rng.random((2, ROWS, 1))
    state = iql.State(policy, value, make_learner(rng, twins), targets)  # type: ignore[arg-type]
    return jax.tree.map(jnp.asarray, (state, Batch(*sets, uniform=amounts)))


def expected(case: Case, state: iql.State, batch: Batch) -> tuple[dict[str, Any], dict[str, float]]:
    """The state after the step and the metrics, in float64 NumPy and in the authors' order."""
    a, rows = case.algorithm, float64(batch.union)
    reward = (a.alpha * np.exp(-a.beta * rows.reward) if isinstance(a, SEABO) else rows.reward) - 0.3
    x = np.concatenate([rows.obs, rows.action], axis=1)
    adam = {"epsilon": 1e-8}
    q = np.min([reference.forward(net, x)[-1][:, 0] for net in float64(state.targets)], axis=0)
    value_loss, gradient = reference.expectile_loss(float64(state.value.params), rows.obs, q, a.expectile)
    value = leaves_after(state.value, gradient, a.critic_learning_rate, **adam)
    structure = jax.tree.structure(state.value.params)
    new_v = jax.tree.unflatten(structure, [leaf for leaf, _, _ in value])
    v, next_v = (reference.forward(new_v, obs)[-1][:, 0] for obs in (rows.obs, rows.next_obs))
    weight = np.minimum(np.exp(a.temperature * (q - v)), 100.0)
    layers = float64(state.policy.params).layers
    policy_loss, gradient = reference.cloning_loss(layers, rows.obs, rows.action, weight, case.discrete)
    policy = leaves_after(state.policy, gradient, RATE, **adam)
    target = reward + a.discount * (1.0 - rows.terminal) * next_v
    each = [reference.squared_loss(net, x, target) for net in float64(state.critics.params)]
    critics = leaves_after(state.critics, [g for _, g in each], a.critic_learning_rate, **adam)
    targets = [
        0.9 * old + 0.1 * new for old, (new, _, _) in zip(jax.tree.leaves(float64(state.targets)), critics, strict=True)
    ]
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "critic_loss": sum(loss for loss, _ in each),
        "value_mean": v.mean(),
        "reward_mean": reward.mean(),
        **weight_metrics(weight),
    }
    return {"policy": policy, "value": value, "critics": critics, "targets": targets}, metrics


def difference(case: Case, state: iql.State, batch: Batch) -> float:
    """How far a step, compiled anew, is from NumPy's: the worst of all arrays and metrics."""
    step = jax.jit(lambda *given: type(case.algorithm).step(*given))
    new, metrics = step(case.algorithm, state, batch, jnp.asarray(ITERATION), jax.random.key(0))
    wanted, numbers = expected(case, state, batch)
    assert metrics.keys() == numbers.keys()
    pairs = zip(jax.tree.leaves(new.targets), wanted["targets"], strict=True)
    return max(
        *(learner_difference(getattr(new, name), wanted[name]) for name in ("policy", "value", "critics")),
        *(relative_difference(*pair) for pair in pairs),
        *(relative_difference(metrics[name], numbers[name]) for name in numbers),
    )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", CASES)
def test_update_matches_numpy(name: str):
    state, batch = make(CASES[name])
    assert difference(CASES[name], state, batch) < EXACT
    weight = CASES[name].algorithm.weigh(state, batch.union)
    assert weight.shape == (ROWS,)
    assert 0 < float(weight.min()) < 1 < float(weight.max()) <= 100.0


learn, clone, target = iql.learn, iql.clone, iql.bellman_target


def first_value(setting: Any, state: iql.State, rows: Transitions, *rest: Any) -> Any:
    """As the code's, but the policy and the twins see V from before its step."""
    stale = state.value.params

    def old(network: Any, x: jax.Array) -> jax.Array:
        return iql_scalar(stale if len(x) == 2 * ROWS else network, x)

    iql.scalar, kept = old, iql.scalar
    try:
        return learn(setting, state, rows, *rest)
    finally:
        iql.scalar = kept


iql_scalar = iql.scalar
MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "the mean, not an expectile": (iql, "expectile_loss", lambda gap, tau: jnp.mean(gap**2)),
    "the other side of the expectile": (iql, "expectile_loss", lambda gap, tau: EXPECTILE(-gap, tau)),
    "the larger of the twins": (
        iql,
        "least",
        lambda critics, x: jnp.maximum(*(iql_scalar(critic, x) for critic in critics)),
    ),
    "values at terminals": (iql, "bellman_target", lambda r, v, ends, discount: r + discount * v),
    "the policy and the twins before V": (iql, "learn", first_value),
    "no limit of the weight": (iql, "advantage_weight", lambda gap, temperature: jnp.exp(temperature * gap)),
    "the rate does not fall": (cloning.Cloner, "rate", lambda self, rate, iteration: rate),
    "the twins instead of their targets": (
        iql,
        "learn",
        lambda setting, state, *rest: learn(setting, state._replace(targets=state.critics.params), *rest),
    ),
}
EXPECTILE: Callable = iql.expectile_loss


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_update_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch):
    where, what, broken = MUTATIONS[mutation]
    state, batch = make(CASES["iql"])
    monkeypatch.setattr(where, what, broken)
    assert difference(CASES["iql"], state, batch) > BROKEN


def test_epsilon_of_adam(monkeypatch: pytest.MonkeyPatch):
    """optax's, for all three that step."""
    epsilons, adam = [], optax.scale_by_adam

    def spy(**settings: Any) -> Any:
        epsilons.append(settings["eps"])
        return adam(**settings)

    state, batch = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype.kind == "f" else leaf, make(CASES["iql"])
    )
    monkeypatch.setattr(optax, "scale_by_adam", spy)
    jax.eval_shape(lambda *given: CASES["iql"].algorithm.step(*given), state, batch, jnp.asarray(0), jax.random.key(0))
    assert epsilons == [1e-8] * 3


# A chain: 0 - 1 - ... - 6, and the goal is 6. No episode leads from 0 to 6, and most rows lead away from the goal.

STATES, GOAL, LEFT, RIGHT = 7, 6, 0, 1
DISCOUNT, TAU, TEMPERATURE = 0.9, 0.9, 10.0
WALKS = [[0, 1, 2, 3, 2, 1, 0], [3, 2, 1, 0], [5, 4, 3], [5, 4, 3]]
TO_THE_GOAL = [3, 4, 5, 6]


def walk(*walks: list[int]) -> Dataset:
    here = np.concatenate([each[:-1] for each in walks])
    there = np.concatenate([each[1:] for each in walks])
    one_hot = np.eye(STATES, dtype=np.float32)
    action = np.eye(2, dtype=np.int8)[(there > here).astype(int)]
    goal = there == GOAL
    ends = np.cumsum([len(each) - 1 for each in walks]) - 1
    timeout = np.zeros(len(here), bool)
    timeout[ends] = True
    rows = Transitions(one_hot[here], action, goal.astype(np.float32), one_hot[there], goal)
    return Dataset(rows, timeout=timeout & ~goal)


CHAIN = Demonstrations(walk(TO_THE_GOAL), walk(*WALKS))


def tabular_values() -> tuple[np.ndarray, np.ndarray]:
    """V(s), and the advantages of the union's rows, at the fixed point of exact IQL."""
    union = CHAIN.union
    here, there = union.obs.argmax(axis=1), union.next_obs.argmax(axis=1)
    value, q = np.zeros(STATES), np.zeros(len(here))
    for _ in range(500):
        q = union.reward + DISCOUNT * ~union.terminal * value[there]
        for state in range(GOAL):
            own = q[here == state]
            for _ in range(50):
                share = np.abs(TAU - (own < value[state]))
                value[state] = (share * own).sum() / share.sum()
    return value, q - value[here]


FAST = {"hidden": (32, 32), "batch_size": 128, "learning_rate": 3e-3}
CRITICS: dict[str, Any] = {
    "critic_learning_rate": 1e-3,
    "target_rate": 0.05,
    "discount": DISCOUNT,
    "expectile": TAU,
    "temperature": TEMPERATURE,
}


@functools.cache
def solved(name: str) -> Any:
    algorithm = {
        "nbcu": NBCU(**FAST),
        "iql": IQL(scaling="none", **FAST, **CRITICS),
        "seabo": SEABO(beta=5.0, **FAST, **CRITICS),
        "seabo, steps cost": SEABO(beta=5.0, bias=1.0, **FAST, **CRITICS),
    }[name]
    return train.fit(algorithm, CHAIN, iterations=2_000, log_every=500, progress=False)


def choices(run: Any) -> list[int]:
    return run.policy.act_members(np.eye(STATES, dtype=np.float32)[None, :GOAL])[0].argmax(axis=-1).tolist()


def test_cloning_the_chain_walks_away_from_the_goal():
    assert choices(solved("nbcu")) == [RIGHT, LEFT, LEFT, LEFT, LEFT, LEFT]


@pytest.mark.parametrize("name", ["iql", "seabo, steps cost"])
def test_values_stitch_the_chain_together(name: str):
    """IQL by the reward at the goal; SEABO by the expert's three rows, and without the reward."""
    assert choices(solved(name)) == [RIGHT] * GOAL


def test_rewards_that_are_positive_circle_before_the_goal():
    """At 5 the goal ends the rewards: 1 there against 0.9 (1 + 0.9 ...) for going back to 4 and coming again."""
    assert choices(solved("seabo")) == [RIGHT] * (GOAL - 1) + [LEFT]


def test_values_are_those_of_the_table():
    value, advantage = tabular_values()
    assert value[3] == pytest.approx(0.75, abs=0.06)  # near 0.9^2, which is the best from there
    found = np.log(train.weigh(solved("iql"), CHAIN)[0]) / TEMPERATURE
    np.testing.assert_allclose(found, advantage, atol=0.05)
    assert np.ptp(advantage) > 0.25


# Rewards.


def test_returns_are_a_thousand_apart():
    data = random_demonstrations()
    scaled = IQL().prepare(data, None)
    returns = np.concatenate([part.returns() for part in (scaled.expert, scaled.supplementary) if part])
    assert returns.max() - returns.min() == pytest.approx(1_000, rel=1e-5)
    ratio = scaled.union.reward / data.union.reward
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert IQL(scaling="none").prepare(data, None) is data


def with_reward(data: Demonstrations, reward: float) -> Demonstrations:
    assert data.supplementary is not None
    parts = (data.expert, data.supplementary)
    rows = [part.transitions._replace(reward=np.full(len(part), reward, np.float32)) for part in parts]
    expert, pile = (dataclasses.replace(p, transitions=r) for p, r in zip(parts, rows, strict=True))
    return Demonstrations(expert, pile)


def test_data_without_rewards_are_refused(tmp_path: Any):
    data = random_demonstrations()
    with pytest.raises(InputError, match="every reward in the data is zero; seabo and otr"):
        fit_tiny("iql", data=with_reward(data, 0.0), out=tmp_path / "run")
    with pytest.raises(InputError, match="every episode has the same return"):
        fit_tiny("iql", data=with_reward(data, 1.0), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    train.fit(tiny("iql", scaling="none"), with_reward(data, 1.0), iterations=1, progress=False)


def test_members_may_differ_in_how_near_is_near():
    """The data hold distances, so members of one program make rewards of their own from them."""
    data, settings = random_demonstrations(), [tiny("seabo", beta=beta, alpha=2.0) for beta in (0.1, 3.0)]
    run = train.fit(settings, data, iterations=5, log_every=5, progress=False)
    assert run.metrics[0]["reward_mean"] > 1.2 * run.metrics[1]["reward_mean"]
    distance = seabo.distances(data)
    for row, beta in zip(run.metrics, (0.1, 3.0), strict=True):
        assert row["reward_mean"] == pytest.approx(np.mean(2.0 * np.exp(-beta * distance)), rel=0.2)
