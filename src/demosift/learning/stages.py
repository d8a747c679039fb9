"""Preparations in stages: one dataset's or many, by one driver.

A method writes what it does with one dataset as a generator (`Stages`). It yields each discriminator that it needs and
is sent the network. So the preparations of many datasets advance together, and the discriminators that they need at the
same stage are members of one program. A method may also yield a call (`Apart`): those of many datasets are shared out
among processes.
"""

import hashlib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from demosift.files import digest
from demosift.learning.apart import Apart, answers
from demosift.learning.networks import Perceptron
from demosift.learning.prepared import Kept
from demosift.learning.pretraining import Stage, Stopped, pretrain
from demosift.results.checkpoint import CheckpointFolder
from demosift.types import InputError

T = TypeVar("T")
Stages = Generator[Stage | Apart, Any, T]


def alone(stages: Stages[T], kept: Kept) -> T:
    return together([stages], kept)[0]


def together(preparations: Sequence[Stages[T]], kept: Kept, stopped: Callable[[], bool] = lambda: False) -> list[T]:
    """What these preparations come to. Their stages that can share a program are trained in one.

    One that fails lets the others come to their end first, so that what they keep is kept; then its error is raised.
    """
    results: dict[int, T] = {}
    errors: list[Exception] = []
    wanted: dict[int, Stage | Apart] = {}

    def advance(place: int, answer: Any) -> None:
        """Up to what this one needs next. The first answer is None, as generators want it."""
        each = preparations[place]
        try:
            wanted[place] = each.throw(answer) if isinstance(answer, Exception) else each.send(answer)
        except StopIteration as end:
            results[place] = end.value
        except Exception as error:
            errors.append(error)

    for place in range(len(preparations)):
        advance(place, None)
    while wanted:
        calls = {place: each for place, each in wanted.items() if isinstance(each, Apart)}
        trained = {place: each for place, each in wanted.items() if isinstance(each, Stage)}
        wanted.clear()
        places, answered = list(calls), 0
        for i, answer in answers(list(calls.values()), stopped):  # passed on at once, so that it is kept
            advance(places[i], answer)
            answered += 1
        if answered < len(calls):
            raise Stopped
        for places in programs(trained):
            stages = [trained[place] for place in places]
            folder = None if kept.workshop is None else kept.workshop / folder_name(stages, len(preparations))
            for place, stage, network in zip(places, stages, pretrain(stages, folder, stopped), strict=True):
                advance(place, checked(stage, network))
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
