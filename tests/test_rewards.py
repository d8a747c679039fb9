"""Rewards that methods make: by hand, against independent solvers, and kept where a run can find them again."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import CHUNK, Killed, fit_tiny, folder_bytes, kill_at, random_dataset, random_demonstrations, tiny
from scipy.optimize import linprog
from scipy.special import logsumexp

from demosift.algorithms import otr, seabo
from demosift.learning import rewards, transport
from demosift.learning.transport import cosine_cost, step_costs, transport_plan
from demosift.results.folder import read_results
from demosift.results.rewards import REWARDS
from demosift.types import Dataset, Demonstrations, InputError, Transitions


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "KNOWN", {})


# SEABO.


def rows_of(obs: list[list[float]], action: list[float], next_obs: list[list[float]]) -> Dataset:
    states, following = (np.array(part, np.float32) for part in (obs, next_obs))
    ends = np.arange(len(obs)) == len(obs) - 1
    reward = np.zeros(len(obs), np.float32)
    return Dataset(Transitions(states, np.array(action, np.float32)[:, None], reward, following, ~ends & ends), ends)


def by_hand() -> Demonstrations:
    expert = rows_of([[0, 0], [100, 0]], [0.5, -0.5], [[1, 0], [101, 0]])
    # (3, 4) away in the state and no more; the second expert's row but for its action; the first's.
    pile = rows_of([[3, 4], [100, 0], [0, 0]], [0.5, 0.5, 0.5], [[1, 0], [101, 0], [1, 0]])
    return Demonstrations(expert, pile)


def test_seabo_by_hand():
    """Distances in the data's own units, so that a state's first column counts a hundred times as much as an action."""
    np.testing.assert_array_equal(seabo.distances(by_hand()), [0, 0, 5, 1, 0])
    observed = dataclasses.replace(by_hand(), expert_actions=False)
    np.testing.assert_array_equal(seabo.distances(observed), [0, 0, 5, 0, 0])
    reward = tiny("seabo", alpha=2.0, beta=0.5, bias=0.25).reward(jnp.array([0.0, 5.0]))  # type: ignore
    np.testing.assert_allclose(reward, [1.75, 2 * np.exp(-2.5) - 0.25], rtol=1e-6)


def test_seabo_divides_by_the_size_of_the_action():
    data = random_demonstrations()
    assert data.supplementary is not None
    expert, pile = (
        np.concatenate([rows.obs, rows.action, rows.next_obs], axis=1).astype(np.float64)
        for rows in (data.expert.transitions, data.supplementary.transitions)
    )
    nearest = np.sqrt(((pile[:, None] - expert[None]) ** 2).sum(axis=-1)).min(axis=1)
    np.testing.assert_allclose(seabo.distances(data)[len(expert) :], nearest / 2, rtol=1e-12)
    prepared = tiny("seabo").prepare(data, None)
    np.testing.assert_allclose(prepared.union.reward[len(expert) :], nearest / 2, rtol=1e-6)


@pytest.mark.parametrize("name", ["seabo", "otr"])
def test_an_expert_without_actions_is_not_cloned(name: str):
    data = random_demonstrations()
    observed = dataclasses.replace(data, expert_actions=False)
    prepared = tiny(name).prepare(observed, None)
    assert data.supplementary is not None
    np.testing.assert_array_equal(prepared.union.obs, data.supplementary.transitions.obs)
    assert prepared.union.reward.std() > 0
    assert np.isfinite(fit_tiny(name, data=observed).metrics[-1]["policy_loss"])


# OTR.


def walks(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.cumsum(rng.normal(size=(length, 3)), axis=0).astype(np.float32) for length in lengths]


def in_logarithms(cost: np.ndarray, a: np.ndarray, b: np.ndarray, iterations: int) -> np.ndarray:
    """Sinkhorn by potentials, with masses of any sum: columns first, rows last."""
    f, g, scaled = np.zeros(len(a)), np.zeros(len(b)), -cost / 0.01
    for _ in range(iterations):
        g = np.log(b) - logsumexp(scaled + f[:, None], axis=0)
        f = np.log(a) - logsumexp(scaled + g[None], axis=1)
    return np.exp(scaled + f[:, None] + g[None])


def test_the_plan_is_that_of_logarithms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "BLOCK", 50)  # several blocks, of which the last is not full
    a, b = walks(23, 17)
    cost = cosine_cost(a, b)
    assert cost.max() > 1.8
    plan = transport_plan(cost)
    wanted = in_logarithms(cost, np.full(23, 1 / 23), np.full(17, 1 / 17), 100)
    np.testing.assert_allclose(plan, wanted, rtol=1e-8, atol=1e-300)
    assert not np.allclose(plan, in_logarithms(cost, np.full(23, 1 / 23), np.full(17, 1 / 17), 3), rtol=1e-3)


def test_the_authors_masses_give_the_same_costs():
    """They give each step a thousandth, so that an episode and the expert's have unlike masses."""
    a, b = walks(23, 17)
    cost = cosine_cost(a, b)
    plan = in_logarithms(cost, np.full(23, 1e-3), np.full(17, 1e-3), 100)
    np.testing.assert_allclose(step_costs(a, b), 1_000 * (plan * cost).sum(axis=1), rtol=1e-8)


def test_the_plan_is_almost_the_cheapest():
    """The least cost is a linear program's; entropy costs at most eps log(n m) more."""
    a, b = walks(9, 7)
    cost = cosine_cost(a, b)
    plan = transport_plan(cost, iterations=20_000)
    np.testing.assert_allclose(plan.sum(axis=1), 1 / 9, rtol=1e-9)
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 7, rtol=1e-6)
    sums = [np.repeat(np.eye(9), 7, axis=1), np.tile(np.eye(7), 9)]
    least = linprog(cost.ravel(), A_eq=np.concatenate(sums), b_eq=np.repeat([1 / 9, 1 / 7], [9, 7])).fun
    assert least <= (plan * cost).sum() + 1e-9
    assert (plan * cost).sum() < least + 0.01 * np.log(63)
    assert (cost.mean() - least) > 0.1, "any plan would do"


def test_the_cosine_of_a_state_of_zeros():
    states = np.array([[0, 0], [1, 0], [-2, 0], [0, 3]], np.float32)
    np.testing.assert_allclose(cosine_cost(states, states[1:2])[:, 0], [1, 0, 2, 1])


def at_right_angles() -> Demonstrations:
    """Two expert episodes of two states each; the first of the pile is the second expert's, the other between both."""
    e = np.eye(4, dtype=np.float32)
    experts, pile = np.array([e[0], e[1], e[2], e[3]]), np.array([e[2], 7 * e[3], e[0], e[3], e[0], e[0]])
    ends = [np.arange(len(obs)) % 2 == 1 for obs in (experts, pile)]
    expert, pile = (
        Dataset(
            Transitions(obs, obs[:, :1], np.zeros(len(obs), np.float32), obs, np.zeros(len(obs), bool)), timeout=end
        )
        for obs, end in zip((experts, pile), ends, strict=True)
    )
    return Demonstrations(expert, pile)


def test_otr_by_hand():
    """Costs are 0 or 1 between these states. A step that has a partner of its own costs nothing, whatever its length.

    Of (e0, e3) one half costs 0 and the other 1 with either expert. Of (e0, e0) the two share the expert's e0 and e1.
    """
    reward, squashed = otr.transport_rewards(at_right_angles()), 5 * np.exp(-5 / 4 * np.array([0, 0.5, 1]))
    nothing, half, all_of_it = squashed
    np.testing.assert_allclose(reward[:6], nothing, rtol=1e-6)
    np.testing.assert_allclose(sorted(reward[6:8]), [all_of_it, nothing], rtol=1e-2)  # not yet after 100 iterations
    np.testing.assert_allclose(reward[8:], half, rtol=1e-6)
    scaled = tiny("otr").prepare(at_right_angles(), None)
    returns = np.concatenate([part.returns() for part in (scaled.expert, scaled.supplementary) if part])
    assert np.ptp(returns) == pytest.approx(1_000, rel=1e-5)


def test_an_episode_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "LARGEST", 100)
    with pytest.raises(InputError, match=r"otr: an episode of 23 steps against one of 17 .* cut them into shorter"):
        transport.costs_of_episodes(walks(23, 4), walks(17))


# Made once, and kept.


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the methods that made rewards, each time that one did."""
    names = []

    def spy(name: str, make: Any, data: Demonstrations) -> Any:
        names.append(name)
        return make(data)

    for module, what in ((seabo, "distances"), (otr, "transport_rewards")):
        monkeypatch.setattr(module, what, functools.partial(spy, module.__name__.split(".")[-1], getattr(module, what)))
    return names


@pytest.mark.parametrize("name", ["seabo", "otr"])
def test_data_that_are_shared_are_looked_at_once(name: str, made: list[str]):
    data = random_demonstrations()
    first, again = (tiny(name).prepare(random_demonstrations(), None) for _ in range(2))
    np.testing.assert_array_equal(first.union.reward, again.union.reward)
    assert made == [name]
    other = Demonstrations(data.expert, random_dataset(5, 60))
    assert not np.array_equal(tiny(name).prepare(other, None).union.reward, first.union.reward)
    tiny(name).prepare(dataclasses.replace(data, expert_actions=False), None)
    assert made == [name] * 3


@pytest.mark.parametrize("name", ["seabo", "otr"])
def test_a_resumed_run_finds_its_rewards(name: str, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch):
    options: dict[str, Any] = {"iterations": 4 * CHUNK, "checkpoint_every": CHUNK}
    fit_tiny(name, out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        fit_tiny(name, out=tmp_path / "cut", callbacks=kill_at(3 * CHUNK), **options)
    rewards.KNOWN.clear()
    made.clear()
    fit_tiny(name, out=tmp_path / "cut", resume=True, **options)
    assert made == []
    assert folder_bytes(tmp_path / "cut") == folder_bytes(tmp_path / "whole")
    assert read_results(tmp_path).unread == ()


@pytest.mark.parametrize("damage", ["gone", "short", "of other data", "not numbers", "pickled"])
def test_rewards_that_are_damaged_are_refused(damage: str, tmp_path: Path):
    folder, data = tmp_path / "0", random_demonstrations()
    tiny("seabo").prepare(data, folder)
    path = folder / REWARDS
    match damage:
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-9])
        case "of other data":
            np.save(path, np.zeros(91, np.float32))
        case "not numbers":
            np.save(path, np.full(90, np.nan, np.float32))
        case "pickled":
            np.save(path, np.array([{}] * 90, object), allow_pickle=True)
    with pytest.raises(InputError, match=r"rewards\.npy: .*choose another folder"):
        tiny("seabo").prepare(data, folder)
