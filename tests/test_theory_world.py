"""The theory lab's world against brute force: every trajectory enumerated, every dataset's probability known."""

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, chi2

from demosift.theory import discounted, instances, learners, mdp, sampling
from demosift.theory.claims import weights
from demosift.theory.gap import Gap, imitation_gap, log_slope, reset_cliff_gap
from demosift.theory.mdp import MDP

SIZES = [(1, 2, 1), (2, 3, 3), (3, 2, 4), (4, 2, 1)]  # states, actions, horizon


def trajectories(world: MDP, policy: np.ndarray, initial: np.ndarray) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """Every trajectory with its probability, straight from the definition."""
    pairs = list(itertools.product(range(world.num_states), range(world.num_actions)))
    for path in itertools.product(pairs, repeat=world.horizon):
        probability = initial[path[0][0]]
        for step, (state, action) in enumerate(path):
            probability *= policy[step, state, action]
            if step + 1 < world.horizon:
                probability *= world.transitions[step, state, action, path[step + 1][0]]
        yield float(probability), list(path)


def enumerated(world: MDP, policy: np.ndarray, initial: np.ndarray) -> tuple[float, np.ndarray]:
    value, visits = 0.0, np.zeros(policy.shape)
    for probability, path in trajectories(world, policy, initial):
        for step, (state, action) in enumerate(path):
            value += probability * world.rewards[step, state, action]
            visits[step, state, action] += probability
    return value, visits


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("size", SIZES)
def test_values_and_occupancies_equal_enumeration(size: tuple[int, int, int], rng: np.random.Generator):
    states, actions, horizon = size
    world = instances.random_mdp(rng, *size)
    policies = np.stack([instances.random_policy(rng, horizon, states, actions) for _ in range(3)])
    other = rng.dirichlet(np.ones(states))
    batched, visits, elsewhere = (
        mdp.values(world, policies),
        mdp.occupancy(world, policies),
        mdp.occupancy(world, policies, other),
    )
    for index, policy in enumerate(policies):
        value, occupancy = enumerated(world, policy, world.initial)
        assert batched[index] == pytest.approx(value, abs=1e-12)
        np.testing.assert_allclose(visits[index], occupancy, atol=1e-14)
        np.testing.assert_allclose(elsewhere[index], enumerated(world, policy, other)[1], atol=1e-14)
        assert np.sum(visits[index] * world.rewards) == pytest.approx(value, abs=1e-12)


def test_a_wrong_transition_shows(rng: np.random.Generator):
    """The comparison above can fail: the steps' transitions are told apart."""
    world = instances.random_mdp(rng, 3, 2, 3)
    policy = instances.random_policy(rng, 3, 3, 2)
    swapped = MDP(world.initial, world.transitions[::-1], world.rewards)
    assert abs(mdp.values(swapped, policy) - enumerated(world, policy, world.initial)[0]) > 1e-4


def test_action_values_are_one_step_ahead(rng: np.random.Generator):
    world = instances.random_mdp(rng, 3, 2, 4)
    policy = instances.random_policy(rng, 4, 3, 2)
    quality = mdp.q_values(world, policy)
    for step, state, action in np.ndindex(4, 3, 2):
        expected = world.rewards[step, state, action]
        if step < 3:
            following = (policy[step + 1] * quality[step + 1]).sum(-1)
            expected += world.transitions[step, state, action] @ following
        assert quality[step, state, action] == pytest.approx(expected)


def test_the_optimal_policy_beats_all_others(rng: np.random.Generator):
    world = instances.random_mdp(rng, 2, 2, 3)
    everything = np.array(list(itertools.product(range(2), repeat=6))).reshape(-1, 3, 2)
    values = mdp.values(world, mdp.deterministic(everything, 2))
    assert mdp.values(world, mdp.optimal(world)) == pytest.approx(values.max(), abs=1e-12)


def test_bad_worlds_are_refused(rng: np.random.Generator):
    world = instances.random_mdp(rng, 2, 2, 2)
    with pytest.raises(AssertionError):
        MDP(world.initial * 2, world.transitions, world.rewards)
    with pytest.raises(AssertionError):
        MDP(world.initial, world.transitions, world.rewards + 1)
    with pytest.raises(AssertionError):
        MDP(world.initial, world.transitions[:0], world.rewards)


def test_counts_have_their_exact_joint_distribution(rng: np.random.Generator):
    """Two trajectories of two steps: the frequency of every possible pair of count tables, by a chi-square test."""
    world = instances.random_mdp(rng, 2, 2, 2)
    policy = instances.random_policy(rng, 2, 2, 2)
    exact: dict[bytes, float] = {}
    paths = list(trajectories(world, policy, world.initial))
    for (p, first), (q, second) in itertools.product(paths, repeat=2):
        counts = np.zeros((2, 2, 2), np.int64)
        for path in (first, second):
            for step, (state, action) in enumerate(path):
                counts[step, state, action] += 1
        exact[counts.tobytes()] = exact.get(counts.tobytes(), 0.0) + p * q
    assert sum(exact.values()) == pytest.approx(1.0)

    def p_value(drawn: np.ndarray) -> float:
        seen = dict.fromkeys(exact, 0)
        for counts in drawn:
            seen[counts.tobytes()] += 1
        often = [key for key in exact if exact[key] * len(drawn) >= 5.0]
        expected = np.array([exact[key] for key in often]) * len(drawn)
        observed = np.array([seen[key] for key in often])
        return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), len(often)))

    assert p_value(sampling.roll_out(rng, world, policy, np.full(20_000, 2))) > 1e-3
    biased = instances.random_policy(rng, 2, 2, 2, spread=50.0)
    assert p_value(sampling.roll_out(rng, world, 0.8 * policy + 0.2 * biased, np.full(20_000, 2))) < 1e-3


def test_sizes_of_the_datasets_are_binomial(rng: np.random.Generator):
    instance = instances.random_instance(rng, 4, 3, 3)
    data = sampling.collect(rng, instance, 0.3, 7, 20_000)
    assert np.all(data.num_expert + data.supplementary[:, 0].sum((-2, -1)) == 7)
    for counts in (data.expert, data.supplementary):
        assert np.all(counts.sum((-2, -1)) == counts[:, :1].sum((-2, -1))), "a trajectory is somewhere at every step"
    expected = binom.pmf(np.arange(8), 7, 0.3) * 20_000
    observed = np.bincount(data.num_expert, minlength=8)
    assert np.all(np.abs(observed - expected) < 5.0 * np.sqrt(expected) + 1.0)


def test_counts_have_the_occupancies_mean_and_variance(rng: np.random.Generator):
    instance = instances.no_overlap(rng, 6, 3, 4)
    replicates, total, eta = 20_000, 10, 0.4
    data = sampling.collect(rng, instance, eta, total, replicates)
    for counts, share, occupancy in (
        (data.expert, eta, instance.expert_occupancy),
        (data.supplementary, 1.0 - eta, instance.behaviour_occupancy),
    ):
        p = share * occupancy
        error = np.sqrt(total * p * (1.0 - p) / replicates)
        assert np.all(np.abs(counts.mean(0) - total * p) <= 5.0 * error + 1e-12)
        np.testing.assert_allclose(counts.var(0), total * p * (1.0 - p), atol=0.2)
    assert not data.expert[:, instance.expert_occupancy == 0.0].any()


def test_cloning_is_frequencies_and_uniform_elsewhere():
    expert = np.zeros((1, 1, 3, 2), np.int64)
    expert[0, 0, 0] = [3, 1]
    other = np.zeros_like(expert)
    other[0, 0, 0], other[0, 0, 1] = [0, 4], [0, 2]
    data = sampling.Data(expert, other)
    np.testing.assert_array_equal(learners.bc(data)[0, 0], [[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(learners.nbcu(data)[0, 0], [[0.375, 0.625], [0.0, 1.0], [0.5, 0.5]])
    # d^E = (3, 1)/4 and d^U = (3, 5)/10 where both have data, so w = 2.5 and 0.5.
    np.testing.assert_allclose(learners.tabular_weights(data)[0, 0], [[2.5, 0.5], [0, 0], [0, 0]])
    np.testing.assert_allclose(learners.wbcu(data)[0, 0], learners.bc(data)[0, 0], atol=1e-15)
    np.testing.assert_array_equal(learners.wbcu(data, delta=1.0)[0, 0], [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])


def test_an_empty_expert_set_is_cloned_uniformly(rng: np.random.Generator):
    instance = instances.random_instance(rng, 3, 4, 2)
    data = sampling.collect(rng, instance, 0.0, 5, 3)
    for learner in (learners.bc, learners.wbcu):
        np.testing.assert_array_equal(learner(data), np.full((3, 2, 3, 4), 0.25))
    nothing = sampling.Data(np.zeros_like(data.expert), np.zeros_like(data.expert))
    for learner in (learners.bc, learners.nbcu, learners.wbcu):
        np.testing.assert_array_equal(learner(nothing), np.full((3, 2, 3, 4), 0.25))


def test_the_most_likely_policy(rng: np.random.Generator):
    instance = instances.random_instance(rng, 3, 2, 2)
    others = [instances.random_policy(rng, 2, 3, 2, 0.3) for _ in range(6)]
    policies = np.stack([*others, instance.expert])
    policies[1, 0, 0] = [1.0, 0.0]
    counts = sampling.collect(rng, instance, 1.0, 3, 40).expert
    chosen = learners.most_likely(counts, policies)
    for count, choice in zip(counts, chosen, strict=True):
        likelihood = [np.prod(policy**count) for policy in policies]
        assert likelihood[choice] == pytest.approx(max(likelihood), rel=1e-9)


def test_instances_are_what_they_say(rng: np.random.Generator):
    standard = instances.standard_imitation(5, 3, 4)
    assert (standard.expert_value, standard.behaviour_value) == (pytest.approx(4.0), 0.0)
    cliff = instances.reset_cliff(6, 3, 5, instances.rare_start(6, 0.1))
    assert cliff.expert_value == pytest.approx(5.0)
    assert cliff.behaviour_value == pytest.approx(sum(3.0**-h for h in range(1, 6)))
    same = instances.behaviour_is_expert(cliff)
    np.testing.assert_array_equal(same.expert_occupancy, same.behaviour_occupancy)
    for _ in range(10):
        apart = instances.no_overlap(rng, 7, 3, 5)
        assert not np.any(apart.expert_occupancy.sum(-1) * apart.behaviour_occupancy.sum(-1))
        common = instances.Instance(apart.mdp, apart.expert, apart.behaviour)
        assert np.any(common.expert_occupancy.sum(-1) * common.behaviour_occupancy.sum(-1))
    with pytest.raises(AssertionError, match="exceed one"):
        instances.rare_start(6, 0.3)


def test_reset_cliffs_gap_by_every_dataset():
    """The closed form against all datasets of two trajectories, and all ways to act on what they teach."""
    initial, actions, horizon = np.array([0.2, 0.5, 0.3, 0.0]), 3, 3
    instance = instances.reset_cliff(4, actions, horizon, initial)
    for total, eta in ((2, 1.0), (2, 0.4), (1, 0.7)):
        gap = 0.0
        for size in range(total + 1):
            chance = binom.pmf(size, total, eta)
            draws = list(itertools.product(range(3), repeat=size * horizon))
            counts = np.zeros((len(draws), horizon, 4, actions), np.int64)
            weight = np.ones(len(draws))
            for row, draw in enumerate(draws):
                for index, state in enumerate(draw):
                    counts[row, index % horizon, state, 0] += 1
                    weight[row] *= initial[state]
            learned = mdp.values(instance.mdp, mdp.conditional(counts.astype(float)))
            gap += chance * float(weight @ (instance.expert_value - learned))
        assert reset_cliff_gap(initial, actions, horizon, eta, total) == pytest.approx(gap, abs=1e-12)


def test_measured_gaps(rng: np.random.Generator):
    instance = instances.reset_cliff(5, 2, 3, instances.rare_start(5, 0.05))
    exact = reset_cliff_gap(instance.mdp.initial, 2, 3, 0.5, 10)
    gap = imitation_gap(rng, instance, learners.bc, 0.5, 10, 3000)
    assert gap.off(exact) < 5.0 < gap.off(exact + 0.2)
    assert Gap(1.0, 0.0).off(1.0) == 0.0
    assert log_slope([1, 10, 100], [3.0, 0.3, 0.03]) == pytest.approx(-1.0)


def test_discounted_occupancy_is_the_sum_over_time(rng: np.random.Generator):
    world = discounted.random_discounted(rng, 4, 3)
    policy = rng.dirichlet(np.ones(3), 4)
    state, total = world.initial, np.zeros((4, 3))
    for step in range(2000):
        total += (1.0 - world.gamma) * world.gamma**step * state[:, None] * policy
        state = np.einsum("s,sa,sat->t", state, policy, world.transitions)
    np.testing.assert_allclose(world.occupancy(policy), total, atol=1e-12)
    assert world.flow_error(total) < 1e-12 < world.flow_error(total * 1.1)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_demodice_is_solved(alpha: float, rng: np.random.Generator):
    """Against a general solver of constrained problems, and by the conditions that only the minimiser satisfies."""
    world = discounted.random_discounted(rng, 3, 2)
    expert, behaviour = discounted.random_pair(rng, world, 0.3, stochastic=True)
    union = 0.4 * expert + 0.6 * behaviour
    found = discounted.demodice(world, expert, union, alpha)
    objective = partial(discounted.regularised_divergence, expert=expert, union=union, alpha=alpha)
    flow = (np.eye(3)[:, None] - world.gamma * world.transitions).reshape(6, 3).T
    start = (1.0 - world.gamma) * world.initial
    other = minimize(
        lambda mass: objective(mass.reshape(3, 2)),
        expert.ravel(),
        constraints={"type": "eq", "fun": lambda mass: flow @ mass - start},
        bounds=[(1e-9, 1.0)] * 6,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(found.ravel(), other.x, atol=1e-5)
    assert objective(found) <= objective(expert)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


def test_demodice_of_a_deterministic_expert_is_the_expert(rng: np.random.Generator):
    world = discounted.random_discounted(rng, 5, 3)
    expert, behaviour = discounted.random_pair(rng, world, 0.3, stochastic=False)
    found = discounted.demodice(world, expert, 0.5 * expert + 0.5 * behaviour, 3.0)
    np.testing.assert_allclose(found, expert, atol=1e-12)


def test_dwbcs_discriminator_is_the_best_one(rng: np.random.Generator):
    """c = m d^E / d^S minimises the objective of Remark 1. Where that exceeds one, nothing does."""
    world = discounted.random_discounted(rng, 4, 2)
    expert, supplementary = discounted.random_pair(rng, world, 0.5, stochastic=True)
    m = 0.3

    def objective(c: np.ndarray) -> np.ndarray:
        return -m * expert * np.log(c) - (supplementary - m * expert) * np.log(1.0 - c)

    best = m * expert / supplementary
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert np.all(objective(best * factor) > objective(best))
    cloned = weights.dwbc_mass(expert, supplementary, 7.5, m, 1.0)
    np.testing.assert_allclose(cloned, 7.5 * expert, rtol=1e-10)
    with pytest.raises(AssertionError, match="no minimum"):
        weights.dwbc_mass(expert, supplementary, 7.5, 50.0, 1.0)
