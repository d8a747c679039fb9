"""Losses, weights and penalties: pure functions of network outputs, each with its equation.

Notation: `z` is a discriminator's logit, c = sigmoid(z) its probability that a sample is the expert's; E and U are the
expert and union batches. Every loss is a mean over its batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from demosift.learning.networks import FLOAT32_EPSILON

SMOOTHING = 1e-3

Rows = Float[Array, "rows"]
Scalar = Float[Array, ""]


def weighted_loss(weight: Rows, log_prob: Rows) -> Scalar:
    """-mean(w log pi(a|s)): the loss every algorithm here minimises. The weight is data; no gradient flows into it."""
    assert weight.shape == log_prob.shape, "a (rows, 1) weight would broadcast into a square"
    return -jnp.mean(jax.lax.stop_gradient(weight) * log_prob)


def discriminator_loss(z_expert: Rows, z_union: Rows) -> Scalar:
    """-mean_E log c - mean_U log(1 - c), a sum of two means."""
    return jnp.mean(jax.nn.softplus(-z_expert)) + jnp.mean(jax.nn.softplus(z_union))


def smoothed_cost(z: Rows) -> Rows:
    """k(z) = log(1/(c + e) - 1 + e) with e = 1e-3: about -z, but bounded by -13.8 and 6.9."""
    return -jnp.log(smoothed_ratio(z))


def smoothed_ratio(z: Rows) -> Rows:
    """exp(-k(z)): the density ratio c/(1-c), kept within about [1e-3, 1e6]. What made the paper's tables.

    1/(c + e) - 1 + e would cancel in float32 where c is near 1; written as one fraction, nothing cancels.
    """
    return (jax.nn.sigmoid(z) + SMOOTHING) / _smoothed_rest(z)


def _smoothed_rest(z: Rows) -> Rows:
    """1 - (1-e)(c+e), written so that nothing cancels."""
    return (1.0 - SMOOTHING) * jax.nn.sigmoid(-z) + SMOOTHING**2


def exact_ratio(z: Rows) -> Rows:
    """c/(1-c) = exp(z): the density ratio as the paper writes it, up to e^30.

    Beyond that, the square of a gradient would overflow float32, and Adam's second moment would stay infinite.
    """
    return jnp.exp(jnp.minimum(z, 30.0))


RATIOS = {"smoothed": smoothed_ratio, "exact": exact_ratio}


def logit_rate(z: Rows) -> Rows:
    """dk/dz of the smoothed cost."""
    c = jax.nn.sigmoid(z)
    return -c * jax.nn.sigmoid(-z) / ((c + SMOOTHING) * _smoothed_rest(z))


def probability_rate(z: Rows) -> Rows:
    """dc/dz."""
    c = jax.nn.sigmoid(z)
    return c * (1.0 - c)


PENALTY_RATES = {"logit": logit_rate, "probability": probability_rate, "exact logit": jnp.ones_like}


def gradient_penalty(rate: Rows, slope: Float[Array, "rows inputs"], target: float = 1.0) -> Scalar:
    """mean((||rate * dz/dx + eps|| - target)^2); eps in every entry keeps the norm differentiable at zero."""
    squared_norm = jnp.sum((rate[:, None] * slope + FLOAT32_EPSILON) ** 2, axis=-1)
    if target == 0.0:
        return jnp.mean(squared_norm)
    return jnp.mean((jnp.sqrt(squared_norm) - target) ** 2)


def mix(amount: Float[Array, "rows 1"], a: Float[Array, "rows inputs"], b: Float[Array, "rows inputs"]) -> Array:
    return amount * a + (1.0 - amount) * b


def between_expert_and_union(
    amount: Float[Array, "rows 1"], x_expert: Array, x_union: Array
) -> Float[Array, "points inputs"]:
    """Where the discriminator's gradient is penalised: expert-union mixes, then union-union mixes, by the same amounts.

    The paper's code pairs union rows by shuffling the batch. Rows are independent draws already, so the previous row
    serves as well and needs no sort; the only difference is that a row is never paired with itself.
    """
    return jnp.concatenate([mix(amount, x_expert, x_union), mix(amount, jnp.roll(x_union, 1, axis=0), x_union)])


def advantage(reward: Rows, nu: Rows, next_nu: Rows, terminal: Bool[Array, "rows"], discount: float) -> Rows:
    """A = r + gamma nu(s') - nu(s), without nu(s') at a terminal."""
    return reward + discount * jnp.where(terminal, 0.0, next_nu) - nu


def nu_loss(initial_nu: Rows, advantage: Rows, discount: float, temperature: float = 1.0) -> Scalar:
    """(1-gamma) mean nu(s0) + K logsumexp(A/K); the sum form, which differs from the mean's by a constant."""
    return (1.0 - discount) * jnp.mean(initial_nu) + temperature * jax.nn.logsumexp(advantage / temperature)


def normalised_weight(advantage: Rows, temperature: float = 1.0) -> Rows:
    """exp(A/K), divided by its mean over the batch."""
    weight = jnp.exp((advantage - jnp.max(advantage)) / temperature)
    return weight / jnp.mean(weight)


def chi_square_nu_loss(initial_nu: Rows, advantage: Rows, discount: float) -> Scalar:
    """(1-gamma) mean nu(s0) + mean(A^2/2 + A)."""
    return (1.0 - discount) * jnp.mean(initial_nu) + jnp.mean(0.5 * advantage**2 + advantage)


def chi_square_weight(advantage: Rows) -> Rows:
    """max(0, A + 1): what the chi-square divergence has in place of the KL divergence's exp(A)."""
    return jax.nn.relu(advantage + 1.0)


def effective_share(weight: Rows) -> Scalar:
    """(sum w)^2 / (n sum w^2): the effective sample size as a share of the batch."""
    share = weight / jnp.maximum(jnp.max(weight), 1e-30)  # before squaring: ratios may be huge
    return jnp.sum(share) ** 2 / (weight.shape[0] * jnp.sum(share**2) + 1e-30)


def discriminator_accuracy(z_expert: Rows, z_other: Rows) -> Scalar:
    return 0.5 * (jnp.mean(z_expert > 0.0) + jnp.mean(z_other < 0.0))
