"""What an algorithm is: a frozen dataclass whose fields are its hyper-parameters and whose methods are its maths."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.networks import Policy
from demosift.types import InputError, Transitions

Metrics = dict[str, Float[Array, ""]]
State = Any  # each algorithm's own named tuple


class Batch(NamedTuple):
    """Rows of each set, drawn independently and uniformly with replacement.

    The compiler drops what an algorithm ignores.
    """

    expert: Transitions
    union: Transitions
    supplementary: Transitions
    initial: Transitions  # rows that start an episode
    uniform: Float[Array, "2 rows 1"]  # two numbers in [0, 1) for each row, for whatever needs chance
    weight: Float[Array, "rows"] | None = None  # of the union's rows, where scores were given with the data


class Algorithm(Protocol):
    """The contract.

    `iteration` counts from 0 and is shared by all members, so a `cond` on it stays a branch under vmap.
    """

    name: ClassVar[str]
    needs_supplementary: ClassVar[bool]
    mean_limit: ClassVar[float]  # where the policy's mean is clipped, before tanh

    @property
    def batch_size(self) -> int: ...

    @property
    def hidden(self) -> tuple[int, ...]: ...

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        """Networks that fit the batch's sizes."""
        ...

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]: ...

    def policy(self, state: State) -> Policy: ...

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """How much each of these rows of the union is worth imitating, by the current networks."""
        ...


REGISTRY: dict[str, type[Algorithm]] = {}
"""Every algorithm that can be named: on the command line, in a grid, in a run's config."""


def register(cls: type[Algorithm]) -> type[Algorithm]:
    """Make an algorithm known by its name."""
    REGISTRY[cls.name] = cls
    return cls


def make_algorithm(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The registered algorithm with these settings; a name or a setting that does not exist is refused."""
    if name not in REGISTRY:
        raise InputError(f"unknown algorithm {name!r}; there are {', '.join(REGISTRY)}")
    cls, settings = REGISTRY[name], settings or {}
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()})


A = TypeVar("A")


@dataclass_transform(frozen_default=True)
def algorithm(cls: type[A]) -> type[A]:
    """Make a class of hyper-parameters a frozen dataclass and a pytree.

    Float fields become leaves, so members can differ in them inside one program; everything else shapes the program.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)  # type: ignore[assignment]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    leaves = [field.name for field in fields if field.type in (float, "float")]
    static = [field.name for field in fields if field.name not in leaves]

    # Not `register_dataclass`: its trees compare equal whatever the class, so that `jit`, which finds programs by hash
    # and then by equality, could run BC's program for NBCU. Here the class is part of what is compared.
    def flatten(self: A) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(self, name) for name in leaves], (cls, *(getattr(self, name) for name in static))

    def unflatten(auxiliary: tuple[Any, ...], values: Any) -> A:
        return cls(**dict(zip(static, auxiliary[1:], strict=True)), **dict(zip(leaves, values, strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
