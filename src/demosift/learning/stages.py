"""Preparations in stages: one dataset's or many, by one driver.

A method writes what it does with one dataset as a generator (`Stages`). It yields each discriminator that it needs and
is sent the network. So the preparations of many datasets advance together, and the discriminators that they need at the
same stage are members of one program.
"""

import hashlib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from demosift.files import digest
from demosift.learning.networks import Perceptron
from demosift.learning.prepared import Kept
from demosift.learning.pretraining import Stage, pretrain
from demosift.results.checkpoint import CheckpointFolder
from demosift.types import InputError

T = TypeVar("T")
Stages = Generator[Stage, Perceptron, T]


def alone(stages: Stages[T], kept: Kept) -> T:
    return together([stages], kept)[0]


def together(preparations: Sequence[Stages[T]], kept: Kept, stopped: Callable[[], bool] = lambda: False) -> list[T]:
    """What these preparations come to. Their stages that can share a program are trained in one.

    One that fails lets the others come to their end first, so that what they keep is kept; then its error is raised.
    """
    results: dict[int, T] = {}
    errors: list[Exception] = []
    networks: dict[int, Perceptron | InputError | None] = dict.fromkeys(range(len(preparations)))
    while networks:
        wanted: dict[int, Stage] = {}
        for place, network in networks.items():
            each = preparations[place]
            try:
                # The first `send` is of None, as generators want it.
                failed = isinstance(network, InputError)
                wanted[place] = each.throw(network) if failed else each.send(network)  # type: ignore[arg-type]
            except StopIteration as end:
                results[place] = end.value
            except Exception as error:
                errors.append(error)
        networks = {}
        for places in programs(wanted):
            stages = [wanted[place] for place in places]
            folder = None if kept.workshop is None else kept.workshop / folder_name(stages, len(preparations))
            networks |= zip(places, map(checked, stages, pretrain(stages, folder, stopped)), strict=True)
    if errors:
        raise errors[0]
    if kept.workshop is not None:
        CheckpointFolder(kept.workshop).discard()
    return [results[place] for place in range(len(preparations))]


def programs(wanted: Mapping[int, Stage]) -> list[list[int]]:
    """Stages that train together. On a CPU, where each is a program of its own, none is made wider for another."""
    on_cpu = jax.default_backend() == "cpu"
    groups: dict[Hashable, list[int]] = {}
    for place, stage in wanted.items():
        groups.setdefault((stage.how, stage.iterations, stage.inputs if on_cpu else None), []).append(place)
    return list(groups.values())


def folder_name(stages: Sequence[Stage], num_preparations: int) -> str:
    """Where stages leave their checkpoints. Of several, the name says which: next time there may be others."""
    place = stages[0].place
    if num_preparations == 1:
        return place
    rows = [digest({"expert": stage.expert, "other": stage.other}) for stage in stages]
    return f"{place}-{hashlib.sha256(' '.join(rows).encode()).hexdigest()[:16]}"


def checked(stage: Stage, network: Perceptron) -> Perceptron | InputError:
    """The network, or why it is none."""
    if all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(network)):
        return network
    return InputError(f"{stage.name}: diverged; choose a smaller learning rate for it")
