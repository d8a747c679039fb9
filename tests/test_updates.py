"""One full update of every algorithm against float64 NumPy: parameters, both Adam moments and metrics.

Run in float64, step and `numpy_reference` agree to 1e-9, so any term that is missing, doubled or read from the wrong
network shows; that it shows is tested by breaking the code. Run in float32, they agree to float32's precision.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import optax
import pytest

from demosift.algorithms import (
    BC,
    DWBC,
    NBCU,
    SMODICE,
    WBCU,
    Batch,
    DemoDICE,
    LobsDICE,
    WBCUTwoStage,
    bc,
    demodice,
    dwbc,
    lobsdice,
    smodice,
    wbcu,
)
from demosift.learning import cloning, critic, discriminator, losses
from demosift.learning.learner import Learner, descend, start
from demosift.learning.networks import Categorical, Layer, Perceptron, TanhGaussian
from demosift.types import Transitions

ROWS, OBS, ACTION, HIDDEN = 8, 3, 2, (5, 4)
KEY = 7
EXACT = 1e-9  # float64 on both sides; sums of at most 24 rows
BROKEN = 1e-5  # how far off a broken update is, at the least: it would show in float32 too

SIZES: dict[str, Any] = {"batch_size": ROWS, "hidden": HIDDEN}
RATES: dict[str, Any] = {
    "learning_rate": 0.05,
    "discriminator_learning_rate": 0.03,
}  # large and unequal: a mix-up shows


class Case(NamedTuple):
    algorithm: Any
    iteration: int = 0
    discrete: bool = False


CASES = {
    "bc": Case(BC(learning_rate=0.05, **SIZES)),
    "bc, discrete": Case(BC(learning_rate=0.05, **SIZES), discrete=True),
    "nbcu": Case(NBCU(learning_rate=0.05, **SIZES)),
    "wbcu": Case(WBCU(gradient_penalty=2.0, threshold=0.6, **RATES, **SIZES)),
    "wbcu, as the paper": Case(
        WBCU(gradient_penalty=10.0, threshold=0.6, ratio="exact", penalty="probability", **RATES, **SIZES)
    ),
    "wbcu, discrete": Case(WBCU(**RATES, **SIZES), discrete=True),
    "two-stage, discriminator": Case(WBCUTwoStage(discriminator_iterations=3, **RATES, **SIZES), iteration=2),
    "two-stage, policy": Case(WBCUTwoStage(discriminator_iterations=3, threshold=0.6, **RATES, **SIZES), iteration=3),
    "demodice": Case(DemoDICE(alpha=0.3, discount=0.8, nu_penalty=0.3, critic_learning_rate=0.02, **RATES, **SIZES)),
    "demodice, discrete": Case(DemoDICE(critic_learning_rate=0.02, **RATES, **SIZES), discrete=True),
    "smodice, discriminator": Case(SMODICE(**RATES, **SIZES), iteration=3_999),
    "smodice": Case(SMODICE(discount=0.8, critic_decay=0.2, critic_learning_rate=0.02, **RATES, **SIZES), 4_000),
    "smodice, chi-square": Case(
        SMODICE(divergence="chi-square", discount=0.8, critic_learning_rate=0.02, **RATES, **SIZES), 4_000
    ),
    "smodice, discrete": Case(SMODICE(critic_learning_rate=0.02, **RATES, **SIZES), 4_000, discrete=True),
    "lobsdice": Case(LobsDICE(alpha=0.3, discount=0.8, nu_penalty=0.3, critic_learning_rate=0.02, **RATES, **SIZES)),
    "lobsdice, discrete": Case(LobsDICE(critic_learning_rate=0.02, **RATES, **SIZES), discrete=True),
    "dwbc, policy only": Case(DWBC(**RATES, **SIZES), iteration=98),
    "dwbc": Case(DWBC(weight_decay=0.3, **RATES, **SIZES), iteration=99),
    "dwbc, discrete": Case(DWBC(**RATES, **SIZES), iteration=199, discrete=True),
}


def make_rows(rng: np.random.Generator, discrete: bool) -> Transitions:
    """Rows unlike those of the other sets, with saturated actions and terminals among them."""
    action: Any = rng.uniform(-1.0, 1.0, (ROWS, ACTION))
    action[0, 0], action[1, 1] = 1.0, -1.0
    if discrete:
        action = np.eye(ACTION, dtype=np.int8)[rng.integers(ACTION, size=ROWS)]
    obs, next_obs = rng.normal(size=(2, ROWS, OBS))
    return Transitions(obs, action, rng.normal(size=ROWS), next_obs, rng.permutation(ROWS) < 3)


def make_network(
    rng: np.random.Generator, sizes: tuple[int, ...], last_bias: bool = True, last: float = 1.0
) -> Perceptron:
    """Unlike an initialised network, none of its biases is zero. `last` scales the last layer."""
    layers: list[Any] = [
        Layer(rng.normal(size=pair) / np.sqrt(pair[0]), jnp.asarray(0.5 * rng.normal(size=pair[1])))
        for pair in itertools.pairwise(sizes)
    ]
    kernel, bias = layers.pop()
    return (*layers, Layer(last * kernel, bias if last_bias else None))


def make_learner(rng: np.random.Generator, params: Any) -> Learner:
    """In the middle of a run: moments that keep the step from being a mere sign, as Adam's first one is."""
    mu = jax.tree.map(lambda p: 0.1 * rng.normal(size=p.shape), params)
    nu = jax.tree.map(lambda p: rng.uniform(0.01, 0.1, p.shape), params)
    return Learner(params, optax.ScaleByAdamState(np.asarray(3, np.int32), mu, nu))  # type: ignore[arg-type]


def make(case: Case, dtype: Any = np.float64) -> tuple[Any, Batch]:
    rng = np.random.default_rng(25)  # a draw that reaches every clip and branch: tested below
    sets = [make_rows(rng, case.discrete) for _ in range(4)]
    outputs = ACTION if case.discrete else 2 * ACTION
    layers = make_network(rng, (OBS, *HIDDEN, outputs), last=6.0)
    limit = 9.0 if isinstance(case.algorithm, DWBC) else 7.0
    learners: list[Any] = [make_learner(rng, Categorical(layers) if case.discrete else TanhGaussian(layers, limit))]
    inputs = OBS + ACTION
    match case.algorithm:
        case WBCU() | WBCUTwoStage():
            learners.append(make_learner(rng, make_network(rng, (inputs, *HIDDEN, 1), last=2.0)))
            state = wbcu.State(*learners)
        case DemoDICE():
            learners.append(make_learner(rng, make_network(rng, (inputs, *HIDDEN, 1), last_bias=False, last=2.0)))
            learners.append(make_learner(rng, make_network(rng, (OBS, *HIDDEN, 1), last_bias=False)))
            state = demodice.State(*learners)
        case SMODICE():
            learners += [make_learner(rng, make_network(rng, (OBS, *HIDDEN, 1))) for _ in range(2)]
            state = demodice.State(*learners)
        case LobsDICE():
            for size, last in ((2 * OBS, 2.0), (OBS, 1.0)):
                learners.append(make_learner(rng, make_network(rng, (size, *HIDDEN, 1), last_bias=False, last=last)))
            state = demodice.State(*learners)
        case DWBC():
            sample, likelihood = (make_network(rng, (size, 3))[0] for size in (inputs, 1 if case.discrete else ACTION))
            joint = make_network(rng, (6, 4, 1), last=5.0)
            learners.append(make_learner(rng, dwbc.Discriminator(sample, likelihood, joint)))
            state = dwbc.State(*learners)
        case _:
            state = bc.State(*learners)

    amounts: Any = rng.random((2, ROWS, 1))
    batch = Batch(*sets, uniform=amounts)

    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype if leaf.dtype == np.float64 else leaf.dtype)

    return jax.tree.map(cast, (state, batch))


def float64(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def leaves_after(
    learner: Learner, gradient: Any, learning_rate: float, epsilon: float = 1e-7, decay: float = 0.0
) -> Any:
    """Parameters and moments after an Adam step, leaf by leaf."""
    params, mu, nu = (jax.tree.leaves(float64(t)) for t in (learner.params, learner.moments.mu, learner.moments.nu))
    gradients = [g + decay * p for g, p in zip(jax.tree.leaves(gradient), params, strict=True)]
    count = int(np.asarray(learner.moments.count)) + 1
    return [
        reference.adam(*leaf, count, learning_rate, epsilon) for leaf in zip(params, gradients, mu, nu, strict=True)
    ]


def leaves_of(learner: Learner) -> Any:
    trees = (learner.params, learner.moments.mu, learner.moments.nu)
    return list(zip(*(jax.tree.leaves(float64(tree)) for tree in trees), strict=True))


def weight_metrics(weight: np.ndarray) -> dict[str, Any]:
    return {"weight_mean": np.mean(weight), "effective_share": np.mean(weight) ** 2 / np.mean(weight**2)}


def accuracy(expert_right: np.ndarray, other_right: np.ndarray) -> float:
    return float(np.mean(expert_right) + np.mean(other_right)) / 2.0


def expected(case: Case, state: Any, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every learner's leaves after the step, by name, and the metrics, in float64 NumPy."""
    a, dtype = case.algorithm, batch.union.obs.dtype
    expert, union, supplementary, initial, (discriminator_amount, critic_amount), *_ = float64(batch)
    new = {name: leaves_of(getattr(state, name)) for name in state._fields}
    policy = float64(state.policy.params).layers

    def clone(rows: Transitions, weight: np.ndarray) -> dict[str, Any]:
        loss, gradient = reference.cloning_loss(policy, rows.obs, rows.action, weight, case.discrete)
        new["policy"] = leaves_after(state.policy, gradient, a.learning_rate)
        return {"policy_loss": loss}

    if isinstance(a, BC | NBCU):
        return new, clone(expert if isinstance(a, BC) else union, np.ones(ROWS))

    network = float64(state.discriminator.params)
    x_expert = np.concatenate([expert.obs, expert.action], axis=1)
    x_union = np.concatenate([union.obs, union.action], axis=1)

    if isinstance(a, DWBC):
        other = supplementary
        obs, action = np.concatenate([expert.obs, other.obs]), np.concatenate([expert.action, other.action])
        x = np.concatenate([obs, action], axis=1)
        # The clip of saturated actions, 1 - 1e-7, is rounded to the working precision.
        margin = 1.0 - float(dtype.type(1.0 - 1e-7))
        output = reference.forward(policy, obs)[-1]
        log_prob, _ = (
            reference.categorical(output, action)
            if case.discrete
            else reference.tanh_gaussian_inside(output, action, margin)
        )
        d_expert, d_other = np.split(reference.dwbc_likeness(network, x, log_prob), 2)
        w_expert, w_other = reference.dwbc_weights(d_expert, d_other, a.alpha, a.eta)
        policy_loss, gradient = reference.dwbc_policy_loss(
            policy, obs, action, np.concatenate([w_expert, w_other]), case.discrete, margin
        )
        new["policy"] = leaves_after(state.policy, gradient, a.learning_rate, epsilon=1e-8, decay=a.weight_decay)
        discriminator_loss, gradient = reference.dwbc_discriminator_loss(network, x, log_prob, a.eta)
        if case.iteration in (99, 199):
            new["discriminator"] = leaves_after(
                state.discriminator, gradient, a.discriminator_learning_rate, epsilon=1e-8
            )
        return new, {
            "policy_loss": policy_loss,
            "discriminator_loss": discriminator_loss,
            "discriminator_accuracy": accuracy(d_expert > 0.5, d_other < 0.5),
            **weight_metrics(w_other),
        }

    if isinstance(a, SMODICE):
        return expected_of_smodice(case, state, new, float64(batch), clone)
    if isinstance(a, LobsDICE):  # pairs of states in place of (s, a), and only supplementary rows in the union's place
        x_expert, x_union = (np.concatenate([rows.obs, rows.next_obs], axis=1) for rows in (expert, supplementary))
        union = supplementary
    z_expert = reference.forward(network, x_expert)[-1][:, 0]
    z_union = reference.forward(network, x_union)[-1][:, 0]
    loss, gradient = reference.discriminator_loss(
        network, x_expert, x_union, discriminator_amount, a.gradient_penalty, getattr(a, "penalty", "logit")
    )
    discriminator = leaves_after(state.discriminator, gradient, a.discriminator_learning_rate)
    metrics = {
        "discriminator_loss": loss,
        "discriminator_accuracy": accuracy(z_expert > 0.0, z_union < 0.0),
    }

    if isinstance(a, DemoDICE | LobsDICE):
        nu = float64(state.critic.params)
        reward = -reference.smoothed_cost(z_union)
        states = (expert.obs, expert.next_obs), (union.obs, union.next_obs)
        metrics["critic_loss"], gradient = reference.critic_loss(
            nu, reward, *states, initial.obs, union.terminal, critic_amount, a.discount, a.alpha, a.nu_penalty
        )
        new["critic"] = leaves_after(state.critic, gradient, a.critic_learning_rate)
        gain = reference.advantage(nu, reward, union.obs, union.next_obs, union.terminal, a.discount)
        weight = reference.normalised_weight(gain, a.alpha)
    else:
        ratio = {"smoothed": reference.smoothed_ratio, "exact": reference.exact_ratio}[a.ratio](z_union)
        weight = ratio * (ratio >= a.threshold)
    metrics |= weight_metrics(weight)
    if isinstance(a, WBCUTwoStage):
        if case.iteration < a.discriminator_iterations:
            return {**new, "discriminator": discriminator}, {**metrics, "policy_loss": np.nan}
        unknown = {"discriminator_loss": np.nan, "discriminator_accuracy": np.nan}
        return new, {**metrics, **unknown, **clone(union, weight)}
    metrics |= clone(union, weight)
    return {**new, "discriminator": discriminator}, metrics


def expected_of_smodice(
    case: Case, state: Any, new: dict[str, Any], batch: Any, clone: Callable
) -> tuple[dict[str, Any], dict[str, Any]]:
    a, rows, network = case.algorithm, batch.supplementary, float64(state.discriminator.params)
    names = ("policy_loss", "critic_loss", "weight_mean", "effective_share")
    metrics = dict.fromkeys((*names, "discriminator_loss", "discriminator_accuracy"), np.nan)
    z_expert, z = (reference.forward(network, each.obs)[-1][:, 0] for each in (batch.expert, rows))
    if case.iteration < a.discriminator_iterations:
        amount, settings = batch.uniform[0], (a.gradient_penalty, "value", reference.expert_mixes)
        loss, gradient = reference.discriminator_loss(network, batch.expert.obs, rows.obs, amount, *settings)
        new["discriminator"] = leaves_after(state.discriminator, gradient, a.discriminator_learning_rate)
        told = {"discriminator_loss": loss, "discriminator_accuracy": accuracy(z_expert > 0.0, z < 0.0)}
        return new, {**metrics, **told}
    value, states = float64(state.critic.params), (rows.obs, rows.next_obs)
    rest = (rows.terminal, a.discount)
    critic_loss, gradient = reference.value_loss(value, z, states, batch.initial.obs, *rest, a.divergence)
    new["critic"] = leaves_after(state.critic, gradient, a.critic_learning_rate, decay=a.critic_decay)
    gain = reference.advantage(value, z, *states, *rest)
    weight = reference.normalised_weight(gain, 0.0) if a.divergence == "kl" else np.clip(gain + 1.0, 0.0, None)
    return new, {**metrics, "critic_loss": critic_loss, **weight_metrics(weight), **clone(rows, weight)}


def take_step(case: Case, state: Any, batch: Batch, anew: bool = False) -> tuple[Any, dict[str, Any]]:
    """Programs are shared between tests, unless traced anew to see code that has been changed."""
    step = type(case.algorithm).step
    compiled = jax.jit(lambda *arguments: step(*arguments)) if anew else jax.jit(step)
    return compiled(case.algorithm, state, batch, jnp.asarray(case.iteration), jax.random.key(KEY))


def relative_difference(actual: Any, wanted: Any) -> float:
    """The largest deviation in an array, relative to its largest entry."""
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    if np.isnan(wanted).all():
        return 0.0 if np.isnan(actual).all() else np.inf
    assert actual.shape == wanted.shape
    return float(np.max(np.abs(actual - wanted)) / (np.max(np.abs(wanted)) + 1e-8))


def learner_difference(learner: Learner, wanted: Any) -> float:
    pairs = zip(leaves_of(learner), wanted, strict=True)
    return max(relative_difference(*pair) for leaves in pairs for pair in zip(*leaves, strict=True))


def difference(case: Case, outcome: tuple[Any, dict[str, Any]], wanted: tuple[dict[str, Any], dict[str, Any]]) -> float:
    state, metrics = outcome
    learners, numbers = wanted
    assert metrics.keys() == numbers.keys()
    assert set(state._fields) == learners.keys()
    learned = [learner_difference(getattr(state, name), learners[name]) for name in learners]
    # Schedules of two stages report their metrics as float32 in any precision.
    slack = 1e-2 if isinstance(case.algorithm, WBCUTwoStage | SMODICE) else 1.0
    return max(*learned, *(slack * relative_difference(metrics[name], numbers[name]) for name in numbers))


@pytest.fixture
def in_float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def wanted_update(name: str) -> tuple[Any, Batch, tuple[dict[str, Any], dict[str, Any]]]:
    """A case's state and batch in float64, and what its step should make of them."""
    case = CASES[name]
    state, batch = make(case)
    return state, batch, expected(case, state, batch)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", CASES)
def test_update_matches_numpy(name: str):
    case = CASES[name]
    state, batch, wanted = wanted_update(name)
    assert difference(case, take_step(case, state, batch), wanted) < EXACT


@pytest.mark.parametrize("name", ["wbcu", "demodice", "dwbc", "smodice"])
def test_update_matches_numpy_in_float32(name: str):
    """Sums of float32 products lose some 1e-7 of their largest terms, and terms cancel."""
    case = CASES[name]
    state, batch = make(case, np.float32)
    outcome = take_step(case, state, batch)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((outcome[0].policy.params, outcome[1])))
    assert difference(case, outcome, expected(case, state, batch)) < 1e-5


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["wbcu", "demodice", "dwbc"])
def test_first_update_moves_by_the_learning_rate(name: str):
    """From zero moments Adam's moments are 0.1 g and 0.001 g^2, and each parameter moves by -lr g / (|g| + epsilon)."""
    case = CASES[name]
    state, batch = make(case)
    state = type(state)(*(start(learner.params) for learner in state))
    outcome = take_step(case, state, batch)
    assert difference(case, outcome, expected(case, state, batch)) < EXACT
    for before, after, learning_rate, epsilon in zip(
        state,
        outcome[0],
        (0.05, 0.03, 0.02)[: len(state)],
        (1e-8 if name == "dwbc" else 1e-7,) * len(state),
        strict=True,
    ):
        assert int(after.moments.count) == 1
        for old, (new, mu, nu) in zip(jax.tree.leaves(float64(before.params)), leaves_of(after), strict=True):
            gradient = 10.0 * mu
            np.testing.assert_allclose(nu, 0.001 * gradient**2, rtol=1e-9)
            step = learning_rate * gradient / (np.abs(gradient) + epsilon)
            np.testing.assert_allclose(old - new, step, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("in_float64")
def test_the_data_reaches_every_branch():
    def both(condition: np.ndarray) -> bool:
        return bool(condition.any() and not condition.all())

    for name in ("wbcu", "demodice", "dwbc"):
        state, batch = float64(make(CASES[name]))
        for learner in state:
            network = getattr(learner.params, "layers", learner.params)
            if isinstance(network, dwbc.Discriminator):
                continue
            inputs = np.concatenate([batch.union.obs, batch.union.action], axis=1)[:, : network[0][0].shape[0]]
            assert all(both(hidden > 0) for hidden in reference.forward(network, inputs)[1:-1])
        assert both(batch.union.terminal)

    state, batch = float64(make(CASES["wbcu"]))
    mean, log_std = np.split(reference.forward(state.policy.params.layers, batch.union.obs)[-1], 2, axis=1)
    assert both(np.abs(mean) > 7.0)
    assert both(log_std > 2.0)
    assert both(log_std < -5.0)
    x = np.concatenate([batch.union.obs, batch.union.action], axis=1)
    assert both(reference.smoothed_ratio(reference.forward(state.discriminator.params, x)[-1]) >= 0.6)

    state, batch = float64(make(CASES["dwbc"]))
    obs, action = (np.concatenate(pair) for pair in zip(batch.expert[:2], batch.supplementary[:2], strict=True))
    output = reference.forward(state.policy.params.layers, obs)[-1]
    assert both(np.abs(output[:, :ACTION]) > 7.0)
    assert both(np.abs(output[:, :ACTION]) > 9.0)
    log_prob, _ = reference.tanh_gaussian_inside(output, action)
    assert both(log_prob < -20.0)
    assert both(log_prob > 10.0)
    c, *_ = reference.dwbc_forward(state.discriminator.params, np.concatenate([obs, action], axis=1), log_prob)
    assert both(c < 0.1)
    assert both(c > 0.9)
    assert both((c[:ROWS] > 0.1) & (c[:ROWS] < 0.9))
    assert both(c[ROWS:] < 0.5)


def detached(function: Callable) -> Callable:
    return lambda *arguments: jax.lax.stop_gradient(function(*arguments))


def late_discriminate(discriminator: Learner, batch: Batch, *arguments: Any):
    """As the code's, but the logits are those after the step."""
    after, _, metrics = wbcu_discriminate(discriminator, batch, *arguments)
    return after, wbcu_discriminate(after, batch, *arguments)[1], metrics


def swap_amounts(batch: Batch) -> Batch:
    return batch._replace(uniform=batch.uniform[::-1])


wbcu_discriminate = wbcu.discriminate
demodice_criticise = demodice.criticise
lobsdice_step = LobsDICE.step
between = losses.between_expert_and_union
penalty = losses.gradient_penalty

moments = TanhGaussian.moments

# name: case, where, what, by what. The module is the one whose global name the algorithm looks up.
MUTATIONS: dict[str, tuple[str, Any, str, Any]] = {
    "the weight is a column": ("wbcu", cloning, "weighted_loss", lambda w, log_prob: -jnp.mean(jnp.outer(w, log_prob))),
    "the loss has the other sign": ("nbcu", cloning, "weighted_loss", lambda w, log_prob: jnp.mean(w * log_prob)),
    "the expert set is cloned": ("nbcu", NBCU, "step", BC.step),
    "labels swapped": ("wbcu", discriminator, "discriminator_loss", lambda e, u: losses.discriminator_loss(u, e)),
    "penalty towards 0": ("wbcu", discriminator, "gradient_penalty", lambda r, s: penalty(r, s, 0.0)),
    "penalty on the probability": ("wbcu", discriminator, "PENALTY_RATES", {"logit": losses.probability_rate}),
    "penalty's rate detached": ("wbcu", discriminator, "PENALTY_RATES", {"logit": detached(losses.logit_rate)}),
    "mixes the other way": (
        "wbcu",
        discriminator,
        "between_expert_and_union",
        lambda amount, e, u: between(1.0 - amount, e, u),
    ),
    "mixed by the critic's amounts": (
        "wbcu",
        wbcu,
        "discriminate",
        lambda learner, batch, *rest: wbcu_discriminate(learner, swap_amounts(batch), *rest),
    ),
    "expert-union mixes only": (
        "wbcu",
        discriminator,
        "between_expert_and_union",
        lambda *mixed: between(*mixed)[:ROWS],
    ),
    "the ratio exact": ("wbcu", discriminator, "RATIOS", {"smoothed": losses.exact_ratio}),
    "no threshold": ("wbcu", wbcu, "ratio_weight", lambda z, ratio, threshold: losses.RATIOS[ratio](z)),
    "weights after the step": ("wbcu", wbcu, "discriminate", late_discriminate),
    "value not masked at terminals": (
        "demodice",
        critic,
        "advantage",
        lambda r, nu, next_nu, terminal, discount: r + discount * next_nu - nu,
    ),
    "the successor's value detached": (
        "demodice",
        critic,
        "advantage",
        lambda r, nu, next_nu, end, discount: r + discount * jnp.where(end, 0.0, jax.lax.stop_gradient(next_nu)) - nu,
    ),
    "critic's penalty towards 1": ("demodice", critic, "gradient_penalty", lambda r, s, target: penalty(r, s, 1.0)),
    "critic's mixes by the discriminator's amounts": (
        "demodice",
        demodice,
        "criticise",
        lambda learner, batch, *rest, **named: demodice_criticise(learner, swap_amounts(batch), *rest, **named),
    ),
    "weight not normalised": ("demodice", demodice, "normalised_weight", lambda a, k: jnp.exp((a - jnp.max(a)) / k)),
    "penalty on the smoothed logit": (
        "smodice, discriminator",
        discriminator,
        "PENALTY_RATES",
        {"exact logit": losses.logit_rate},
    ),
    "states mixed the other way": (
        "smodice, discriminator",
        smodice,
        "mix",
        lambda amount, e, u: losses.mix(amount, u, e),
    ),
    "the state's value not masked": (
        "smodice",
        smodice,
        "advantage",
        lambda r, v, next_v, terminal, discount: r + discount * next_v - v,
    ),
    "no decay of the value": ("smodice", smodice, "descend", lambda *a, weight_decay: descend(*a)),
    "the KL's value loss": ("smodice, chi-square", smodice, "VALUE_LOSSES", {"chi-square": losses.nu_loss}),
    "the KL's weight": ("smodice, chi-square", smodice, "WEIGHTS", {"chi-square": losses.normalised_weight}),
    "negative weights": ("smodice, chi-square", smodice, "WEIGHTS", {"chi-square": lambda gain: gain + 1.0}),
    "pairs in the wrong order": (
        "lobsdice",
        lobsdice,
        "state_pair",
        lambda rows: jnp.concatenate([rows.next_obs, rows.obs], axis=-1),
    ),
    "weight without alpha": ("lobsdice", lobsdice, "normalised_weight", lambda a, k: losses.normalised_weight(a, 1.0)),
    "the union in the pile's place": (
        "lobsdice",
        LobsDICE,
        "step",
        lambda self, state, batch, *rest: lobsdice_step(self, state, batch._replace(supplementary=batch.union), *rest),
    ),
    "nothing detached": ("dwbc", jax.lax, "stop_gradient", lambda x: x),
    "no weight decay": ("dwbc", cloning, "descend", lambda *a, epsilon, weight_decay=0.0: descend(*a, epsilon=epsilon)),
    "the source paper's other weight": (
        "dwbc",
        dwbc,
        "other_weight",
        lambda d: jnp.where(d < 0.5, 1.0, 1.0 / (1.0 - d)),
    ),
    "likeness not clipped": ("dwbc", dwbc, "DISCRIMINATOR_RANGE", (0.0, 1.0)),
    "log pi clipped at 20": ("dwbc", dwbc, "LOG_PROB_RANGE", (-20.0, 20.0)),
    "mean clipped at 7": (
        "dwbc",
        TanhGaussian,
        "moments",
        lambda policy, obs: moments(dataclasses.replace(policy, mean_limit=7.0), obs),
    ),
    "not positive-unlabelled": (
        "dwbc",
        dwbc,
        "positive_unlabelled_loss",
        lambda e, o, eta: -jnp.mean(jnp.log(e)) - jnp.mean(jnp.log1p(-o)),
    ),
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_update_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch):
    name, where, what, broken = MUTATIONS[mutation]
    case = CASES[name]
    state, batch, wanted = wanted_update(name)
    monkeypatch.setattr(where, what, broken)
    assert difference(case, take_step(case, state, batch, anew=True), wanted) > BROKEN


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("wbcu", "discriminator", "policy"),
        ("demodice", "discriminator", "policy"),
        ("demodice", "discriminator", "critic"),
        ("demodice", "critic", "policy"),
        ("smodice", "critic", "policy"),
        ("lobsdice", "discriminator", "critic"),
        ("lobsdice", "critic", "policy"),
        ("dwbc", "policy", "discriminator"),
        ("dwbc", "discriminator", "policy"),
    ],
)
def test_networks_step_from_the_same_networks(name: str, first: str, second: str):
    """Had the first network stepped before the second, the second's step would not be the one tested for above."""
    case = CASES[name]
    state, batch, (wanted, _) = wanted_update(name)
    params = jax.tree.structure(getattr(state, first).params)
    stepped = start(jax.tree.unflatten(params, [leaf for leaf, _, _ in wanted[first]]))
    late, _ = expected(case, state._replace(**{first: stepped}), batch)
    pairs = [pair for leaves in zip(late[second], wanted[second], strict=True) for pair in zip(*leaves, strict=True)]
    assert max(relative_difference(*pair) for pair in pairs) > BROKEN


@pytest.mark.usefixtures("in_float64")
def test_dwbc_discriminator_steps_every_hundredth_iteration():
    case = CASES["dwbc"]
    state, batch = make(case)
    for iteration, due in {0: False, 1: False, 98: False, 99: True, 100: False, 199: True, 200: False}.items():
        new, _ = take_step(case._replace(iteration=iteration), state, batch)
        assert int(new.policy.moments.count) == 4
        assert int(new.discriminator.moments.count) == (4 if due else 3)
        assert same_bits(new.discriminator, state.discriminator) is not due


def same_bits(a: Any, b: Any) -> bool:
    return all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.usefixtures("in_float64")
def test_two_stages():
    """Three steps of the discriminator alone, then the policy alone, with the weights given to all rows at once."""
    algorithm = WBCUTwoStage(discriminator_iterations=3, threshold=0.1, **RATES, **SIZES)
    state, batch = make(Case(algorithm))
    rng = np.random.default_rng(0)
    everything = Transitions(*(jnp.concatenate(fields) for fields in zip(*batch[:4], strict=True)))

    def advance(state: Any, iteration: int) -> tuple[Any, np.ndarray]:
        drawn = rng.integers(len(everything.reward), size=ROWS)
        union = jax.tree.map(lambda field: field[drawn], everything)
        return take_step(Case(algorithm, iteration), state, batch._replace(union=union))[0], drawn

    for iteration in range(3):
        new, _ = advance(state, iteration)
        assert same_bits(new.policy, state.policy)
        assert not same_bits(new.discriminator.params, state.discriminator.params)
        state = new

    obs, action = float64((everything.obs, everything.action))
    x = np.concatenate([obs, action], axis=1)
    ratio = reference.smoothed_ratio(reference.forward(float64(state.discriminator.params), x)[-1][:, 0])
    weight = np.where(ratio < algorithm.threshold, 0.0, ratio)
    assert 0 < np.count_nonzero(weight) < len(weight)
    np.testing.assert_allclose(algorithm.weigh(state, everything), weight, rtol=1e-9)
    for iteration in range(3, 6):
        new, drawn = advance(state, iteration)
        assert same_bits(new.discriminator, state.discriminator)
        layers = float64(state.policy.params).layers
        for weights, matches in ((weight[drawn], True), (weight[drawn[::-1]], False)):
            _, gradient = reference.cloning_loss(layers, obs[drawn], action[drawn], weights)
            wanted = leaves_after(state.policy, gradient, algorithm.learning_rate)
            assert (learner_difference(new.policy, wanted) < EXACT) is matches
        state = new


WEIGHED = ["bc", "nbcu", "wbcu", "wbcu, as the paper", "demodice", "smodice", "smodice, chi-square", "lobsdice"]
WEIGHED += ["dwbc", "dwbc, discrete"]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", WEIGHED)
def test_weigh(name: str):
    """The weights a state gives to rows are those of its step, those of DICE methods up to a normalising constant."""
    case = CASES[name]
    state, batch, (_, metrics) = wanted_update(name)
    rows = batch.supplementary if isinstance(case.algorithm, DWBC | SMODICE | LobsDICE) else batch.union
    weight = np.asarray(case.algorithm.weigh(state, rows))
    assert weight.shape == (ROWS,)
    if isinstance(case.algorithm, DemoDICE | LobsDICE) or name == "smodice":
        weight = weight / np.mean(weight)
    for key, number in weight_metrics(weight).items():
        np.testing.assert_allclose(number, metrics.get(key, 1.0), rtol=1e-9)


@pytest.mark.parametrize("name", ["bc", "wbcu", "demodice", "lobsdice", "dwbc"])
def test_epsilon_of_adam(name: str, monkeypatch: pytest.MonkeyPatch):
    """Keras's where the authors used TensorFlow, PyTorch's for DWBC: too small to show in the updates above."""
    epsilons = []

    def spy(**settings: Any):
        epsilons.append(settings["eps"])
        return adam(**settings)

    adam = optax.scale_by_adam
    case = CASES[name]
    state, batch = make(case, np.float32)
    monkeypatch.setattr(optax, "scale_by_adam", spy)
    jax.eval_shape(lambda *rest: case.algorithm.step(*rest), state, batch, jnp.asarray(0), jax.random.key(0))
    assert epsilons == [1e-8 if name == "dwbc" else 1e-7] * len(state)


def reference_losses() -> dict[str, tuple[Any, Callable[[Any], tuple[float, Any]]]]:
    """A network and a loss of it, with its gradient, for everything the reference differentiates by hand."""
    amount = np.random.default_rng(1).random((ROWS, 1))
    (wbcu_state, batch), (demodice_state, _), (dwbc_state, _), (discrete_state, discrete_batch) = (
        float64(make(CASES[name])) for name in ("wbcu", "demodice", "dwbc", "bc, discrete")
    )
    expert, union, _, initial, *_ = batch
    x_expert, x_union = (np.concatenate([rows.obs, rows.action], axis=1) for rows in (expert, union))
    states = (expert.obs, expert.next_obs), (union.obs, union.next_obs)
    layers, weight = wbcu_state.policy.params.layers, np.arange(1.0, ROWS + 1.0)
    log_prob = np.concatenate([union.obs, expert.obs])[:, :ACTION]
    return {
        **{
            f"discriminator, {of}": (
                wbcu_state.discriminator.params,
                functools.partial(
                    reference.discriminator_loss,
                    x_expert=x_expert,
                    x_union=x_union,
                    amount=amount,
                    coefficient=3.0,
                    of=of,
                ),
            )
            for of in ("logit", "probability")
        },
        "critic": (
            demodice_state.critic.params,
            lambda nu: reference.critic_loss(
                nu, union.reward, *states, initial.obs, union.terminal, amount, 0.8, 0.3, 2.0
            ),
        ),
        **{
            f"value, {of}": (
                demodice_state.critic.params,
                lambda v, of=of: reference.value_loss(v, union.reward, states[1], initial.obs, union.terminal, 0.8, of),
            )
            for of in ("kl", "chi-square")
        },
        "cloning": (layers, lambda p: reference.cloning_loss(p, union.obs, union.action, weight)),
        "cloning, discrete": (
            discrete_state.policy.params.layers,
            lambda p: reference.cloning_loss(p, union.obs, discrete_batch.union.action, weight, discrete=True),
        ),
        "dwbc policy": (layers, lambda p: reference.dwbc_policy_loss(p, union.obs, union.action, weight, False, 1e-7)),
        "dwbc discriminator": (
            dwbc_state.discriminator.params,
            lambda d: reference.dwbc_discriminator_loss(d, np.concatenate([x_union, x_expert]), 20 * log_prob, 0.5),
        ),
    }


@pytest.mark.usefixtures("in_float64")
def test_reference_gradients_are_finite_differences():
    """The hand-made gradients against central differences of the hand-made losses, along three directions each."""
    rng = np.random.default_rng(2)
    for name, (network, loss) in reference_losses().items():
        leaves, structure = jax.tree.flatten(network)
        gradient = jax.tree.leaves(loss(network)[1])
        for _ in range(3):
            direction = [rng.normal(size=leaf.shape) for leaf in leaves]

            def along(amount: float, leaves=leaves, structure=structure, direction=direction, loss=loss) -> float:
                moved = [leaf + amount * way for leaf, way in zip(leaves, direction, strict=True)]
                return loss(jax.tree.unflatten(structure, moved))[0]

            rate = (along(1e-6) - along(-1e-6)) / 2e-6
            wanted = sum(np.sum(g * way) for g, way in zip(gradient, direction, strict=True))
            np.testing.assert_allclose(wanted, rate, rtol=1e-6, err_msg=name)
