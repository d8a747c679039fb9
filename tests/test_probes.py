"""Probe problems: data so simple that the right weights and the right policy are known, and training must reach them.

With d_E and d_U the densities of the expert set and of the union, the best discriminator is c = d_E/(d_E + d_U), so
the weight c/(1-c) is the density ratio d_E/d_U: here a ratio of counts. The penalty is off, since it bends the
discriminator. The problems of a kind are the members of one run, each with its own data.
"""

import functools
from typing import Any

import numpy as np
import numpy_reference as reference
import pytest

from demosift.algorithms import REGISTRY
from demosift.learning import fit as train
from demosift.results.run import Run
from demosift.types import Dataset, Demonstrations, Transitions

NUM_EXPERT, NUM_OTHER = 48, 96
RATIO = (NUM_EXPERT + NUM_OTHER) / NUM_EXPERT  # d_E/d_U where the pile has nothing
GOOD, BAD = 0.5, -0.5  # the expert's action and the other one

NETWORK: dict[str, Any] = {"hidden": (16, 16), "batch_size": 128}
FAST = {"learning_rate": 3e-3, "discriminator_learning_rate": 3e-3}
EXACT = {**FAST, "gradient_penalty": 0.0, "ratio": "exact"}
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"learning_rate": 3e-3},
    "nbcu": {"learning_rate": 3e-3},
    "wbcu": EXACT,
    "wbcu-two-stage": {**EXACT, "discriminator_iterations": 400},
    "demodice": {**FAST, "critic_learning_rate": 3e-3, "gradient_penalty": 0.0},
    "dwbc": {**FAST, "discriminator_learning_rate": 1e-3, "discriminator_every": 1},
}
WEIGHTED = [name for name in SETTINGS if name not in ("bc", "nbcu")]


def dataset(obs: np.ndarray, action: np.ndarray) -> Dataset:
    """Episodes of one step that end by a time limit, in states that lead to themselves: only (s, a) matters."""
    reward, ends = np.zeros(len(obs), np.float32), np.ones(len(obs), bool)
    action = action.astype(np.int8 if action.dtype.kind == "i" else np.float32)
    return Dataset(Transitions(obs.astype(np.float32), action, reward, obs.astype(np.float32), ~ends), timeout=ends)


def continuous(expert_state: float, other_state: float, other_action: float) -> Demonstrations:
    """Clouds around a state and an action. The pile repeats the expert's cloud, so that shared samples are equal."""
    rng = np.random.default_rng(0)
    state, action = rng.uniform(-0.5, 0.5, (NUM_EXPERT, 2)), rng.uniform(-0.1, 0.1, (NUM_EXPERT, 1))
    expert = dataset(state + expert_state, action + GOOD)
    pile = dataset(state + other_state, action + other_action)
    return Demonstrations(expert, pile.take(np.tile(np.arange(NUM_EXPERT), NUM_OTHER // NUM_EXPERT)))


CONTINUOUS = {
    "the pile is the expert's": continuous(0.0, 0.0, GOOD),
    "same states, opposite actions": continuous(0.0, 0.0, BAD),
    "disjoint states": continuous(1.0, -1.0, BAD),
}

EXPERT_CHOICE, OTHER_CHOICE = 36 / NUM_EXPERT, 24 / NUM_OTHER  # how often the first of two actions is taken
UNION_CHOICE = (36 + 24) / (NUM_EXPERT + NUM_OTHER)


def one_state_two_actions() -> Demonstrations:
    def choices(first: int, num_rows: int) -> Dataset:
        action = np.eye(2, dtype=np.int8)[(np.arange(num_rows) >= first).astype(int)]
        return dataset(np.zeros((num_rows, 1)), action)

    return Demonstrations(choices(36, NUM_EXPERT), choices(24, NUM_OTHER))


def fit(name: str, data: list[Demonstrations], iterations: int) -> Run:
    algorithm = REGISTRY[name](**NETWORK, **SETTINGS[name])
    return train.fit(algorithm, data, seeds=len(data), iterations=iterations, log_every=200, progress=False)


@functools.cache
def solved(name: str) -> Run:
    return fit(name, list(CONTINUOUS.values()), 800)


@functools.cache
def chosen(name: str) -> Run:
    return fit(name, [one_state_two_actions()], 800)


def weights(run: Run, problem: str) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the expert's rows and of the pile's."""
    weight = train.weigh(run, CONTINUOUS[problem])[list(CONTINUOUS).index(problem)]
    return weight[:NUM_EXPERT], weight[NUM_EXPERT:]


def actions(run: Run, problem: str) -> np.ndarray:
    """What the policy does in the expert's states."""
    index = list(CONTINUOUS).index(problem)
    return run.policy.member(index).act_members(CONTINUOUS[problem].expert.transitions.obs[None])[0, :, 0]


def assert_ratios(run: Run) -> None:
    """The weights are the density ratios, on all three problems. Batches are random, so single samples wander."""
    same = np.concatenate(weights(run, "the pile is the expert's"))
    np.testing.assert_allclose(same, 1.0, atol=0.25)
    assert same.mean() == pytest.approx(1.0, abs=0.05)
    for problem in ("same states, opposite actions", "disjoint states"):
        expert, other = weights(run, problem)
        assert expert.mean() == pytest.approx(RATIO, rel=0.2)
        assert RATIO / 2 < expert.min() <= expert.max() < RATIO * 2
        assert other.max() < 0.05


@pytest.mark.parametrize("name", ["wbcu", "wbcu-two-stage"])
def test_weights_are_density_ratios(name: str):
    assert_ratios(solved(name))


# DemoDICE is not asked about disjoint states: they lead to themselves here, so a stationary distribution visits each as
# often as it starts there, whatever the expert does.
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param(name, problem, marks=[] if name.startswith("wbcu") else pytest.mark.long)
        for problem in ("same states, opposite actions", "disjoint states")
        for name in WEIGHTED
        if (name, problem) != ("demodice", "disjoint states")
    ],
)
def test_the_experts_samples_weigh_more(name: str, problem: str):
    expert, other = weights(solved(name), problem)
    assert expert.min() > 2 * other.max()


@pytest.mark.parametrize("name", ["bc", *WEIGHTED])
def test_the_policy_follows_the_expert(name: str):
    for problem in list(CONTINUOUS)[: 2 if name == "demodice" else 3]:
        np.testing.assert_allclose(actions(solved(name), problem), GOOD, atol=0.15)


def test_cloning_everything_takes_the_middle():
    """Two thirds of the rows say one thing, a third the opposite; where states differ, it can follow both."""
    middle = np.tanh((np.arctanh(GOOD) + 2 * np.arctanh(BAD)) / 3)
    np.testing.assert_allclose(actions(solved("nbcu"), "same states, opposite actions"), middle, atol=0.15)
    np.testing.assert_allclose(actions(solved("nbcu"), "disjoint states"), GOOD, atol=0.15)


def choice(run: Run) -> float:
    """The probability of the first action."""
    logits = run.policy.outputs(np.zeros((1, 1, 1), np.float32))[0, 0]
    return float(np.exp(logits[0]) / np.exp(logits).sum())


@pytest.mark.parametrize(("name", "expected"), [("bc", EXPERT_CHOICE), ("nbcu", UNION_CHOICE), ("wbcu", EXPERT_CHOICE)])
def test_the_policy_is_the_weighted_frequency(name: str, expected: float):
    assert choice(chosen(name)) == pytest.approx(expected, abs=0.05)


def test_one_state_two_actions_reaches_the_closed_form():
    weight = train.weigh(chosen("wbcu"), one_state_two_actions())[0]
    first = one_state_two_actions().union.action[:, 0] == 1
    np.testing.assert_allclose(weight[first], EXPERT_CHOICE / UNION_CHOICE, rtol=0.1)
    np.testing.assert_allclose(weight[~first], (1 - EXPERT_CHOICE) / (1 - UNION_CHOICE), rtol=0.1)


def test_untrained_weights_are_no_ratios():
    """The checks above can fail, and do before training has done its work."""
    early = fit("wbcu", list(CONTINUOUS.values()), 200)
    untrained = Run(early.config, early.policy, [], {key: array * 0 for key, array in (early.state or {}).items()})
    with pytest.raises(AssertionError):
        assert_ratios(untrained)
    assert not np.allclose(weights(solved("wbcu"), "disjoint states")[0], 1.0, atol=0.1)


# Methods that match states, where an action is worth the state that it leads to: from the start, one action leads to
# the place where the expert goes and the other elsewhere, and both places lead to themselves.
START, THERE, ELSEWHERE = np.array([[0.0, 0.0], [1.0, 0.5], [-1.0, 0.5]])
STEPS = {"to there": (START, THERE), "to elsewhere": (START, ELSEWHERE), "there": (THERE, THERE)}
STEPS["elsewhere"] = (ELSEWHERE, ELSEWHERE)
DISCOUNT = 0.8
MATCHING: dict[str, dict[str, Any]] = {
    "smodice": {"discriminator_iterations": 400},
    "smodice, chi-square": {"discriminator_iterations": 400, "divergence": "chi-square"},
    "lobsdice": {"gradient_penalty": 10.0, "alpha": 0.5},
}


def journeys(ends: list[np.ndarray], action: float) -> Dataset:
    """Episodes of two steps, to an end and in it. The expert's actions would mislead who looked at them."""
    obs = np.array([state for end in ends for state in (START, end)], np.float32)
    next_obs = np.repeat(np.array(ends, np.float32), 2, axis=0)
    taken = np.array([choice for end in ends for choice in (action if end is THERE else -action, 0.0)], np.float32)
    second = np.arange(len(obs)) % 2 == 1
    rows = Transitions(obs, taken[:, None], np.zeros(len(obs), np.float32), next_obs, np.zeros(len(obs), bool))
    return Dataset(rows, timeout=second)


def two_ways() -> Demonstrations:
    return Demonstrations(journeys([THERE] * 12, BAD), journeys([THERE, ELSEWHERE] * 12, GOOD), expert_actions=False)


@functools.cache
def matched(name: str) -> tuple[Run, dict[str, float], dict[str, float]]:
    """The run, and the weight and the reward of each step. The four are equally frequent in the pile."""
    rates = {**FAST, "critic_learning_rate": 3e-3, "discount": DISCOUNT, **MATCHING[name]}
    algorithm = REGISTRY[name.partition(",")[0]](**NETWORK, **rates)
    run = train.fit(algorithm, two_ways(), iterations=1600, log_every=200, progress=False)
    weight = train.weigh(run, two_ways())[0, 24:]
    kinds = np.tile(["to there", "there", "to elsewhere", "elsewhere"], 12)
    weights = {kind: float(weight[kinds == kind].mean()) for kind in STEPS}
    mean = 1.0 if "chi" in name else float(np.mean(list(weights.values())))  # of the KL divergence's, the scale is free
    network = [layer for layer in sorted(run.state or {}) if layer.startswith(".discriminator.params")]
    rewards = {}
    for kind, pair in STEPS.items():
        x = np.concatenate([(state + run.policy.shift[0]) * run.policy.scale[0] for state in pair])
        rewards[kind] = logit({key: (run.state or {})[key][0] for key in network}, x)
    return run, {kind: value / mean for kind, value in weights.items()}, rewards


def logit(layers: dict[str, np.ndarray], x: np.ndarray) -> float:
    """Of a state or of a pair of them, whichever the first layer takes."""
    depth = 1 + max(int(key.split("[")[1].split("]")[0]) for key in layers)
    x = x[: layers[".discriminator.params[0].kernel"].shape[0]]
    for index in range(depth):
        x = x @ layers[f".discriminator.params[{index}].kernel"] + layers.get(
            f".discriminator.params[{index}].bias", 0.0
        )
        x = x if index == depth - 1 else np.maximum(x, 0.0)
    return float(x[0])


def assert_flow(weight: dict[str, float]) -> None:
    """Weights are those of a stationary distribution: the start's share is 1 - gamma, and what goes in comes out."""
    assert (weight["to there"] + weight["to elsewhere"]) / 4 == pytest.approx(1 - DISCOUNT, rel=0.25)
    for end in ("there", "elsewhere"):
        assert weight[end] == pytest.approx(DISCOUNT * (weight[end] + weight[f"to {end}"]), rel=0.25, abs=0.05)


@pytest.mark.parametrize("name", MATCHING)
def test_steps_to_the_experts_states_weigh_more(name: str):
    run, weight, _ = matched(name)
    assert weight["to there"] > 2 * weight["to elsewhere"]
    assert_flow(weight)
    share = weight["to there"] / (weight["to there"] + weight["to elsewhere"])
    action = run.policy.act_members(START[None, None].astype(np.float32))[0, 0, 0]
    assert action == pytest.approx(np.tanh((2 * share - 1) * np.arctanh(GOOD)), abs=0.1)


@pytest.mark.parametrize(("name", "temperature"), [("smodice", 1.0), ("lobsdice", 1.5)])
def test_the_weights_solve_the_problem(name: str, temperature: float):
    """Of all p, the best way to go there with probability p has K logit(p) = (1-gamma) dr(start) + gamma dr(ends)."""
    _, weight, reward = matched(name)
    if name == "lobsdice":
        reward = {kind: float(-reference.smoothed_cost(np.array(z))) for kind, z in reward.items()}
    gain = (1 - DISCOUNT) * (reward["to there"] - reward["to elsewhere"])
    gain += DISCOUNT * (reward["there"] - reward["elsewhere"])
    assert gain > 0.5
    for here, other in (("to there", "to elsewhere"), ("there", "elsewhere")):
        assert np.log(weight[here] / weight[other]) == pytest.approx(gain / temperature, rel=0.15)


def test_weights_that_do_not_flow_are_noticed():
    with pytest.raises(AssertionError):
        assert_flow(dict.fromkeys(STEPS, 1.0))
