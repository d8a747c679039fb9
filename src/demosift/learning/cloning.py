"""Cloning: how a policy is fitted to weighted rows. The other half of every method; the weight is the first.

    likelihood   -mean( w log pi(a|s) )                            the paper's loss, with tanh-Gaussian policies
    squared       mean( w ||tanh(mean(s)) - a||^2 )                the error of the action that is taken

The paper's methods clone as the paper's code does, which is what `Cloner()` says. `ROBUST` gives better policies in a
fraction of the iterations: it puts a floor under the log standard deviation, which otherwise collapses and lets the
loss chase the last digits of a few rows; it adds decoupled weight decay; and its learning rate falls to zero where the
run ends.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.algorithm import Batch
from demosift.learning.learner import Learner, descend, start
from demosift.learning.losses import weighted_loss
from demosift.learning.networks import Initialiser, Policy, TanhGaussian, glorot_uniform, init_policy
from demosift.policy import Network
from demosift.registry import NETWORKS
from demosift.types import InputError, Transitions

PERCEPTRON = "perceptron"


@dataclass(frozen=True)
class Cloner:
    """How the policy is fitted. These are fields of every method, and flags of the command line.

    As a tree it has no leaves, unless the decay is an array, as it is where members of a program differ in it.
    """

    loss: Literal["likelihood", "squared"] = "likelihood"
    log_std_floor: float | None = None  # smallest log standard deviation; None: the networks' own, -5; not discrete
    # Decoupled weight decay of the policy, times the learning rate.
    decay: float = dataclasses.field(default=0.0, metadata={"members": True})
    rate_schedule: Literal["constant", "cosine"] = "constant"  # cosine falls to zero at the end of the run
    network: str = PERCEPTRON  # the policy's body, by its name in `registry.NETWORKS`
    average: float = 0.0  # of the parameters: what a step keeps of the average, such as 0.999; 0: none
    horizon: int = dataclasses.field(default=0, metadata={"flag": False})  # the run's iterations, for a falling rate

    def check(self, discrete: bool) -> None:
        """Refuse settings that contradict each other or the actions."""
        if self.loss == "squared" and self.log_std_floor is not None:
            raise InputError("log_std_floor: the squared error has no standard deviation; leave one of them out")
        if discrete and self.loss == "squared":
            raise InputError("discrete actions are cloned by cross-entropy; the squared error is for others")
        self.body()
        if not 0.0 <= self.average < 1.0:
            raise InputError(f"average: must be at least 0 and below 1, not {self.average}")

    def body(self) -> Network | None:
        if self.network == PERCEPTRON:
            return None
        if self.network not in NETWORKS:
            known = ", ".join([PERCEPTRON, *NETWORKS])
            raise InputError(f"unknown network {self.network!r}; choose one of {known}")
        return NETWORKS[self.network]

    def rate(self, learning_rate: Any, iteration: Array | int) -> Any:
        if self.rate_schedule == "constant":
            return learning_rate
        done = jnp.minimum(iteration / max(self.horizon, 1), 1.0)
        return learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * done))


def flatten_cloner(cloner: Cloner) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    values = dict(vars(cloner))
    varies = not isinstance(cloner.decay, int | float)
    children = (values.pop("decay"),) if varies else ()
    return children, tuple(values.items())


def unflatten_cloner(auxiliary: tuple[Any, ...], children: tuple[Any, ...]) -> Cloner:
    made = object.__new__(Cloner)  # not through `__init__`, where tests check types: JAX also puts markers into trees
    for name, value in (*auxiliary, *(("decay", child) for child in children)):
        object.__setattr__(made, name, value)
    return made


jax.tree_util.register_pytree_node(Cloner, flatten_cloner, unflatten_cloner)


def with_own_decays(settings: Sequence[Any]) -> list[Any]:
    """Algorithms whose settings differ in the decay, as members of one program."""
    cloners = [setting.cloner for setting in settings]
    if len({cloner.decay for cloner in cloners if cloner is not None}) < 2:
        return list(settings)
    return [
        dataclasses.replace(setting, cloner=dataclasses.replace(cloner, decay=jnp.float32(cloner.decay)))  # type: ignore
        for setting, cloner in zip(settings, cloners, strict=True)
    ]


PAPER = Cloner()
ROBUST = Cloner(log_std_floor=-1.0, decay=0.1, rate_schedule="cosine")
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "robust": {"learning_rate": 1e-3} | {k: v for k, v in vars(ROBUST).items() if v != getattr(PAPER, k)},
}
"""Named sets of settings, for any method."""


def init_cloner(
    batch: Batch,
    hidden: tuple[int, ...],
    key: PRNGKeyArray,
    cloner: Cloner = PAPER,
    kernel: Initialiser = glorot_uniform,
) -> Learner:
    """The policy of BC, NBCU and WBCU is Glorot-uniform in every layer, unlike DemoDICE's (as in the paper's code)."""
    obs, action = batch.union.obs, batch.union.action
    policy = init_policy(key, obs, action, hidden, kernel, log_std_floor=cloner.log_std_floor, body=cloner.body())
    return start(policy, averaged=cloner.average > 0.0)


def clone(
    policy: Learner,
    rows: Transitions,
    weight: Float[Array, "rows"],
    learning_rate: float,
    iteration: Array | int = 0,
    cloner: Cloner = PAPER,
    **adam: Any,
) -> tuple[Learner, Float[Array, ""]]:
    """One step down the weighted loss on these rows. `adam`: what else `descend` takes."""

    def loss(params: Policy) -> Float[Array, ""]:
        if cloner.loss == "squared" and isinstance(params, TanhGaussian):
            error = jnp.sum((jnp.tanh(params.mean(rows.obs)) - rows.action) ** 2, axis=-1)
            return weighted_loss(weight, -error)
        return weighted_loss(weight, jnp.sum(params.log_prob(rows.obs, rows.action), axis=-1))

    value, gradient = jax.value_and_grad(loss)(policy.params)
    return update_policy(policy, gradient, learning_rate, iteration, cloner, **adam), value


def update_policy(
    policy: Learner, gradient: Any, learning_rate: float, iteration: Array | int, cloner: Cloner = PAPER, **adam: Any
) -> Learner:
    """One step of Adam by the cloner's schedule, then the decay, then the average."""
    rate = cloner.rate(learning_rate, iteration)
    new = descend(policy, gradient, rate, **adam)
    if not isinstance(cloner.decay, int | float) or cloner.decay:
        shrunk = jax.tree.map(lambda p, old: p - rate * cloner.decay * old, new.params, policy.params)
        new = new._replace(params=shrunk)
    if cloner.average:
        # While there are few parameters to average, the last of them count for more.
        kept = jnp.minimum(cloner.average, (1.0 + iteration) / (10.0 + iteration))
        new = new._replace(average=jax.tree.map(lambda a, p: kept * a + (1.0 - kept) * p, new.average, new.params))
    return new
