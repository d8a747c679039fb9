"""The networks: plain pytrees of arrays and the functions that apply them.

A perceptron is a tuple of layers with ReLU between them. A policy is a perceptron inside a class that interprets its
outputs: `TanhGaussian` for continuous actions, `Categorical` for discrete ones; or another body is, from
`registry.NETWORKS`. Discriminators and critics are
perceptrons with one output; `value_and_slope` evaluates one together with its input gradient.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from demosift.learning.products import kernel_gradient, product
from demosift.policy import Kind, Network
from demosift.types import InputError, is_one_hot

FLOAT32_EPSILON = 2.0**-23
LOG_STD_RANGE = (-5.0, 2.0)
MEAN_LIMIT = 7.0  # of the paper's code

Initialiser = Callable[[PRNGKeyArray, tuple[int, int]], Float[Array, "inputs outputs"]]


class Layer(NamedTuple):
    kernel: Float[Array, "inputs outputs"]
    bias: Float[Array, "outputs"] | None


Perceptron = tuple[Layer, ...]

glorot_uniform: Initialiser = jax.nn.initializers.glorot_uniform()
he_normal: Initialiser = jax.nn.initializers.he_normal()  # a truncated normal, as in Keras


def fan_in_uniform(key: PRNGKeyArray, shape: tuple[int, int]) -> Float[Array, "inputs outputs"]:
    """U(-b, b) with b = 1/sqrt(inputs): what PyTorch's Linear starts from."""
    bound = 1.0 / math.sqrt(shape[0])
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def init_perceptron(
    key: PRNGKeyArray, sizes: Sequence[int], kernels: Sequence[Initialiser], *, last_bias: bool = True
) -> Perceptron:
    """Layers of the given sizes, each kernel from its own initialiser.

    Biases start at zero, except beside a `fan_in_uniform` kernel, where they are drawn like the kernel (as PyTorch
    does).
    """
    layers = []
    for index, (inputs, outputs, kernel) in enumerate(zip(sizes[:-1], sizes[1:], kernels, strict=True)):
        kernel_key, bias_key = jax.random.split(jax.random.fold_in(key, index))
        bias = jnp.zeros(outputs)
        if kernel is fan_in_uniform:
            bias = fan_in_uniform(bias_key, (inputs, outputs))[0]
        if index == len(sizes) - 2 and not last_bias:
            bias = None
        layers.append(Layer(kernel(kernel_key, (inputs, outputs)), bias))
    return tuple(layers)


def in_bf16() -> bool:
    """Whether `apply` and `value_and_slope` keep hidden activations in bf16: they do if JAX is set to multiply in it.

    Training many networks on a GPU is limited by reading and writing activations, so rounding the products alone gains
    nothing. Parameters, outputs, losses and the optimiser stay in float32.
    """
    return jax.config.jax_default_matmul_precision == "bfloat16"  # type: ignore[attr-defined]


def kernels_for(network: Perceptron, x: Float[Array, "*rows inputs"]) -> ModuleType | None:
    """`demosift.learning.kernels` if its kernels can take this network and these rows, else None."""
    if not in_bf16() or jax.default_backend() != "gpu" or x.ndim != 2:
        return None
    from demosift.learning import kernels as fused  # only here: Pallas takes a while to import

    return fused if fused.takes(network, x.shape[0]) else None


def affine(layer: Layer, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """x @ kernel + bias, multiplied in the type of x and returned in the type of the layer."""
    if layer.kernel.dtype == x.dtype and jax.default_backend() == "cpu":
        y = product(x, layer.kernel)
    else:
        y = jnp.matmul(x, layer.kernel.astype(x.dtype), preferred_element_type=layer.kernel.dtype)
    return y if layer.bias is None else y + layer.bias[(None,) * (y.ndim - 1)]


def hidden_layer(layer: Layer, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """ReLU of an affine layer, all of it in the type of x."""
    return jax.nn.relu(affine(jax.tree.map(lambda array: array.astype(x.dtype), layer), x))


def apply(network: Perceptron, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    if (kernels := kernels_for(network, x)) is not None:
        return kernels.apply(network, x)
    x = x.astype(jnp.bfloat16) if in_bf16() else x
    for layer in network[:-1]:
        x = hidden_layer(layer, x)
    return affine(network[-1], x)


def apply_body(body: Network | None, layers: Any, obs: Float[Array, "rows obs"]) -> Float[Array, "rows outputs"]:
    return apply(layers, obs) if body is None else body.apply(layers, obs)


P = TypeVar("P")


def policy_network(cls: type[P]) -> type[P]:
    """Make a dataclass with `layers` a pytree whose leaves are the arrays of its layers.

    The other fields are compared, so that a program compiled for one value never runs for another. The keys are those
    of a named tuple, such as `.layers[0].kernel`; checkpoints name arrays by them.
    """
    static = [field.name for field in fields(cls) if field.name != "layers"]  # type: ignore[arg-type]

    def flatten(self: Any):
        return (self.layers,), tuple(getattr(self, name) for name in static)

    def flatten_with_keys(self: Any):
        children, auxiliary = flatten(self)
        return ((jax.tree_util.GetAttrKey("layers"), *children),), auxiliary

    def unflatten(auxiliary: tuple[Any, ...], children: Any) -> P:
        made = object.__new__(cls)  # not through `__init__`, where tests check types: JAX also puts markers into trees
        for name, value in zip(["layers", *static], [*children, *auxiliary], strict=True):
            object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


@policy_network
@dataclass(frozen=True)
class TanhGaussian:
    """A diagonal Gaussian squashed by tanh. The last layer gives the means, then the log standard deviations.

    `mean_limit` is where the mean is clipped, before tanh; None means nowhere. `log_std_floor` is the smallest log
    standard deviation. Both are part of the network, so that a policy acts with the limits with which it was trained.
    """

    kind: ClassVar[Kind] = "tanh-gaussian"

    layers: Any  # Perceptron, or the body's parameters
    mean_limit: float | None = MEAN_LIMIT
    log_std_floor: float = LOG_STD_RANGE[0]
    body: Network | None = None

    def outputs(self, obs: Float[Array, "rows obs"]) -> Float[Array, "rows outputs"]:
        return apply_body(self.body, self.layers, obs)

    def mean(self, obs: Float[Array, "rows obs"]) -> Float[Array, "rows action"]:
        """Before squashing."""
        return self.moments(obs)[0]

    def moments(self, obs: Float[Array, "rows obs"]) -> tuple[Array, Array]:
        """Mean and log standard deviation before squashing. The clips are hard: no gradient flows outside them."""
        mean, log_std = jnp.split(self.outputs(obs), 2, axis=-1)
        if self.mean_limit is not None:
            mean = jnp.clip(mean, -self.mean_limit, self.mean_limit)
        return mean, jnp.clip(log_std, self.log_std_floor, LOG_STD_RANGE[1])

    def log_prob(
        self, obs: Float[Array, "rows obs"], action: Float[Array, "rows action"]
    ) -> Float[Array, "rows action"]:
        """log pi(a|s), one number per action dimension.

        The action is clipped before atanh; the log-determinant uses it unclipped. It depends on no parameter, so it
        only shifts the loss.
        """
        inside = jnp.clip(action, -1.0 + FLOAT32_EPSILON, 1.0 - FLOAT32_EPSILON)
        return self.log_prob_before_tanh(obs, jnp.arctanh(inside), jnp.log(1.0 - action**2 + FLOAT32_EPSILON))

    def log_prob_before_tanh(self, obs: Float[Array, "rows obs"], u: Array, log_slope: Array) -> Array:
        """log pi(tanh u|s) per dimension; `log_slope` is log(1 - tanh(u)^2), which the caller computes."""
        mean, log_std = self.moments(obs)
        return squashed_log_prob((u - mean) * jnp.exp(-log_std), log_std, log_slope)


@policy_network
@dataclass(frozen=True)
class Categorical:
    """A distribution over one-hot actions. The last layer gives the logits."""

    kind: ClassVar[Kind] = "categorical"
    mean_limit: ClassVar[None] = None

    layers: Any  # Perceptron, or the body's parameters
    body: Network | None = None

    def outputs(self, obs: Float[Array, "rows obs"]) -> Float[Array, "rows outputs"]:
        return apply_body(self.body, self.layers, obs)

    def log_prob(self, obs: Float[Array, "rows obs"], action: Shaped[Array, "rows action"]) -> Float[Array, "rows 1"]:
        log_probs = jax.nn.log_softmax(self.outputs(obs))
        return jnp.sum(action * log_probs, axis=-1, keepdims=True)


Policy = TanhGaussian | Categorical


def squashed_log_prob(deviation: Array, log_std: Array, log_slope: Array) -> Array:
    """log pi(a|s) per dimension of a = tanh(u) with u normal: `deviation` is (u - mean)/std, `log_slope` log(1 - a^2).

    There are two ways to compute the log-slope: from the action itself, which is finite even for a = 1, or from u by
    `log_tanh_slope`.
    """
    return -0.5 * deviation**2 - log_std - 0.5 * math.log(2.0 * math.pi) - log_slope


def log_tanh_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), written so that no digits are lost where tanh saturates."""
    return 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))


def init_policy(
    key: PRNGKeyArray,
    obs: Float[Array, "*rows obs"],
    action: Shaped[Array, "*rows action"],
    hidden: tuple[int, ...],
    kernel: Initialiser,
    mean_limit: float | None = MEAN_LIMIT,
    log_std_floor: float | None = None,
    body: Network | None = None,
) -> Policy:
    """The policy that fits these observations and actions. The Gaussian's two heads are initialised as two layers.

    A body that is no perceptron initialises itself.
    """
    body_key, head_key = jax.random.split(key)
    action_dim = action.shape[-1]
    floor = LOG_STD_RANGE[0] if log_std_floor is None else log_std_floor
    if body is not None:
        outputs = action_dim if is_one_hot(action) else 2 * action_dim
        params = init_body(body, body_key, (obs.shape[-1], *hidden, outputs))
        return Categorical(params, body) if is_one_hot(action) else TanhGaussian(params, mean_limit, floor, body)
    sizes = (obs.shape[-1], *hidden, action_dim)
    layers = init_perceptron(body_key, sizes, [kernel] * (len(hidden) + 1))
    if is_one_hot(action):
        return Categorical(layers)
    (log_std,) = init_perceptron(head_key, (sizes[-2], action_dim), [kernel])
    heads = jax.tree.map(lambda mean, spread: jnp.concatenate([mean, spread], axis=-1), layers[-1], log_std)
    return TanhGaussian((*layers[:-1], heads), mean_limit, floor)


def init_body(body: Network, key: PRNGKeyArray, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The parameters, or what is wrong with them: the functions may be of another package."""
    params = body.init(key, sizes)
    if not isinstance(params, dict) or not all(isinstance(name, str) and "/" not in name for name in keys_of(params)):
        raise InputError(f"network {body.name!r}: init must give a dictionary, whose keys are words without a slash")
    params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), params)
    rows = jnp.zeros((2, 1, sizes[0]))
    found = jax.eval_shape(body.apply, params, rows)
    if getattr(found, "shape", None) != (2, 1, sizes[-1]):
        raise InputError(f"network {body.name!r}: apply must turn {rows.shape} into {(2, 1, sizes[-1])}, not {found}")
    return params


def keys_of(params: dict[Any, Any]) -> list[Any]:
    return [*params, *(key for part in params.values() if isinstance(part, dict) for key in keys_of(part))]


def init_scalar_network(
    key: PRNGKeyArray, inputs: int, hidden: tuple[int, ...], last: Initialiser, last_bias: bool
) -> Perceptron:
    kernels = [he_normal] * len(hidden) + [last]
    return init_perceptron(key, (inputs, *hidden, 1), kernels, last_bias=last_bias)


def state_action(obs: Float[Array, "*rows obs"], action: Shaped[Array, "*rows action"]) -> Float[Array, "*rows inputs"]:
    """What a discriminator sees: the normalised state beside the raw (or one-hot) action."""
    return jnp.concatenate([obs, action.astype(obs.dtype)], axis=-1)


def scalar(network: Perceptron, x: Float[Array, "rows inputs"]) -> Float[Array, "rows"]:
    return apply(network, x)[..., 0]


def value_and_slope(
    network: Perceptron, x: Float[Array, "rows inputs"]
) -> tuple[Float[Array, "rows"], Float[Array, "rows inputs"]]:
    """z(x) and its slope dz/dx, for a one-output ReLU network z.

    Gradient penalties differentiate the slope once more. A ReLU network is piecewise linear, which makes that cheap.
    With h_l the activations of the hidden layers l = 1..L, m_l = [h_l > 0], v_l = dz/d(pre-activation of layer l), and
    w, b the output's kernel and the biases, the backward pass of both the values and the slope needs only

        dL/dW_l = (zbar * h_{l-1} + u_{l-1})^T v_l,     u_0 = gbar,     u_l = m_l * (u_{l-1} W_l),

    where zbar and gbar are the cotangents of z and of the slope, and u is the tangent of the activations along gbar. So
    one matrix product per layer serves both gradients, and v, needed for the slope, is not computed twice. For the last
    hidden layer v_L = m_L * w, so that its product q = (zbar * h_{L-1} + u_{L-1})^T m_L gives two gradients, and u_L is
    not needed:

        dL/dW_L = q * w,     dL/dw = sum over rows of (zbar * h_L + u_L) = sum_i (W_L * q)_i + b_L * (zbar^T m_L).

    Differentiating blindly would cost six products of the hidden size where this takes three.
    """
    if (kernels := kernels_for(network, x)) is not None:
        return kernels.value_and_slope(network, x)
    return _value_and_slope(network, x)


@jax.custom_vjp
def _value_and_slope(network: Perceptron, x: Array) -> tuple[Array, Array]:
    return _value_and_slope_forward(network, x)[0]


def _value_and_slope_forward(network: Perceptron, x: Array):
    activations = [x.astype(jnp.bfloat16) if in_bf16() else x]
    dtype = activations[0].dtype
    for layer in network[:-1]:
        activations.append(hidden_layer(layer, activations[-1]))
    value = affine(network[-1], activations[-1])[:, 0]
    # From the last hidden layer, whose v is the output kernel, masked, down to the first.
    slope = jnp.broadcast_to(network[-1].kernel[:, 0].astype(dtype), activations[-1].shape)
    sensitivities = []
    for layer, activation in zip(reversed(network[:-1]), reversed(activations[1:]), strict=True):
        sensitivities.insert(0, jnp.where(activation > 0, slope, jnp.zeros_like(slope)))
        kept_in = dtype if len(sensitivities) < len(network) - 1 else x.dtype
        slope = jnp.matmul(sensitivities[0], layer.kernel.T.astype(dtype), preferred_element_type=kept_in)
    slope = slope.astype(x.dtype)  # of a network without hidden layers
    return (value, slope), (network, activations, sensitivities, slope)


def _value_and_slope_backward(residuals, cotangents):
    network, activations, sensitivities, slope = residuals
    value_bar, slope_bar = cotangents
    dtype = activations[0].dtype
    z_bar, tangent = value_bar[:, None].astype(dtype), slope_bar.astype(dtype)
    total = functools.partial(jnp.matmul, preferred_element_type=value_bar.dtype)
    last_bias = None if network[-1].bias is None else jnp.sum(value_bar)[None]
    gradient = []
    for layer, activation, next_activation, sensitivity in zip(
        network[:-2], activations[:-2], activations[1:-1], sensitivities[:-1], strict=True
    ):
        kernel = kernel_gradient(z_bar * activation + tangent, sensitivity)
        gradient.append(Layer(kernel, total(z_bar[:, 0], sensitivity)))
        tangent = jnp.where(next_activation > 0, tangent @ layer.kernel.astype(dtype), jnp.zeros((), dtype))
    if len(network) == 1:  # no hidden layer
        last_kernel = total(z_bar[:, 0], activations[0]) + jnp.sum(tangent, axis=0, dtype=value_bar.dtype)
    else:
        layer, output = network[-2], network[-1].kernel[:, 0]
        mask = (activations[-1] > 0).astype(dtype)
        product, bias = kernel_gradient(z_bar * activations[-2] + tangent, mask), total(z_bar[:, 0], mask)
        gradient.append(Layer(product * output[None], bias * output))
        last_kernel = jnp.sum(layer.kernel * product, axis=0) + layer.bias * bias
    gradient.append(Layer(last_kernel[:, None], last_bias))
    return tuple(gradient), value_bar[:, None] * slope


_value_and_slope.defvjp(_value_and_slope_forward, _value_and_slope_backward)
