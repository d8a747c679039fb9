"""Networks: initialisers, likelihoods with their clips, and the penalty's closed-form derivatives, in float64."""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from demosift.algorithms import DWBC, REGISTRY, WBCU, Batch, DemoDICE, dwbc, make_algorithm, wbcu
from demosift.learning.acting import numpy_policy
from demosift.learning.cloning import clone
from demosift.learning.critic import criticise
from demosift.learning.learner import start
from demosift.learning.networks import (
    FLOAT32_EPSILON,
    Categorical,
    Layer,
    Perceptron,
    TanhGaussian,
    apply,
    he_normal,
    init_perceptron,
    scalar,
    value_and_slope,
)
from demosift.types import InputError, Transitions


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def close(actual: Any, wanted: Any, rtol: float = 1e-10, atol: float = 1e-12):
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=rtol, atol=atol)


def make_network(rng: np.random.Generator, sizes: tuple[int, ...], last_bias: bool = True) -> Perceptron:
    layers = [
        Layer(jnp.asarray(rng.normal(size=pair)), jnp.asarray(rng.normal(size=pair[1])))
        for pair in itertools.pairwise(sizes)
    ]
    return (*layers[:-1], layers[-1] if last_bias else Layer(layers[-1].kernel, None))


HIDDEN = {0: (), 1: (6,), 2: (6, 5), 3: (6, 5, 4)}
SHAPES = [(depth, last_bias) for depth in HIDDEN for last_bias in (True, False)]


def values_and_slope(network: Perceptron, x: Any, at: Any):
    """As the penalised losses call it: plain values of some rows, values and slopes of others."""
    return scalar(network, x), *value_and_slope(network, at)


def plain_values_and_slope(network: Perceptron, x: Any, at: Any):
    """The same, left to JAX to differentiate."""
    slope = jax.vmap(jax.grad(lambda point: scalar(network, point[None])[0]))(at)
    return scalar(network, x), scalar(network, at), slope


@functools.cache
def passes(depth: int, last_bias: bool) -> Any:
    """Inputs, cotangents, and (outputs, cotangents of the inputs), by us and left to JAX."""
    rng = np.random.default_rng(depth)
    network = make_network(rng, (3, *HIDDEN[depth], 1), last_bias)
    inputs = (network, jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray(rng.normal(size=(7, 3))))
    bars = tuple(jnp.asarray(rng.normal(size=size)) for size in ((4,), (7,), (7, 3)))

    @jax.jit
    def both_ways(inputs: Any, bars: Any) -> Any:
        functions = (values_and_slope, plain_values_and_slope)
        return [(outputs, backward(bars)) for outputs, backward in (jax.vjp(f, *inputs) for f in functions)]

    return inputs, bars, *both_ways(inputs, bars)


@pytest.mark.parametrize(("depth", "last_bias"), SHAPES)
def test_value_and_slope_is_plain_differentiation(depth: int, last_bias: bool):
    """Values, slope, and the backward pass for cotangents on all three outputs: into the network, x and at."""
    _, _, ours, plain = passes(depth, last_bias)
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        close(mine, theirs)


@pytest.mark.parametrize(("depth", "last_bias"), SHAPES)
def test_value_and_slope_matches_numpy(depth: int, last_bias: bool):
    """Each of the three cotangents counts: without it the gradient differs."""
    (network, x, at), bars, ours, _ = jax.tree.map(np.asarray, passes(depth, last_bias))
    (value, value_at, slope), (network_bar, x_bar, at_bar) = ours
    values, values_at = reference.forward(network, x), reference.forward(network, at)
    close(value, values[-1][:, 0])
    close(value_at, values_at[-1][:, 0])
    close(slope, reference.slope(network, at))
    from_x, wanted_x_bar = reference.backward(network, values, bars[0][:, None])
    from_at, wanted_at_bar = reference.backward(network, values_at, bars[1][:, None])
    close(x_bar, wanted_x_bar)
    close(at_bar, wanted_at_bar)
    parts = [from_x, from_at, reference.slope_backward(network, at, bars[2])]
    gradient = jax.tree.leaves(network_bar)
    for mine, wanted in zip(gradient, jax.tree.leaves(reference.add(*parts)), strict=True):
        close(mine, wanted)
    for two_parts in itertools.combinations(parts, 2):
        partial = jax.tree.leaves(reference.add(*two_parts))
        assert not all(np.allclose(mine, other) for mine, other in zip(gradient, partial, strict=True))


def make_batch(rng: np.random.Generator, rows: int = 8, obs: int = 3, action: int = 2) -> Batch:
    def transitions() -> Transitions:
        return Transitions(
            jnp.asarray(rng.normal(size=(rows, obs))),
            jnp.asarray(rng.uniform(-1.0, 1.0, (rows, action))),
            jnp.asarray(rng.normal(size=rows)),
            jnp.asarray(rng.normal(size=(rows, obs))),
            jnp.asarray(rng.permutation(rows) < 3),
        )

    return Batch(*(transitions() for _ in range(4)), uniform=jnp.asarray(rng.random((2, rows, 1))))


@pytest.mark.parametrize("what", ["logit", "probability", "critic"])
def test_second_order_gradients_are_finite_differences(what: str):
    """The penalised losses themselves, from the algorithms: value moved along random directions against gradient."""
    rng = np.random.default_rng(4)
    batch = make_batch(rng)
    network = make_network(rng, (3 if what == "critic" else 5, 5, 4, 1), last_bias=what != "critic")
    reward = jnp.asarray(rng.normal(size=8))
    leaves, structure = jax.tree.flatten(network)

    @jax.jit
    def loss_and_gradient(leaves: list) -> tuple[Any, Any]:
        learner = start(jax.tree.unflatten(structure, leaves))
        if what == "critic":
            settings = {"discount": 0.99, "temperature": 1.4, "nu_penalty": 0.5, "learning_rate": 3e-4}
            after, value, _ = criticise(learner, batch, batch.union, reward, **settings)
        else:
            after, _, metrics = wbcu.discriminate(learner, batch, 0.1, 5.0, what)
            value = metrics["discriminator_loss"]
        return value, jax.tree.map(lambda first_moment: 10.0 * first_moment, after.moments.mu)

    gradient = jax.tree.leaves(loss_and_gradient(leaves)[1])
    for _ in range(4):
        direction = [rng.normal(size=leaf.shape) for leaf in leaves]
        values = [
            float(loss_and_gradient([leaf + h * way for leaf, way in zip(leaves, direction, strict=True)])[0])
            for h in (1e-6, -1e-6)
        ]
        wanted = (values[0] - values[1]) / 2e-6
        along = sum(float(np.sum(np.asarray(g) * way)) for g, way in zip(gradient, direction, strict=True))
        assert abs(wanted) > 1e-2
        assert along == pytest.approx(wanted, rel=1e-6)


def test_apply():
    """relu(x W + b) W' + b' for one row, by hand; with and without the last bias, and for a single vector."""
    first = Layer(jnp.asarray([[1.0, -1.0], [2.0, 1.0]]), jnp.asarray([0.5, -3.0]))
    last = jnp.asarray([[3.0], [100.0]])
    x = jnp.asarray([[1.0, 2.0]])
    close(apply((first, Layer(last, jnp.asarray([7.0]))), x), [[5.5 * 3.0 + 7.0]])
    close(apply((first, Layer(last, None)), x), [[5.5 * 3.0]])
    close(apply((first, Layer(last, None)), x[0]), [5.5 * 3.0])
    assert scalar((first, Layer(last, None)), x).shape == (1,)


def constant_policy(mean: list[float], log_std: list[float], mean_limit: float = 7.0) -> TanhGaussian:
    """A policy whose last layer is a bias: it says the same in every state."""
    return TanhGaussian((Layer(jnp.zeros((1, 2 * len(mean))), jnp.asarray(mean + log_std)),), mean_limit)


def log_prob(mean: float, log_std: float, action: float) -> float:
    return float(constant_policy([mean], [log_std]).log_prob(jnp.zeros((1, 1)), jnp.asarray([[action]]))[0, 0])


HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def test_log_prob_by_hand():
    """log N(atanh a) - log(1 - a^2): at a = 0 with a standard normal, and at a = 3/5, whose atanh is log 2."""
    assert log_prob(0.0, 0.0, 0.0) == pytest.approx(-HALF_LOG_TWO_PI, abs=1e-6)
    wanted = -0.5 * ((math.log(2.0) - 1.0) / 2.0) ** 2 - math.log(2.0) - HALF_LOG_TWO_PI - math.log(0.64)
    assert log_prob(1.0, math.log(2.0), 0.6) == pytest.approx(wanted, abs=1e-6)


def test_log_prob_is_a_density():
    """It integrates to one over (-1, 1): the log-determinant has the right sign and size."""
    edges = np.linspace(-1.0, 1.0, 20_001)
    action = (edges[1:] + edges[:-1]) / 2.0
    policy = constant_policy([0.4], [-0.7])
    density = np.exp(policy.log_prob(jnp.zeros((len(action), 1)), jnp.asarray(action[:, None])))
    assert float(density.mean() * 2.0) == pytest.approx(1.0, abs=1e-4)


def test_log_prob_of_saturated_actions():
    """|u| <= 8.318, and the log-determinant, at the action as it is, adds log(2^23) = 15.94 per dimension."""
    u = math.atanh(1.0 - FLOAT32_EPSILON)
    assert u == pytest.approx(8.318, abs=1e-3)
    assert -math.log(FLOAT32_EPSILON) == pytest.approx(15.94, abs=3e-3)
    for action in (1.0, -1.0):
        wanted = -0.5 * (action * u - 0.5) ** 2 - HALF_LOG_TWO_PI - math.log(FLOAT32_EPSILON)
        assert log_prob(0.5, 0.0, action) == pytest.approx(wanted, abs=1e-9)
    # The mean's clip keeps it 1.318 short of the saturated action: at the smallest spread that costs this much.
    wanted = -0.5 * ((u - 7.0) * math.exp(5.0)) ** 2 + 5.0 - HALF_LOG_TWO_PI - math.log(FLOAT32_EPSILON)
    assert log_prob(1000.0, -1000.0, 1.0) == pytest.approx(wanted, rel=1e-9)


def test_log_prob_in_float32_stays_finite():
    policy = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), constant_policy([7.0, -9.0], [-9.0, 9.0]))
    obs, action = jnp.zeros((3, 1), jnp.float32), jnp.asarray([[1, -1], [-1, 1], [0, 0.99999994]], jnp.float32)
    for number in (policy.log_prob(obs, action), dwbc.log_prob_per_dimension(policy, obs, action)):
        assert number.dtype == jnp.float32
        assert np.isfinite(number).all()


@pytest.mark.parametrize("log_prob_of", [TanhGaussian.log_prob, dwbc.log_prob_per_dimension])
@pytest.mark.parametrize("limit", [7.0, 9.0])
def test_clips_have_no_gradient_outside(limit: float, log_prob_of: Any):
    """Means clipped at the network's limit, log-stds at [-5, 2]: values and gradients on both sides of every edge."""
    inside = limit - 0.1
    mean = [inside, limit + 0.1, -inside, -limit - 0.1, 0.0, 0.0, 0.0, 0.0]
    log_std = [0.0, 0.0, 0.0, 0.0, -4.9, -5.1, 1.9, 2.1]
    obs, action = jnp.zeros((1, 1)), jnp.full((1, 8), 0.3)

    def total(policy: TanhGaussian) -> Any:
        return jnp.sum(log_prob_of(policy, obs, action))

    value, gradient = jax.value_and_grad(total)(constant_policy(mean, log_std, limit))
    by_mean, by_log_std = np.split(np.asarray(gradient.layers[0].bias), 2)
    u = math.atanh(0.3)
    clipped_mean, clipped = np.clip(mean, -limit, limit), np.clip(log_std, -5.0, 2.0)
    deviation = (u - clipped_mean) * np.exp(-clipped)
    wanted = -0.5 * deviation**2 - clipped - HALF_LOG_TWO_PI - math.log(1.0 - 0.09)
    close(value, wanted.sum(), rtol=1e-6)
    close(by_mean, deviation * np.exp(-clipped) * [1, 0, 1, 0, 1, 1, 1, 1])
    close(by_log_std, (deviation**2 - 1.0) * [1, 1, 1, 1, 1, 0, 1, 0])


def test_a_policy_trains_and_acts_at_one_limit():
    """`clone` stops pulling the mean where the NumPy policy stops following it, whatever the limit."""
    rows = make_batch(np.random.default_rng(0), rows=4, obs=1, action=1).union
    for limit, moves in ((1.5, False), (2.5, True)):
        policy = constant_policy([2.0], [0.0], limit)
        learner, _ = clone(start(policy), rows, jnp.ones(4), 0.1)
        mean = learner.params.layers[0].bias[0]
        assert (float(mean) != 2.0) is moves
        stacked = jax.tree.map(lambda leaf: leaf[None], policy)
        action = numpy_policy(stacked, np.zeros((1, 1)), np.ones((1, 1))).act_members(np.zeros((1, 1, 1)))
        assert action.item() == pytest.approx(math.tanh(min(limit, 2.0)), rel=1e-6)


def test_a_policy_is_a_tree_whose_limit_is_compared():
    """Old checkpoints name the arrays like this, and a program compiled for one limit never runs for another."""
    policy, other = constant_policy([1.0], [0.0]), constant_policy([1.0], [0.0], 9.0)
    paths, _ = jax.tree_util.tree_flatten_with_path({"policy": start(policy)})
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    assert names[:2] == [f"['policy'].params.layers[0].{part}" for part in ("kernel", "bias")]
    assert "['policy'].moments.mu.layers[0].kernel" in names
    assert jax.tree.structure(policy) == jax.tree.structure(constant_policy([2.0], [0.0]))
    assert jax.tree.structure(policy) != jax.tree.structure(other)
    assert jax.tree.structure(policy) != jax.tree.structure(Categorical(policy.layers))
    limit_of = jax.jit(lambda policy: policy.moments(jnp.zeros((1, 1)))[0])
    wide = [constant_policy([20.0], [0.0], limit) for limit in (7.0, 9.0)]
    assert [float(limit_of(each)[0, 0]) for each in wide] == [7.0, 9.0]


def test_which_limit_each_algorithm_has():
    batch = make_batch(np.random.default_rng(0), rows=2, obs=3, action=2)
    limits = {}
    for name in REGISTRY:
        each = make_algorithm(name, {"hidden": (4, 4)})
        state = jax.eval_shape(lambda key, each=each: each.init(batch, key), jax.random.key(0))
        limits[name] = each.policy(state).mean_limit
    assert limits.pop("dwbc") == limits.pop("ilid") == 9.0
    assert set(limits.values()) == {7.0}


def test_members_become_a_numpy_policy():
    """Stacked members; normalisers that are fewer are taken in turn; a network of no known kind is refused."""
    members = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(constant_policy([m], [0.0]) for m in (0.1, 0.2, 0.3, 0.4))
    )
    shift, scale = np.asarray([[1.0], [2.0]]), np.ones((2, 1))
    policy = numpy_policy(members, shift, scale, metadata={"a": "b"})
    assert (policy.kind, policy.mean_limit, policy.num_members, policy.metadata) == (
        "tanh-gaussian",
        7.0,
        4,
        {"a": "b"},
    )
    assert policy.shift.ravel().tolist() == [1.0, 2.0, 1.0, 2.0]
    assert policy.layers[0].bias[:, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    discrete = numpy_policy(Categorical(members.layers), shift, scale)
    assert (discrete.kind, discrete.mean_limit) == ("categorical", None)

    class Mixture(NamedTuple):
        layers: Any

    with pytest.raises(InputError, match="Mixture: a policy network's kind is tanh-gaussian or categorical, not"):
        numpy_policy(Mixture(members.layers), shift, scale)


def test_dwbc_log_prob():
    """Its log-determinant is that of the clipped action, so a saturated action is a finite input: 2 log cosh u."""
    obs, action = jnp.zeros((4, 1)), jnp.asarray([[0.6], [1.0], [-1.0], [0.0]])
    u = np.arctanh(np.clip(action, -1.0 + 1e-7, 1.0 - 1e-7))
    wanted = -0.5 * (u - 0.5) ** 2 - HALF_LOG_TWO_PI + 2.0 * np.log(np.cosh(u))
    close(dwbc.log_prob_per_dimension(constant_policy([0.5], [0.0]), obs, action), wanted)


def test_categorical():
    """Logits (0, log 3): probabilities 1/4 and 3/4. One-hot int8 actions, one number per row."""
    policy = Categorical((Layer(jnp.zeros((1, 2)), jnp.asarray([0.0, math.log(3.0)])),))
    action = jnp.asarray([[1, 0], [0, 1]], jnp.int8)

    def total(policy: Categorical) -> Any:
        return jnp.sum(policy.log_prob(jnp.zeros((2, 1)), action) * jnp.asarray([[1.0], [10.0]]))

    close(policy.log_prob(jnp.zeros((2, 1)), action), [[math.log(0.25)], [math.log(0.75)]])
    # One-hot minus probability: (3/4, -3/4) once and (-1/4, 1/4) ten times.
    close(jax.grad(total)(policy).layers[0].bias, [0.75 - 2.5, -0.75 + 2.5])
    close(dwbc.log_prob_per_dimension(policy, jnp.zeros((2, 1)), action), [[math.log(0.25)], [math.log(0.75)]])


def test_dwbc_likeness():
    """d through both branches, by hand; clipped to [0.1, 0.9] without gradient; nothing flows into log pi."""
    network = dwbc.Discriminator(
        Layer(jnp.asarray([[1.0]]), jnp.asarray([0.0])),
        Layer(jnp.asarray([[6.0]]), jnp.asarray([-3.0])),
        (Layer(jnp.asarray([[1.0], [-1.0]]), jnp.asarray([0.0])),),
    )
    x, log_pi = jnp.asarray([[2.0], [1.0], [9.0], [-1.0]]), jnp.asarray([[-20.0], [0.0], [-5.0], [10.0]])
    # log pi is rescaled to 0, 2/3, 1/2 and 1, which the branch turns into relu(-3), 1, 0 and 3.
    z = np.array([2.0, 0.0, 9.0, -3.0])
    c = reference.sigmoid(z)
    close(dwbc.likeness(network, x, log_pi), [c[0], 0.5, 0.9, 0.1])

    def total(network: dwbc.Discriminator, log_pi: Any) -> Any:
        return jnp.sum(dwbc.likeness(network, x, log_pi))

    by_network, by_log_pi = jax.grad(total, argnums=(0, 1))(network, log_pi)
    close(by_network.joint[0].bias, [c[0] * (1.0 - c[0]) + 0.25])
    close(by_log_pi, np.zeros((4, 1)))


OBS, ACTION, WIDTHS = 40, 10, (300, 200)


def initialise(algorithm: Any) -> Any:
    batch = make_batch(np.random.default_rng(0), rows=2, obs=OBS, action=ACTION)
    return jax.jit(lambda key: algorithm.init(batch, key))(jax.random.key(0))


def assert_uniform(draws: Any, bound: float):
    """U(-bound, bound): within, close to the bound on both sides, and with its standard deviation."""
    draws = np.asarray(draws)
    slack = 20.0 / draws.size
    assert -bound <= draws.min() < -bound * (1.0 - slack)
    assert bound * (1.0 - slack) < draws.max() <= bound
    assert draws.std() == pytest.approx(bound / math.sqrt(3.0), rel=3.0 / math.sqrt(draws.size))


def assert_he_normal(kernel: Any):
    """Standard deviation sqrt(2/inputs) after a truncation at two of the untruncated one's."""
    kernel = np.asarray(kernel)
    std = math.sqrt(2.0 / kernel.shape[0])
    cut = 2.0 * std / 0.87962566103423978
    assert kernel.std() == pytest.approx(std, rel=3.0 / math.sqrt(kernel.size))
    assert 0.8 * cut < np.abs(kernel).max() <= cut


def glorot_bound(kernel: Any) -> float:
    return math.sqrt(6.0 / sum(kernel.shape))


def test_wbcu_starts_from_glorot_policies_and_a_glorot_last_layer():
    """The policy's two heads are two layers: 10 outputs each, not 20. All biases are zero."""
    state = initialise(WBCU(hidden=WIDTHS))
    *body, heads = state.policy.params.layers
    for layer in body:
        assert_uniform(layer.kernel, glorot_bound(layer.kernel))
    mean, log_std = np.split(np.asarray(heads.kernel), 2, axis=1)
    for head in (mean, log_std):
        assert head.shape == (WIDTHS[-1], ACTION)
        assert_uniform(head, glorot_bound(head))
        with pytest.raises(AssertionError):
            assert_uniform(head, glorot_bound(heads.kernel))
    assert not np.allclose(mean, log_std)
    *hidden, last = state.discriminator.params
    for layer in hidden:
        assert_he_normal(layer.kernel)
        with pytest.raises(AssertionError):
            assert_uniform(layer.kernel, glorot_bound(layer.kernel))
    assert_uniform(last.kernel, glorot_bound(last.kernel))
    assert all(not np.any(layer.bias) for layer in (*body, heads, *hidden, last))
    assert state.discriminator.params[0].kernel.shape == (OBS + ACTION, WIDTHS[0])
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((state.policy.moments, state.discriminator.moments)))


def test_demodice_starts_he_normal_without_last_biases():
    state = initialise(DemoDICE(hidden=WIDTHS))
    *body, heads = state.policy.params.layers
    for layer in (*body, *state.discriminator.params[:-1], *state.critic.params[:-1]):
        assert_he_normal(layer.kernel)
        assert not np.any(layer.bias)
    for head in np.split(np.asarray(heads.kernel), 2, axis=1):
        assert_he_normal(head)
    assert not np.any(heads.bias)
    for last in (state.discriminator.params[-1], state.critic.params[-1]):
        assert last.bias is None
        assert_he_normal(last.kernel)
    assert state.critic.params[0].kernel.shape == (OBS, WIDTHS[0])


def test_dwbc_starts_as_pytorch_does():
    """Kernels and biases from U(+-1/sqrt(inputs)), the branches of half the first width each."""
    state = initialise(DWBC(hidden=WIDTHS))
    sample, likelihood, joint = state.discriminator.params
    for layer in (*state.policy.params.layers, sample, likelihood, *joint[:-1]):
        bound = 1.0 / math.sqrt(layer.kernel.shape[0])
        assert_uniform(layer.kernel, bound)
        assert np.abs(layer.bias).max() <= bound
        assert np.std(layer.bias) == pytest.approx(bound / math.sqrt(3.0), rel=0.4)
    shapes = [layer.kernel.shape for layer in (sample, likelihood, *joint)]
    assert shapes == [(OBS + ACTION, 150), (ACTION, 150), (300, 200), (200, 1)]
    assert np.abs(joint[-1].bias).max() <= 1.0 / math.sqrt(200.0)


def test_last_bias_only():
    """Leaving out the last bias leaves the others, and draws the same kernels."""
    keyed = (jax.random.key(0), (3, 2, 2), [he_normal] * 2)
    with_bias, without = init_perceptron(*keyed), init_perceptron(*keyed, last_bias=False)
    assert without[0].bias is not None
    assert without[1].bias is None
    for a, b in zip(with_bias, without, strict=True):
        np.testing.assert_array_equal(a.kernel, b.kernel)
