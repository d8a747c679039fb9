"""Members of different environments in one program: networks padded with zeros to common sizes.

On a GPU the time of an iteration of a few members goes to launching kernels, so twenty members of four environments
cost little more than five of one. A padded member computes what it computes alone, up to rounding:

- its networks are initialised in their own sizes, then padded with zeros, and so are its data;
- a zero input meets a zero kernel, and a zero head passes nothing back, so padding never reaches a real parameter;
- what does reach padded parameters (the likelihood of padded action dimensions, the tiny number that keeps a
  penalty's norm differentiable) is wiped after every step (`Padded.step`).

Only the value of the policy's loss is shifted, by the constant likelihood of the padded dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from demosift.learning.algorithm import Algorithm, Batch, Method, Metrics, State
from demosift.learning.members import TrainingData
from demosift.types import InputError, Transitions


class Sizes(NamedTuple):
    obs: int
    action: int


# Sizes that no real axis has. They mark the axes whose lengths depend on the environment.
PROBE = Sizes(obs=100_003, action=1_000_003)

Kind = tuple[int, int]  # how many observations and actions make up the length of an axis; (0, 0) if it is fixed


def axis_kinds(algorithm: Method, part: Callable[[State], Any] = lambda state: state) -> list[tuple[Kind, ...]]:
    """For every leaf of the algorithm's state, or of a part of it, what each axis is made of."""
    shapes = jax.eval_shape(lambda: part(algorithm.init(empty_batch(PROBE), jax.random.key(0))))
    return [tuple(kind_of(size) for size in leaf.shape) for leaf in jax.tree.leaves(shapes)]


def empty_batch(sizes: Sizes) -> Batch:
    obs, action = jnp.zeros((1, sizes.obs)), jnp.zeros((1, sizes.action))
    rows = Transitions(obs, action, jnp.zeros(1), obs, jnp.zeros(1, bool))
    return Batch(rows, rows, rows, rows, jnp.zeros((2, 1, 1)))


def kind_of(size: int) -> Kind:
    actions, rest = divmod(size, PROBE.action)
    observations, rest = divmod(rest, PROBE.obs)
    if size < PROBE.obs:
        return (0, 0)
    if rest or (observations, actions) not in ((1, 0), (0, 1), (1, 1), (0, 2), (2, 0), (2, 1)):
        raise InputError(f"environments cannot share a program: a layer of this algorithm has {size} units")
    return observations, actions


def places(kind: Kind, own: Sizes, common: Sizes) -> Int[np.ndarray, "own"]:
    """Where a member's own entries are on a common axis: [obs | action], [obs | next obs], or [mean | log std]."""
    observations = [part * common.obs + np.arange(own.obs) for part in range(kind[0])]
    after = kind[0] * common.obs
    return np.concatenate(
        observations + [after + part * common.action + np.arange(own.action) for part in range(kind[1])]
    )


def length(kind: Kind, common: Sizes) -> int:
    return kind[0] * common.obs + kind[1] * common.action


def pad_leaf(leaf: np.ndarray, kinds: Sequence[Kind], own: Sizes, common: Sizes, first: int = 1) -> np.ndarray:
    """A leaf's own entries among zeros. `first` axes, those of the members, come before those of `kinds`."""
    for axis, kind in enumerate(kinds, start=first):
        if kind != (0, 0):
            shape = [*leaf.shape]
            shape[axis] = length(kind, common)
            wide = np.zeros(shape, leaf.dtype)
            wide[(slice(None),) * axis + (places(kind, own, common),)] = leaf
            leaf = wide
    return leaf


def unpad_leaf(leaf: np.ndarray, kinds: Sequence[Kind], own: Sizes, common: Sizes, first: int = 1) -> np.ndarray:
    for axis, kind in enumerate(kinds, start=first):
        if kind != (0, 0):
            leaf = np.take(leaf, places(kind, own, common), axis=axis)
    return leaf


def pad_state(state: State, kinds: Sequence[tuple[Kind, ...]], own: Sizes, common: Sizes) -> State:
    leaves, structure = jax.tree.flatten(jax.device_get(state))
    padded = [pad_leaf(np.asarray(leaf), k, own, common) for leaf, k in zip(leaves, kinds, strict=True)]
    return jax.tree.unflatten(structure, padded)


def pad_data(data: TrainingData, own: Sizes, common: Sizes) -> TrainingData:
    union = data.union
    obs, next_obs = (pad_leaf(rows, [(0, 0), (1, 0)], own, common, first=0) for rows in (union.obs, union.next_obs))
    action = pad_leaf(union.action, [(0, 0), (0, 1)], own, common, first=0)
    return data._replace(union=union._replace(obs=obs, action=action, next_obs=next_obs))


def mask_of(kinds: Sequence[Kind], own: Sizes, common: Sizes) -> np.ndarray | None:
    """Which entries of a leaf are a member's own, in a shape that broadcasts; None where all are."""
    if all(kind == (0, 0) for kind in kinds):
        return None
    mask = np.ones((1,) * len(kinds), bool)
    for axis, kind in enumerate(kinds):
        if kind != (0, 0):
            along = np.zeros(length(kind, common), bool)
            along[places(kind, own, common)] = True
            mask = mask & along.reshape([-1 if each == axis else 1 for each in range(len(kinds))])
    return mask


@jax.tree_util.register_pytree_node_class
class Padded:
    """An algorithm that wipes its members' padding after every step; `masks` has an entry for each leaf of a state."""

    def __init__(self, algorithm: Algorithm, masks: Sequence[Any]) -> None:
        self.algorithm, self.masks = algorithm, tuple(masks)

    @property
    def batch_size(self) -> int:
        return self.algorithm.batch_size

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        state, metrics = self.algorithm.step(state, batch, iteration, key)
        leaves, structure = jax.tree.flatten(state)
        pairs = zip(leaves, self.masks, strict=True)
        wiped = [leaf if mask is None else jnp.where(mask, leaf, jnp.zeros_like(leaf)) for leaf, mask in pairs]
        return jax.tree.unflatten(structure, wiped), metrics

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return (self.algorithm, self.masks), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> "Padded":
        return cls(*children)
