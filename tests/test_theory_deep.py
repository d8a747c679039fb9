"""Deep meets tabular: with one-hot features the core's learners reach the answers of the theory lab.

A state's feature is the one-hot of (step, state), so a policy without a hidden layer is a table. WBCU's discriminator
sees the state's features beside the action's, and without a hidden layer it is a sum of a number per state and one per
action: a table only as far as needed. So in the linear problem the actions of each state are numbered with the expert's
first, which changes nothing in a table; then no sum of the two is needed, since only the expert's action has weight.
With a hidden layer the expert may be stochastic.
"""

import functools
from typing import Any

import numpy as np
import pytest

from demosift.algorithms import REGISTRY
from demosift.learning import fit as train
from demosift.results.run import Run
from demosift.theory import learners
from demosift.theory.instances import Instance, always, random_mdp, random_policy
from demosift.theory.sampling import Data, roll_out
from demosift.types import Dataset, Demonstrations, Transitions

STATES, ACTIONS, HORIZON = 4, 3, 2
TABLE = {"bc": learners.bc, "nbcu": learners.nbcu, "wbcu": learners.wbcu}
RATES = {"learning_rate": 1e-2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": RATES,
    "nbcu": RATES,
    "wbcu": {**RATES, "discriminator_learning_rate": 1e-2, "gradient_penalty": 0.0, "ratio": "exact"},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "linear": {"hidden": (), "batch_size": 512},
    "perceptron": {"hidden": (32,), "batch_size": 512},
}


@functools.cache
def problem(kind: str) -> Data:
    """One pair of datasets with states that the expert never visited, all of which the behaviour did."""
    rng = np.random.default_rng(3)
    size = (HORIZON, STATES, ACTIONS)
    expert = always(0, *size) if kind == "linear" else random_policy(rng, *size, spread=0.5)
    instance = Instance(random_mdp(rng, STATES, ACTIONS, HORIZON), expert, random_policy(rng, *size))
    for _ in range(1000):
        data = Data(
            roll_out(rng, instance.mdp, instance.expert, np.array([6])),
            roll_out(rng, instance.mdp, instance.behaviour, np.array([40])),
        )
        if data.supplementary.any(-1).all() and not data.expert.any(-1).all():
            return data
    raise AssertionError("no such data")


def rows(counts: np.ndarray) -> Dataset:
    """A row for each time that a pair was counted. Each is an episode of its own: only (s, a) matters here."""
    step, state, action = (np.repeat(index, counts.ravel()) for index in map(np.ravel, np.indices(counts.shape)))
    obs = np.eye(HORIZON * STATES, dtype=np.float32)[step * STATES + state]
    ends = np.ones(len(obs), bool)
    taken = np.eye(ACTIONS, dtype=np.int8)[action]
    return Dataset(Transitions(obs, taken, np.zeros(len(obs), np.float32), obs, ~ends), timeout=ends)


def demonstrations(kind: str) -> Demonstrations:
    data = problem(kind)
    return Demonstrations(rows(data.expert[0]), rows(data.supplementary[0]))


@functools.cache
def trained(name: str, kind: str, iterations: int = 2000) -> Run:
    algorithm = REGISTRY[name](**NETWORKS[kind], **SETTINGS[name])
    return train.fit(
        algorithm,
        demonstrations(kind),
        seeds=1,
        iterations=iterations,
        log_every=iterations,
        normalise="union",
        progress=False,
    )


def learned(run: Run) -> np.ndarray:
    """The policy as a table."""
    logits = run.policy.outputs(np.eye(HORIZON * STATES, dtype=np.float32)[None])[0]
    table = np.exp(logits - logits.max(-1, keepdims=True))
    return (table / table.sum(-1, keepdims=True)).reshape(HORIZON, STATES, ACTIONS)


def distance(run: Run, name: str, kind: str) -> float:
    """How far the policy is from the tabular one, at most, on the states that the expert's data holds."""
    visited = problem(kind).expert[0].any(-1)
    return float(np.abs(learned(run) - TABLE[name](problem(kind))[0])[visited].max())


@pytest.mark.long
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_deep_learner_reaches_the_table(name: str, kind: str):
    assert distance(trained(name, kind), name, kind) < {"linear": 0.06, "perceptron": 0.1}[kind]


def test_the_weights_are_the_tabular_ones():
    """On the expert's pairs the density ratio; next to nothing on all others."""
    data, run = problem("linear"), trained("wbcu", "linear")
    union = demonstrations("linear").union
    pairs = (union.obs.argmax(-1), union.action.argmax(-1))
    expected = learners.tabular_weights(data)[0].reshape(-1, ACTIONS)[pairs]
    weight = train.weigh(run, demonstrations("linear"))[0]
    np.testing.assert_allclose(weight[expected > 0], expected[expected > 0], rtol=0.25)
    assert weight[expected == 0].max() < 0.1


def test_the_learners_are_told_apart():
    """The distances above are small for a reason: of another learner, or early in training, they are not."""
    assert distance(trained("nbcu", "linear"), "wbcu", "linear") > 0.3
    assert distance(trained("wbcu", "linear"), "nbcu", "linear") > 0.3
    assert distance(trained("wbcu", "linear", 50), "wbcu", "linear") > 0.1
