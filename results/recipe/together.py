"""What the scripts beside this one share: many sets scored in parallel, and a method trained on all of them at once."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demosift.algorithms import REGISTRY, make_algorithm
from demosift.learning.cloning import RECIPES
from demosift.learning.fit import fit
from demosift.simulation.cores import available_cores
from demosift.simulation.evaluation import evaluate
from demosift.types import Demonstrations, EnvironmentSpec

CORES = 2  # of each process that scores
DISCRIMINATOR_ITERATIONS = 5_000  # of two-stage WBCU


def score_one(make: Callable[..., Demonstrations], arguments: tuple[Any, ...]) -> tuple[np.ndarray, dict[str, Any]]:
    from demosift.sift.scoring import score

    data = make(*arguments)
    scored = score(data.expert, data.supplementary, progress=False)
    return scored.weight, dict(scored.summary)


def pin(counter: Any) -> None:
    with counter.get_lock():
        place, counter.value = counter.value, counter.value + 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(CORES * place + i) % len(cores)] for i in range(CORES)})


def score_all(
    make: Callable[..., Demonstrations], arguments: Sequence[tuple[Any, ...]], processes: int | None = None
) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """The weights and the summary of every set that `make` makes, each by a process of two cores."""
    context = multiprocessing.get_context("spawn")
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"  # a card has better things to do, and the cores are many
    try:
        processes = processes or max(1, available_cores() // CORES)
        with context.Pool(min(processes, len(arguments)), pin, (context.Value("i", 0),)) as pool:
            return pool.starmap(score_one, [(make, each) for each in arguments], chunksize=1)
    finally:
        os.environ.pop("JAX_PLATFORMS") if before is None else os.environ.update(JAX_PLATFORMS=before)


def record_pools(sources: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call `sources` for every environment at once, to record what their sets are drawn from."""
    with multiprocessing.get_context("spawn").Pool(min(available_cores(), len(arguments))) as pool:
        pool.starmap(sources, arguments, chunksize=1)


def train(
    method: str,
    data: Sequence[Demonstrations],
    spec: EnvironmentSpec,
    iterations: int = 25_000,
    episodes: int = 20,
    ensemble: int = 5,
    **settings: Any,
) -> list[float | None]:
    """The mean return of each set's policy at the end, all trained together; None where a policy diverged."""
    fields = {**RECIPES["robust"], **settings}
    assert method in REGISTRY
    if method == "wbcu-two-stage":  # the policy has as many iterations as that of any other method
        fields["discriminator_iterations"] = min(DISCRIMINATOR_ITERATIONS, iterations)
        iterations += fields["discriminator_iterations"]
    run = fit(
        make_algorithm(method, fields),
        data,
        seeds=range(len(data)),
        iterations=iterations,
        ensemble=ensemble,
        progress=False,
    )
    alive = [i for i in range(len(data)) if str(i) not in run.config.get("failures", {})]
    returns: list[float | None] = [None] * len(data)
    for place, mean in zip(alive, evaluate(run, spec, episodes=episodes).returns.mean(axis=1).tolist(), strict=True):
        returns[place] = mean
    return returns
