"""The algorithms once more, in float64 NumPy: every loss with its gradient by hand, written from the equations.

Nothing here imports demosift or JAX. A network is a sequence of (kernel, bias) pairs with ReLU between them, the bias
possibly None; a gradient is a list of such pairs, returned beside its loss. `x_bar` is the derivative of the loss by x.
"""

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
Network = Sequence[tuple[Array, Array | None]]
Gradient = list[tuple[Array, Array | None]]

EPSILON = 2.0**-23
SMOOTHING = 1e-3


def sigmoid(z: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def softplus(z: Array) -> Array:
    return np.logaddexp(0.0, z)


def forward(network: Network, x: Array) -> list[Array]:
    """The input, each hidden activation, and the output."""
    values = [x]
    for index, (kernel, bias) in enumerate(network):
        output = values[-1] @ kernel + (0.0 if bias is None else bias)
        values.append(output if index == len(network) - 1 else np.maximum(output, 0.0))
    return values


def backward(network: Network, values: list[Array], output_bar: Array) -> tuple[Gradient, Array]:
    """The gradient of sum(output_bar * output) by the parameters, and by the input."""
    gradient: Gradient = []
    for index in reversed(range(len(network))):
        kernel, bias = network[index]
        gradient.insert(0, (values[index].T @ output_bar, None if bias is None else output_bar.sum(axis=0)))
        output_bar = output_bar @ kernel.T
        if index > 0:
            output_bar = output_bar * (values[index] > 0)
    return gradient, output_bar


def slope(network: Network, x: Array) -> Array:
    """dz/dx of a one-output network, a row per point."""
    values = forward(network, x)
    return backward(network, values, np.ones_like(values[-1]))[1]


def slope_backward(network: Network, x: Array, slope_bar: Array) -> Gradient:
    """The gradient of sum(slope_bar * slope) by the parameters.

    On one linear piece the slope at a point is the product W1 D1 W2 D2 ... w with D the diagonal 0/1 matrices of the
    active units, so the product rule gives (slope_bar W1 D1 ... D)^T (D W ... w)^T for the factor between the two.
    Biases only move the pieces' borders: their gradient is zero.
    """
    gradient: Gradient = [
        (np.zeros_like(kernel), None if bias is None else np.zeros_like(bias)) for kernel, bias in network
    ]
    values = forward(network, x)
    for row in range(len(x)):
        active = [value[row] > 0 for value in values[1:-1]] + [np.ones(1, bool)]
        factors = [kernel * on for (kernel, _), on in zip(network, active, strict=True)]
        for index, (kernel_gradient, _) in enumerate(gradient):
            left = slope_bar[row]
            for factor in factors[:index]:
                left = left @ factor
            right = np.ones(1)
            for factor in reversed(factors[index + 1 :]):
                right = factor @ right
            kernel_gradient += np.outer(left, right * active[index])
    return gradient


def add(*gradients: Gradient) -> Gradient:
    return [
        (sum(kernels, np.zeros(())), None if biases[0] is None else sum(biases, np.zeros(())))
        for kernels, biases in (zip(*layers, strict=True) for layers in zip(*gradients, strict=True))
    ]


def scale(factor: float, gradient: Gradient) -> Gradient:
    return [(factor * kernel, None if bias is None else factor * bias) for kernel, bias in gradient]


def smoothed_cost(z: Array) -> Array:
    return np.log(1.0 / (sigmoid(z) + SMOOTHING) - 1.0 + SMOOTHING)


def smoothed_ratio(z: Array) -> Array:
    return np.exp(-smoothed_cost(z))


def exact_ratio(z: Array) -> Array:
    return sigmoid(z) / sigmoid(-z)


def cost_rates(z: Array) -> tuple[Array, Array]:
    """k'(z) and k''(z). With c' = c(1-c) and D = (c + e)(1 - (1-e)(c + e)): k' = -c'/D."""
    c, shifted = sigmoid(z), sigmoid(z) + SMOOTHING
    c_rate = c * (1.0 - c)
    below = shifted * (1.0 - (1.0 - SMOOTHING) * shifted)
    below_rate = (1.0 - 2.0 * (1.0 - SMOOTHING) * shifted) * c_rate
    return -c_rate / below, -(c_rate * (1.0 - 2.0 * c) * below - c_rate * below_rate) / below**2


def probability_rates(z: Array) -> tuple[Array, Array]:
    """c'(z) and c''(z)."""
    c = sigmoid(z)
    return c * (1.0 - c), c * (1.0 - c) * (1.0 - 2.0 * c)


def value_rates(z: Array) -> tuple[Array, Array]:
    return np.ones_like(z), np.zeros_like(z)


RATES = {"logit": cost_rates, "probability": probability_rates, "value": value_rates}


def penalty(network: Network, points: Array, of: str, target: float) -> tuple[float, Gradient]:
    """mean (||d f(z(x))/dx + eps|| - target)^2 over the points, f one of RATES."""
    values = forward(network, points)
    rate, curvature = RATES[of](values[-1][:, 0])
    z_slope = slope(network, points)
    q = rate[:, None] * z_slope + EPSILON
    norm = np.linalg.norm(q, axis=1)
    q_bar = (2.0 * (norm - target) / norm / len(points))[:, None] * q
    z_bar = np.sum(q_bar * z_slope, axis=1) * curvature
    through_z, _ = backward(network, values, z_bar[:, None])
    return float(np.mean((norm - target) ** 2)), add(through_z, slope_backward(network, points, rate[:, None] * q_bar))


def discriminator_points(amount: Array, x_expert: Array, x_union: Array) -> Array:
    """Expert-union mixes, then mixes of each union row with the one before it (our choice for the authors' shuffle)."""
    other = x_union[np.arange(len(x_union)) - 1]
    return np.concatenate(
        [amount * x_expert + (1.0 - amount) * x_union, amount * other + (1.0 - amount) * x_union], axis=0
    )


def expert_mixes(amount: Array, x_expert: Array, x_union: Array) -> Array:
    """SMODICE's: the expert's rows mixed with the others, and no more."""
    return x_union + amount * (x_expert - x_union)


def discriminator_loss(
    network: Network,
    x_expert: Array,
    x_union: Array,
    amount: Array,
    coefficient: float,
    of: str,
    points: Callable[[Array, Array, Array], Array] = discriminator_points,
) -> tuple[float, Gradient]:
    """mean_E sp(-z) + mean_U sp(z) + coefficient * GP."""
    expert, union = forward(network, x_expert), forward(network, x_union)
    z_expert, z_union = expert[-1], union[-1]
    penalised, penalty_gradient = penalty(network, points(amount, x_expert, x_union), of, target=1.0)
    gradient = add(
        backward(network, expert, -sigmoid(-z_expert) / len(z_expert))[0],
        backward(network, union, sigmoid(z_union) / len(z_union))[0],
        scale(coefficient, penalty_gradient),
    )
    return float(np.mean(softplus(-z_expert)) + np.mean(softplus(z_union)) + coefficient * penalised), gradient


def gaussian_log_prob(output: Array, u: Array, mean_limit: float) -> tuple[Array, Array]:
    """log N(u; mean, std) per dimension and its derivative by the output, [mean | log-std] before the clips."""
    raw_mean, raw_log_std = np.split(output, 2, axis=1)
    std = np.exp(np.clip(raw_log_std, -5.0, 2.0))
    deviation = (u - np.clip(raw_mean, -mean_limit, mean_limit)) / std
    mean_bar = deviation / std * (np.abs(raw_mean) < mean_limit)
    log_std_bar = (deviation**2 - 1.0) * ((raw_log_std > -5.0) & (raw_log_std < 2.0))
    density = np.exp(-0.5 * deviation**2) / (std * np.sqrt(2.0 * np.pi))
    with np.errstate(divide="ignore"):
        by_density = np.log(density)
    # Far in the tail the density underflows; there the logarithm is taken term by term.
    by_terms = -0.5 * deviation**2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)
    return np.where(density > 1e-200, by_density, by_terms), np.concatenate([mean_bar, log_std_bar], axis=1)


def tanh_gaussian(output: Array, action: Array, mean_limit: float = 7.0) -> tuple[Array, Array]:
    """log pi(a|s) per dimension: the Gaussian at the clipped action, the log-determinant at the action as it is."""
    u = np.arctanh(np.clip(action, -1.0 + EPSILON, 1.0 - EPSILON))
    log_prob, bar = gaussian_log_prob(output, u, mean_limit)
    return log_prob - np.log(1.0 - action**2 + EPSILON), bar


def tanh_gaussian_inside(output: Array, action: Array, margin: float = 1e-7) -> tuple[Array, Array]:
    """DWBC's: mean clipped at 9, the action at 1 - margin, and the log-determinant -2 log cosh(u) inside the clip."""
    u = np.arctanh(np.clip(action, -1.0 + margin, 1.0 - margin))
    log_prob, bar = gaussian_log_prob(output, u, mean_limit=9.0)
    return log_prob + 2.0 * np.log(np.cosh(u)), bar


def categorical(output: Array, action: Array) -> tuple[Array, Array]:
    probability = np.exp(output) / np.exp(output).sum(axis=1, keepdims=True)
    chosen = np.log(probability[np.arange(len(output)), np.argmax(action, axis=1)])
    return chosen[:, None], action - probability


def cloning_loss(
    network: Network, obs: Array, action: Array, weight: Array, discrete: bool = False
) -> tuple[float, Gradient]:
    """-mean w log pi(a|s)."""
    values = forward(network, obs)
    log_prob, bar = (categorical if discrete else tanh_gaussian)(values[-1], action)
    gradient, _ = backward(network, values, -weight[:, None] * bar / len(obs))
    return -float(np.sum([w * row.sum() for w, row in zip(weight, log_prob, strict=True)])) / len(obs), gradient


def advantage(nu: Network, reward: Array, obs: Array, next_obs: Array, terminal: Array, discount: float) -> Array:
    return reward + discount * (1.0 - terminal) * forward(nu, next_obs)[-1][:, 0] - forward(nu, obs)[-1][:, 0]


def critic_loss(
    nu: Network,
    reward: Array,
    expert: tuple[Array, Array],
    union: tuple[Array, Array],
    initial: Array,
    terminal: Array,
    amount: Array,
    discount: float,
    alpha: float,
    coefficient: float,
) -> tuple[float, Gradient]:
    """(1-gamma) mean nu(s0) + K logsumexp(A/K) + coefficient * mean ||grad nu||^2; expert and union are (s, s')."""
    temperature = 1.0 + alpha
    gain = advantage(nu, reward, *union, terminal, discount)
    exponential = np.exp((gain - gain.max()) / temperature)
    share = exponential / exponential.sum()
    mixes = [amount * e + (1.0 - amount) * u for e, u in zip(expert, union, strict=True)]
    penalised, penalty_gradient = penalty(nu, np.concatenate([union[0], *mixes]), "value", target=0.0)

    def through(x: Array, nu_bar: Array) -> Gradient:
        return backward(nu, forward(nu, x), nu_bar[:, None])[0]

    gradient = add(
        through(initial, np.full(len(initial), (1.0 - discount) / len(initial))),
        through(union[1], share * discount * (1.0 - terminal)),
        through(union[0], -share),
        scale(coefficient, penalty_gradient),
    )
    log_sum = gain.max() + temperature * np.log(exponential.sum())
    return float((1.0 - discount) * forward(nu, initial)[-1].mean() + log_sum + coefficient * penalised), gradient


def value_loss(
    value: Network,
    reward: Array,
    rows: tuple[Array, Array],
    initial: Array,
    terminal: Array,
    discount: float,
    divergence: str,
) -> tuple[float, Gradient]:
    """SMODICE's: (1-gamma) mean V(s0) + log sum exp(e), or with the chi-square divergence + mean (e^2/2 + e)."""
    gain = advantage(value, reward, *rows, terminal, discount)
    if divergence == "kl":
        conjugate, gain_bar = np.log(np.exp(gain).sum()), np.exp(gain) / np.exp(gain).sum()
    else:
        conjugate, gain_bar = np.mean((gain + 1.0) ** 2 - 1.0) / 2.0, (gain + 1.0) / len(gain)
    bars = {"initial": np.full(len(initial), (1.0 - discount) / len(initial)), "here": -gain_bar}
    bars["following"] = discount * (1.0 - terminal) * gain_bar
    places = {"initial": initial, "here": rows[0], "following": rows[1]}
    parts = [backward(value, forward(value, x), bars[name][:, None])[0] for name, x in places.items()]
    return float((1.0 - discount) * forward(value, initial)[-1].mean() + conjugate), add(*parts)


def normalised_weight(gain: Array, alpha: float) -> Array:
    weight = np.exp((gain - gain.max()) / (1.0 + alpha))
    return weight / weight.mean()


TwoBranch = tuple[tuple[Array, Array], tuple[Array, Array], Network]


def dwbc_forward(network: TwoBranch, x: Array, log_prob: Array) -> tuple[Array, Array, list[Array]]:
    """The probability before its clip, the rescaled log pi, and the joint part's activations."""
    (x_kernel, x_bias), (l_kernel, l_bias), joint = network
    likelihood = (np.clip(log_prob, -20.0, 10.0) + 20.0) / 30.0
    hidden = np.concatenate([x @ x_kernel + x_bias, likelihood @ l_kernel + l_bias], axis=1)
    values = forward(joint, np.maximum(hidden, 0.0))
    return sigmoid(values[-1][:, 0]), likelihood, values


def dwbc_likeness(network: TwoBranch, x: Array, log_prob: Array) -> Array:
    return np.clip(dwbc_forward(network, x, log_prob)[0], 0.1, 0.9)


def dwbc_discriminator_loss(
    network: TwoBranch, x: Array, log_prob: Array, eta: float
) -> tuple[float, tuple[tuple[Array, Array], tuple[Array, Array], Gradient]]:
    """mean_E[-log d + log(1-d)] - mean_O log(1-d) / eta: the first half of the rows is the expert's."""
    c, likelihood, values = dwbc_forward(network, x, log_prob)
    d_expert, d_other = np.split(np.clip(c, 0.1, 0.9), 2)
    rows = len(d_expert)
    loss = np.mean(np.log((1.0 - d_expert) / d_expert)) - np.mean(np.log(1.0 - d_other)) / eta
    d_bar = np.concatenate([-1.0 / (d_expert * (1.0 - d_expert)), 1.0 / (eta * (1.0 - d_other))]) / rows
    z_bar = d_bar * ((c > 0.1) & (c < 0.9)) * c * (1.0 - c)
    joint_gradient, hidden_bar = backward(network[2], values, z_bar[:, None])
    hidden_bar = hidden_bar * (values[0] > 0)
    size = network[0][0].shape[1]
    x_bar, l_bar = hidden_bar[:, :size], hidden_bar[:, size:]
    return float(loss), (
        (x.T @ x_bar, x_bar.sum(axis=0)),
        (likelihood.T @ l_bar, l_bar.sum(axis=0)),
        joint_gradient,
    )


def dwbc_weights(d_expert: Array, d_other: Array, alpha: float, eta: float) -> tuple[Array, Array]:
    """The factors of l_E in alpha l_E - (eta/(d(1-d)) + 1) l_E and of l_O in (1/(1-d) - 1) l_O, d = 0 below a half."""
    kept = np.where(d_other < 0.5, 0.0, d_other)
    return alpha - (eta / (d_expert * (1.0 - d_expert)) + 1.0), 1.0 / (1.0 - kept) - 1.0


def dwbc_policy_loss(
    network: Network, obs: Array, action: Array, weight: Array, discrete: bool, margin: float
) -> tuple[float, Gradient]:
    """-mean_E w log pi - mean_O w log pi: the two halves of the rows have a mean each."""
    values = forward(network, obs)
    log_prob, bar = categorical(values[-1], action) if discrete else tanh_gaussian_inside(values[-1], action, margin)
    gradient, _ = backward(network, values, -weight[:, None] * bar / (len(obs) / 2))
    return -float(np.sum(weight * log_prob.sum(axis=1))) / (len(obs) / 2), gradient


def adam(
    parameter: Array, gradient: Array, first: Array, second: Array, count: int, learning_rate: float, epsilon: float
) -> tuple[Array, Array, Array]:
    """Step number `count` (from 1): the new parameter and both moments."""
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient**2
    step = first / (1.0 - 0.9**count) / (np.sqrt(second / (1.0 - 0.999**count)) + epsilon)
    return parameter - learning_rate * step, first, second
