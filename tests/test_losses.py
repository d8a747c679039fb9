"""Closed forms: every loss, weight and penalty against numbers worked out by hand, in float64."""

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demosift.algorithms import dwbc, wbcu
from demosift.learning import losses
from demosift.learning.learner import descend, start
from demosift.learning.losses import advantage, chi_square_nu_loss, chi_square_weight, normalised_weight, nu_loss

LOG2, LOG3 = math.log(2.0), math.log(3.0)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def rows(*numbers: float) -> Any:
    return jnp.asarray(numbers)


def close(actual: Any, wanted: Any, rtol: float = 1e-12, atol: float = 1e-14):
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=rtol, atol=atol)


def test_weighted_loss():
    """-(2*(-1) + 0*5 + 3*(-4)) / 3."""
    weight, log_prob = rows(2.0, 0.0, 3.0), rows(-1.0, 5.0, -4.0)
    close(losses.weighted_loss(weight, log_prob), 14.0 / 3.0)
    by_weight, by_log_prob = jax.grad(losses.weighted_loss, argnums=(0, 1))(weight, log_prob)
    close(by_weight, np.zeros(3))
    close(by_log_prob, [-2.0 / 3.0, 0.0, -1.0])


def test_weighted_loss_refuses_a_column():
    """Broadcast, it would give -mean(w) mean(log pi). The function itself refuses, not only the tests' type checks."""
    weight, log_prob = rows(2.0, 0.0, 3.0), rows(-1.0, 5.0, -4.0)
    unchecked = inspect.unwrap(losses.weighted_loss)
    for arguments in ((weight[:, None], log_prob), (weight, log_prob[:, None])):
        with pytest.raises(AssertionError, match="square"):
            unchecked(*arguments)


def test_discriminator_loss():
    """At z = log 3 the probability is 3/4. A sum of two means, not their average."""
    close(losses.discriminator_loss(rows(0.0, 0.0), rows(0.0, 0.0)), 2.0 * LOG2)
    close(losses.discriminator_loss(rows(LOG3), rows(-LOG3)), 2.0 * math.log(4.0 / 3.0))
    close(losses.discriminator_loss(rows(-LOG3), rows(LOG3)), 2.0 * math.log(4.0))
    close(losses.discriminator_loss(rows(LOG3, 0.0), rows(0.0, 0.0)), (math.log(4.0 / 3.0) + LOG2) / 2.0 + LOG2)
    close(losses.discriminator_loss(rows(1000.0), rows(1000.0)), 1000.0)


def test_smoothed_cost_and_ratio():
    """In the limits c + e is 0.001, then 1.001."""
    z = rows(-1000.0, 0.0, LOG3, 1000.0)
    inside = [999.001, 1.0 / 0.501 - 0.999, 1.0 / 0.751 - 0.999, 1.0 / 1.001 - 0.999]
    close(losses.smoothed_cost(z), np.log(inside), rtol=1e-9)
    close(losses.smoothed_ratio(z), 1.0 / np.array(inside), rtol=1e-9)
    low, middle, _, high = np.asarray(losses.smoothed_ratio(z))
    assert low == pytest.approx(1.001e-3, abs=1e-9)
    assert middle == pytest.approx(1.003, abs=1e-5)
    assert high == pytest.approx(1.001e6, rel=1e-9)
    assert float(losses.smoothed_cost(z)[0]) == pytest.approx(6.9068, abs=1e-4)
    assert float(losses.smoothed_cost(z)[3]) == pytest.approx(-13.8165, abs=1e-4)
    moderate = jnp.linspace(-3.0, 3.0, 13)
    close(losses.smoothed_cost(moderate), -np.asarray(moderate), atol=0.03)


def naive_cost(z: Any) -> Any:
    """As the paper's code writes it: where c is near 1 the sum is a small difference of large numbers."""
    return jnp.log(1.0 / (jax.nn.sigmoid(z) + 1e-3) - 1.0 + 1e-3)


def naive_rate(z: Any) -> Any:
    c = jax.nn.sigmoid(z)
    return -c * (1.0 - c) / ((c + 1e-3) * (1.0 - (1.0 - 1e-3) * (c + 1e-3)))


HIGH = np.array([10.0, 14.0, 17.0, 30.0])


@pytest.mark.parametrize(
    ("function", "naive"),
    [
        (losses.smoothed_cost, naive_cost),
        (losses.smoothed_ratio, lambda z: jnp.exp(-naive_cost(z))),
        (losses.logit_rate, naive_rate),
    ],
)
def test_nothing_cancels_in_float32(function: Any, naive: Any):
    """What training computes: right to rounding however sure the discriminator is, unlike the formula as it is printed.

    `moderate` leaves out z = 0, near which the cost crosses zero.
    """
    moderate = np.concatenate([np.linspace(-30.0, -0.5, 60), np.linspace(0.5, 9.5, 19), [20.0, 60.0, 1000.0]])
    for z in (HIGH, moderate):
        single = function(jnp.asarray(z, jnp.float32))
        assert single.dtype == jnp.float32
        close(single, function(jnp.asarray(z)), rtol=1e-5, atol=0.0)
    # In float64 there are digits to spare for the naive formula, up to where 1 - c has none left.
    below = jnp.asarray(HIGH[:3])
    close(function(below), naive(below), rtol=1e-8)
    with pytest.raises(AssertionError):
        close(naive(jnp.asarray(HIGH, jnp.float32)), function(jnp.asarray(HIGH)), rtol=1e-5, atol=0.0)


def test_exact_ratio():
    """Capped at exp(30), so that float32 holds the square of a gradient that it scales."""
    close(losses.exact_ratio(rows(-1000.0, 0.0, LOG3, -LOG3)), [0.0, 1.0, 3.0, 1.0 / 3.0])
    close(losses.exact_ratio(rows(29.0, 30.0, 31.0, 1000.0)), np.exp([29.0, 30.0, 30.0, 30.0]))
    capped = losses.exact_ratio(jnp.full(512, 1000.0, jnp.float32))
    assert capped.dtype == jnp.float32
    assert np.isfinite(float(jnp.sum(capped**2)))
    assert np.isinf(float(jnp.exp(jnp.float32(80.0)) ** 2))
    close(losses.effective_share(rows(np.exp(45.0), np.exp(45.0), 0.0, 0.0)), 0.5)
    assert {"smoothed": losses.smoothed_ratio, "exact": losses.exact_ratio} == losses.RATIOS


def test_ratio_weight():
    """The threshold keeps weights equal to it, and 0 keeps all."""
    z = jnp.log(rows(0.5, 1.0, 2.0))
    exact = np.exp(np.asarray(z))
    close(wbcu.ratio_weight(z, "exact", 0.0), exact)
    close(wbcu.ratio_weight(z, "exact", float(exact[1])), [0.0, *exact[1:]])
    close(wbcu.ratio_weight(z, "exact", 2.5), [0.0, 0.0, 0.0])
    smoothed = 1.0 / (1.0 / (np.array([1.0 / 3.0, 0.5, 2.0 / 3.0]) + 1e-3) - 0.999)
    close(wbcu.ratio_weight(z, "smoothed", 1.0), [0.0, *smoothed[1:]])


def test_penalty_rates():
    """dk/dz and dc/dz: by hand at 0, and against central differences where k bends and where it does not."""
    close(losses.logit_rate(rows(0.0)), [-0.25 / (0.501 * (1.0 - 0.999 * 0.501))])
    close(losses.probability_rate(rows(0.0, LOG3)), [0.25, 3.0 / 16.0])
    z, h = jnp.linspace(-20.0, 20.0, 41), 1e-4
    cost_rate = (losses.smoothed_cost(z + h) - losses.smoothed_cost(z - h)) / (2.0 * h)
    probability_rate = (jax.nn.sigmoid(z + h) - jax.nn.sigmoid(z - h)) / (2.0 * h)
    close(losses.logit_rate(z), cost_rate, rtol=1e-5, atol=1e-6)
    close(losses.probability_rate(z), probability_rate, rtol=1e-5, atol=1e-9)
    assert np.max(np.abs(losses.probability_rate(z) + cost_rate)) > 0.5  # swapped, they would not pass
    close(losses.PENALTY_RATES["exact logit"](z), np.ones(41))  # dz/dz
    assert losses.PENALTY_RATES["logit"] is losses.logit_rate
    assert losses.PENALTY_RATES["probability"] is losses.probability_rate


def test_gradient_penalty():
    """A slope of norm 5 at rates 1, -0.2 and 0: (5-1)^2, (1-1)^2, (0-1)^2. Epsilon adds a millionth at most."""
    slope = jnp.asarray([[3.0, 4.0]] * 3)
    rate = rows(1.0, -0.2, 0.0)
    close(losses.gradient_penalty(rate, slope), 17.0 / 3.0, rtol=1e-6)
    close(losses.gradient_penalty(rate, slope, target=0.0), 26.0 / 3.0, rtol=1e-6)
    close(losses.gradient_penalty(rate, slope, target=2.0), (9.0 + 1.0 + 4.0) / 3.0, rtol=1e-6)
    close(losses.gradient_penalty(rows(0.0), slope[:1], target=0.0), 2.0 * 2.0**-46)


def test_gradient_penalty_of_a_flat_network():
    """Where the slope is zero the norm has no gradient; epsilon in every entry gives it one."""
    flat = jnp.zeros((2, 3))
    gradient = jax.grad(losses.gradient_penalty, argnums=1)(jnp.ones(2), flat)
    close(gradient, np.full((2, 3), -2.0 / math.sqrt(3.0) / 2.0), rtol=1e-6)
    without = jax.grad(lambda slope: jnp.mean((jnp.sqrt(jnp.sum(slope**2, axis=-1)) - 1.0) ** 2))(flat)
    assert np.isnan(without).all()


def test_points_between_expert_and_union():
    """One amount per row, shared by both halves; the second mixes each union row with another one of the union."""
    expert, union = jnp.asarray([[10.0], [20.0], [30.0]]), jnp.asarray([[1.0], [2.0], [4.0]])
    amount = jnp.asarray([[0.0], [0.5], [1.0]])
    close(losses.mix(amount, expert, union), [[1.0], [11.0], [30.0]])
    between = losses.between_expert_and_union(amount, expert, union)
    close(between, [[1.0], [11.0], [30.0], [1.0], [1.5], [2.0]])


def test_effective_share_and_accuracy():
    close(losses.effective_share(jnp.ones(5)), 1.0)
    close(losses.effective_share(rows(0.0, 0.0, 7.0, 0.0)), 0.25)
    close(losses.effective_share(rows(1.0, 2.0, 3.0)), 6.0 / 7.0)
    close(losses.effective_share(jnp.zeros(3)), 0.0)
    close(losses.discriminator_accuracy(rows(1.0, -1.0, -1.0, 2.0), rows(-1.0, -2.0, -3.0, 4.0)), 0.625)


def test_dwbc_weights():
    """The net weights of the authors' code: within [0.94, 4.5] on expert rows, 0 or within [1, 9] on the others."""
    d = rows(0.1, 0.2, 0.5, 0.9)
    close(dwbc.expert_weight(d, 7.5, 0.5), [6.5 - 0.5 / 0.09, 6.5 - 0.5 / 0.16, 4.5, 6.5 - 0.5 / 0.09])
    close(dwbc.other_weight(rows(0.1, 0.4999, 0.5, 0.8, 0.9)), [0.0, 0.0, 1.0, 4.0, 9.0])
    d = jnp.linspace(*dwbc.DISCRIMINATOR_RANGE, 101)
    weight = np.asarray(dwbc.expert_weight(d, 7.5, 0.5))
    assert (weight.min(), weight.max()) == pytest.approx((0.9444, 4.5), abs=1e-4)
    other = np.asarray(dwbc.other_weight(d))
    assert (other[other > 0].min(), other.max()) == pytest.approx((1.0, 9.0))


def test_dwbc_losses():
    """-log d_E + log(1-d_E) - log(1-d_O)/eta; and 1/eta times the paper's eta-weighted form."""
    close(dwbc.positive_unlabelled_loss(rows(0.5), rows(0.5), 0.5), 2.0 * LOG2)
    close(dwbc.positive_unlabelled_loss(rows(0.8, 0.5), rows(0.2, 0.2), 0.25), -LOG2 - 4.0 * math.log(0.8))
    d_expert, d_other, eta = np.array([0.3, 0.6]), np.array([0.2, 0.7]), 0.4
    weighted = np.mean(-eta * np.log(d_expert) - np.log(1.0 - d_other) + eta * np.log(1.0 - d_expert))
    close(dwbc.positive_unlabelled_loss(jnp.asarray(d_expert), jnp.asarray(d_other), eta), weighted / eta)


def test_dwbc_squash():
    close(dwbc.squash(rows(-1000.0, -20.0, -5.0, 10.0, 1000.0)[None]), [[0.0, 0.0, 0.5, 1.0, 1.0]])


def test_demodice_advantage():
    """The value of the successor counts unless the transition ends in a terminal state."""
    reward, nu, next_nu = rows(1.0, 2.0), rows(3.0, 5.0), rows(10.0, 20.0)
    close(advantage(reward, nu, next_nu, jnp.asarray([False, True]), 0.5), [1.0 + 5.0 - 3.0, 2.0 - 5.0])


def test_demodice_losses():
    """(1-gamma) mean nu(s0) + K log sum exp(A/K): at A = (0, log 2) the sum is 3, at A = 2 (0, log 2) and K = 2 too."""
    close(nu_loss(rows(1.0, 3.0), rows(0.0, LOG2), 0.75, 1.0), 0.25 * 2.0 + LOG3)
    close(nu_loss(rows(1.0, 3.0), rows(0.0, 2.0 * LOG2), 0.75, 2.0), 0.25 * 2.0 + 2.0 * LOG3)
    close(nu_loss(rows(0.0, 0.0), rows(1e4, 1e4), 0.5, 1.0), 1e4 + LOG2)


def test_demodice_weight():
    """exp(A/K) over its mean: shifting A changes nothing, however large it is."""
    close(normalised_weight(rows(0.0, LOG2), 1.0), [2.0 / 3.0, 4.0 / 3.0])
    close(normalised_weight(rows(0.0, 2.0 * LOG2), 2.0), [2.0 / 3.0, 4.0 / 3.0])
    close(normalised_weight(rows(0.0, LOG2) + 1e4, 1.0), [2.0 / 3.0, 4.0 / 3.0], rtol=1e-10)


def test_nu_loss_gradient_is_the_weight():
    """d(K logsumexp(A/K))/dA_i = w_i / n: the policy's weights are the critic's own gradient."""
    gain = rows(0.3, -1.0, 2.0)
    gradient = jax.grad(lambda a: nu_loss(jnp.zeros(3), a, 0.9, 1.7))(gain)
    close(3.0 * gradient, normalised_weight(gain, 1.7))


def test_chi_square():
    """(1-gamma) mean nu(s0) + mean(A^2/2 + A), at A = (2, -4): 4 and 4; the weight is its gradient, but not below 0."""
    close(chi_square_nu_loss(rows(1.0, 3.0), rows(2.0, -4.0), 0.75), 0.25 * 2.0 + 4.0)
    close(chi_square_weight(rows(2.0, -1.0, -4.0)), [3.0, 0.0, 0.0])
    gain = rows(0.3, 1.0, 2.0)
    gradient = jax.grad(lambda a: chi_square_nu_loss(jnp.zeros(3), a, 0.9))(gain)
    close(3.0 * gradient, chi_square_weight(gain))


def test_adam():
    """First step: lr g/(|g| + eps), half of lr where |g| = eps. Decay adds to the gradient: it is not decoupled."""
    params = rows(1.0, -2.0, 3.0)
    gradient = rows(4.0, -1e-7, 0.0)
    after = descend(start(params), gradient, 0.1)
    close(after.params, [1.0 - 0.1 / (1.0 + 0.25e-7), -2.0 + 0.05, 3.0], rtol=1e-9)
    close(after.moments.mu, 0.1 * gradient)
    close(after.moments.nu, 0.001 * gradient**2)
    close(descend(start(params), gradient, 0.1, epsilon=3e-7).params[1], -2.0 + 0.025, rtol=1e-9)
    decayed = descend(start(params), gradient, 0.1, weight_decay=0.5)
    close(decayed.moments.mu, 0.1 * (np.asarray(gradient) + 0.5 * np.asarray(params)))
    close(decayed.params, [0.9, -1.9, 2.9], rtol=1e-6)


def test_adam_over_steps():
    """Three steps against the recurrence, written out for one number."""
    learner, p, m, v = start(rows(0.7)), 0.7, 0.0, 0.0
    for t, g in enumerate((0.3, -0.2, 0.05), start=1):
        learner = descend(learner, rows(g), 0.01)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p -= 0.01 * (m / (1.0 - 0.9**t)) / (math.sqrt(v / (1.0 - 0.999**t)) + 1e-7)
        close(learner.params, [p])
