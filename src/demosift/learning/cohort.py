"""Members in training: one program for all of them on a GPU; on a CPU a program for each, on a core of its own.

A CPU's cores share the products of one network badly: they are too small. Two networks on two cores train nearly twice
as fast as two in turn with two cores for each product, and any number of networks is compiled once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from demosift.learning.algorithm import Metrics, State
from demosift.learning.members import Members, Precision, advance
from demosift.simulation.cores import core_threads

T = TypeVar("T")


class Cohort:
    """Members and their states, cut into the parts that are programs of their own."""

    def __init__(self, members: Members, state: State, precision: Precision = "float32") -> None:
        size = len(members.seed)
        together = 1 if jax.default_backend() == "cpu" else size
        self.places = [slice(first, first + together) for first in range(0, size, together)]
        self.parts = self.cut(members)
        self.state = state
        self.precision: Precision = precision
        self.threads = core_threads() if len(self.parts) > 1 else None

    def cut(self, members: Members) -> list[Members]:
        """These members in the same parts."""
        if len(self.places) == 1:
            return [members]
        varying = (members.algorithm, members.seed, members.own)
        own = (jax.tree.map(lambda array, of=of: array[of], varying) for of in self.places)
        return [Members(algorithm, seed, members.shared, data) for algorithm, seed, data in own]

    @property
    def state(self) -> State:
        """Of all members. Copy it to keep it: the next iterations reuse the memory of what is not joined."""
        return self.states[0] if len(self.states) == 1 else join(self.states)

    @state.setter
    def state(self, state: State) -> None:
        alone = len(self.places) == 1
        self.states = [state if alone else jax.tree.map(lambda leaf, of=of: leaf[of], state) for of in self.places]

    def advance(self, first: int, steps: int) -> Metrics:
        """`steps` iterations of all members, and the metrics averaged over them."""

        def one(place: int) -> Metrics:
            self.states[place], metrics = advance(self.parts[place], self.states[place], first, steps, self.precision)
            return metrics if self.threads is None else jax.block_until_ready(metrics)

        metrics = self.over_parts(one)
        return metrics[0] if len(metrics) == 1 else join(metrics)

    def over_parts(self, function: Callable[[int], T]) -> list[T]:
        """The answers for the place of every part, as many at a time as there are cores."""
        places = range(len(self.parts))
        return (
            [function(place) for place in places] if self.threads is None else list(self.threads.map(function, places))
        )


def join(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
