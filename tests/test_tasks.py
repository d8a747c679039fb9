"""Recordings and recipes: draws, overlaps, noise, origins, files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_policy import make_policy

from demosift.data import read_dataset, write_dataset
from demosift.policy import RandomPolicy
from demosift.simulation import environments
from demosift.simulation.shipped import shipped_policy
from demosift.tasks import recipes as tasks
from demosift.tasks.recipes import HAYSTACK, ORIGINS, make_task, task_label, write_task
from demosift.tasks.record import record
from demosift.types import Dataset, Demonstrations, InputError, Transitions

HOPPER = environments.resolve("hopper")
LENGTH = 6


def make_pool(episodes: int, tag: float = 0.0, length: int = LENGTH) -> Dataset:
    """Hopper-sized episodes whose first observation column says which episode it is, and the second which step."""
    rows = episodes * length
    obs = np.zeros((rows, 11), np.float32)
    obs[:, 0], obs[:, 1], obs[:, 2] = np.repeat(np.arange(episodes), length), np.tile(np.arange(length), episodes), tag
    action = np.random.default_rng(0).uniform(-0.1, 0.1, (rows, 3)).astype(np.float32)
    timeout = np.tile(np.arange(length) == length - 1, episodes)
    transitions = Transitions(obs, action, np.ones(rows, np.float32), obs + 1, np.zeros(rows, bool))
    return Dataset(transitions, timeout, HOPPER)


@pytest.fixture
def pools(monkeypatch):
    """Stands for the recordings of the shipped policies."""
    tags = {"expert": 0.0, "medium": 7.0}
    monkeypatch.setattr(tasks, "_shipped_pool", lambda env, level, size: make_pool(size, tags[level]))


def is_from(dataset: Dataset, origin: str) -> np.ndarray:
    assert dataset.origin is not None
    return dataset.origin.code == ORIGINS.index(origin)


def drawn(dataset: Dataset, origin: str) -> list[int]:
    """The episodes of that origin, as their observations tell."""
    mine = is_from(dataset, origin)[dataset.episode_starts]
    return dataset.transitions.obs[dataset.episode_starts[mine], 0].astype(int).tolist()


def split(task: Demonstrations) -> tuple[Dataset, Dataset]:
    assert task.supplementary is not None
    return task.expert, task.supplementary


def test_noisy_expert_draws_as_the_reference_does(pools):
    for seed in range(5):
        expert, pile = split(make_task("hopper/noisy-expert", seed))
        rng = np.random.default_rng(seed)
        noisy, clean, one = (rng.permutation(20)[:count].tolist() for count in (5, 10, 1))
        assert (drawn(pile, "noisy"), drawn(pile, "clean"), drawn(expert, "expert")) == (noisy, clean, one)
        assert expert.attributes["drawn"] == {"expert": tuple(one)}
        assert pile.attributes["drawn"] == {"noisy": tuple(noisy), "clean": tuple(clean)}
        assert (pile.num_episodes, expert.num_episodes, len(pile)) == (15, 1, 15 * LENGTH)
        assert (pile.attributes["task"], pile.attributes["seed"]) == ("hopper/noisy-expert", seed)


def test_noise_replaces_the_actions_and_nothing_else(pools):
    _, pile = split(make_task("hopper/noisy-expert", 1, pool=200))
    pool = make_pool(200)
    rows = (pile.transitions.obs[:, 0] * LENGTH + pile.transitions.obs[:, 1]).astype(int)
    noisy = is_from(pile, "noisy")
    for name in ("obs", "reward", "next_obs", "terminal"):
        assert np.array_equal(getattr(pile.transitions, name), getattr(pool.transitions, name)[rows])
    assert np.array_equal(pile.transitions.action[~noisy], pool.transitions.action[rows][~noisy])
    noise = pile.transitions.action[noisy]
    assert noise.dtype == np.float32
    assert noise.min() < -0.8
    assert noise.max() > 0.8
    assert noise.var() == pytest.approx(1 / 3, rel=0.25)
    assert len(np.unique(noise)) == noise.size


def test_draws_overlap_unless_disjoint(pools):
    def overlaps(disjoint: bool) -> int:
        count = 0
        for seed in range(30):
            expert, pile = split(make_task("hopper/noisy-expert", seed, disjoint=disjoint))
            everything = drawn(expert, "expert") + drawn(pile, "noisy") + drawn(pile, "clean")
            assert len(everything) == 16
            count += 16 - len(set(everything))
        return count

    assert overlaps(disjoint=False) > 30  # some three a task
    assert overlaps(disjoint=True) == 0


def test_too_few_episodes_are_refused(pools):
    make_task("hopper/noisy-expert", 0, pool=10)
    with pytest.raises(InputError, match="needs 10 trajectories, but the pool has 9"):
        make_task("hopper/noisy-expert", 0, pool=9)
    make_task("hopper/noisy-expert", 0, pool=16, disjoint=True)
    with pytest.raises(InputError, match="needs 16 trajectories, but the pool has 15"):
        make_task("hopper/noisy-expert", 0, pool=15, disjoint=True)


def test_medium_expert(pools):
    expert, pile = split(make_task("hopper/medium-expert", 3))
    assert (len(drawn(pile, "medium")), len(drawn(pile, "clean")), len(drawn(expert, "expert"))) == (10, 10, 1)
    medium = is_from(pile, "medium")
    assert (pile.transitions.obs[:, 2] == np.where(medium, 7, 0)).all()


def test_random_expert_is_one_in_a_hundred(pools):
    _, pile = split(make_task("hopper/random-expert", 3))
    random = is_from(pile, "random")
    assert (~random).sum() == LENGTH
    assert 99 * LENGTH <= random.sum() < 99 * LENGTH + 1000
    ends = np.flatnonzero(pile.transitions.terminal | pile.timeout)
    assert random.sum() - 1 in ends  # no episode is cut
    assert len(np.unique(pile.transitions.obs[random], axis=0)) == random.sum()


@pytest.mark.parametrize("recipe", ["noisy-expert", "medium-expert", "random-expert", "no-expert", "missing-steps"])
def test_five_experts_change_the_expert_set_alone(pools, monkeypatch: pytest.MonkeyPatch, recipe: str):
    monkeypatch.setattr(tasks.Sources, "noisy_medium_pool", property(lambda self: make_pool(self.pool, 9.0)))
    one, five = (make_task(f"hopper/{recipe}", 3, experts=experts) for experts in (1, 5))
    assert (one.expert.num_episodes, five.expert.num_episodes) == (1, 5)
    assert len(set(drawn(five.expert, "expert"))) == 5
    assert five.expert.attributes["experts"] == 5
    assert "experts" not in one.expert.attributes
    assert one.supplementary is not None
    assert five.supplementary is not None
    assert one.supplementary.num_episodes == five.supplementary.num_episodes
    with pytest.raises(InputError, match="expert trajectories: 0 is not a whole number"):
        make_task(f"hopper/{recipe}", 3, experts=0)


def test_labels_tell_variants_of_a_task_apart():
    assert task_label("hopper/haystack") == task_label("hopper/haystack", 1) == "hopper/haystack"
    assert task_label("metaworld-push/mixed", 5) == "metaworld-push/mixed"
    assert task_label("hopper/haystack", 5) == "hopper/haystack, 5 experts"
    assert task_label("hopper/haystack", 5, False) == "hopper/haystack, 5 experts, expert observations"
    assert task_label("hopper/haystack", None, False) == "hopper/haystack, expert observations"


def test_a_haystack_hides_its_experts_and_shows_another(pools, monkeypatch: pytest.MonkeyPatch):
    """Twenty of two thousand episodes are the expert's; none of them is in the expert set, whatever the pool's size."""
    monkeypatch.setattr(tasks, "HAYSTACK", 30)
    for experts in (None, 5):
        expert, pile = split(make_task("hopper/haystack", 3, experts=experts))
        assert (len(drawn(pile, "clean")), pile.num_episodes, expert.num_episodes) == (20, 30, experts or 1)
        assert not set(drawn(pile, "clean")) & set(drawn(expert, "expert"))
        random = is_from(pile, "random")
        assert random.sum() + 20 * LENGTH == len(pile)
        assert len(np.unique(pile.transitions.obs[random], axis=0)) == random.sum()
    assert HAYSTACK == 2_000


def test_missing_steps_are_gone_from_both_sets_and_nothing_else_changes(pools):
    """The rows that stay are those of medium-expert, in order, with their own next states and origins."""
    whole, holed = (make_task(f"hopper/{recipe}", 3) for recipe in ("medium-expert", "missing-steps"))
    for before, after in zip(split(whole), split(holed), strict=True):
        assert 0.3 * len(before) < len(after) < 0.8 * len(before)
        assert before.origin is not None
        assert after.origin is not None

        def rows(dataset: Dataset) -> list[tuple[float, ...]]:
            t = dataset.transitions
            code = dataset.origin.code[:, None]  # type: ignore[union-attr]
            return [tuple(row) for row in np.concatenate([t.obs, t.action, t.next_obs, code], axis=1).tolist()]

        left = iter(rows(before))
        assert all(row in left for row in rows(after))  # a subsequence: `in` takes from the iterator
        assert after.num_episodes == before.num_episodes
        assert (after.transitions.obs[after.episode_starts, 1] == 0).all()


def test_an_episode_whose_terminal_is_missing_ends_without_one():
    pool = make_pool(200)
    terminal = pool.timeout.copy()
    dead = replace(pool, transitions=pool.transitions._replace(terminal=terminal), timeout=np.zeros(len(pool), bool))
    holed = tasks._without_steps(dead, 0.5, np.random.default_rng(0))
    assert holed.num_episodes == 200
    ended = holed.transitions.terminal[holed.episode_ends - 1]
    assert 60 < ended.sum() < 140
    np.testing.assert_array_equal(holed.timeout[holed.episode_ends - 1], ~ended)


def test_no_expert_without_a_replay_is_a_medium_policy_and_a_noisy_one(monkeypatch: pytest.MonkeyPatch):
    """No stand-in for what is new here: the noisy medium policy plays, so its own actions lead to its next states."""
    monkeypatch.setattr(
        tasks, "_shipped_pool", lambda env, level, size: make_pool(size, {"expert": 0, "medium": 7}[level])
    )
    expert, pile = split(make_task("hopper/no-expert", 0, pool=10))
    assert (len(drawn(pile, "medium")), expert.num_episodes) == (10, 1)
    noisy = is_from(pile, "noisy-medium")
    assert not is_from(pile, "clean").any()
    assert not is_from(pile, "expert").any()
    part = pile.take(noisy)
    assert part.num_episodes == 10
    follows = ~(part.transitions.terminal | part.timeout)[:-1]
    np.testing.assert_array_equal(part.transitions.obs[1:][follows], part.transitions.next_obs[:-1][follows])
    away = part.transitions.action - shipped_policy("hopper", "medium").act_members(part.transitions.obs[None])[0]
    inside = np.abs(part.transitions.action) < 1
    assert away[inside].std() == pytest.approx(0.3, rel=0.3)


def test_no_expert_takes_a_replay_until_it_is_as_good_as_the_medium_policy(pools, tmp_path: Path):
    """Returns of the replay's episodes rise from 1 to 40; the medium policy's is what ten in a row must average."""
    replay = make_pool(40)
    reward = np.repeat(np.arange(1.0, 41.0), LENGTH).astype(np.float32) / LENGTH
    replay = replace(replay, transitions=replay.transitions._replace(reward=reward))
    kept = tasks._until_as_good(replay, 20.0)  # episodes 16 to 25, numbered from 1, average 20.5; 15 to 24 only 19.5
    assert kept.num_episodes == 15
    assert kept.returns().max() == pytest.approx(15)
    assert tasks._until_as_good(replay, 1e9).num_episodes == 40
    with pytest.raises(InputError, match="as good as the medium policy from the start"):
        tasks._until_as_good(replay, 1.0)
    with pytest.raises(InputError, match=r"expert\.safetensors: no such file"):
        make_task("hopper/no-expert", 0, replay=tmp_path)


def test_files_are_the_same_each_time(pools, tmp_path: Path):
    for name in ("first", "second"):
        write_task(make_task("hopper/noisy-expert", 3), tmp_path / name)
    other = tmp_path / "other"
    write_task(make_task("hopper/noisy-expert", 4), other)
    for name in ("expert.hdf5", "supplementary.hdf5"):
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes()
        assert content != (other / name).read_bytes()
    written = make_task("hopper/noisy-expert", 3).supplementary
    read = read_dataset(tmp_path / "first" / "supplementary.hdf5")
    assert written is not None
    assert written.origin is not None
    assert read.origin is not None
    assert np.array_equal(read.origin.code, written.origin.code)
    assert read.origin.names == ORIGINS
    assert read.attributes["drawn"]["noisy"] == list(written.attributes["drawn"]["noisy"])
    assert read.environment == HOPPER
    with pytest.raises(InputError, match="not empty"):
        write_task(make_task("hopper/noisy-expert", 3), other)


def test_a_task_of_the_shipped_expert():
    """No stand-in: ten episodes of the policy that comes with the package, recorded twice."""
    expert, pile = split(make_task("hopper/noisy-expert", 0, pool=10))
    tasks._shipped_pool.cache_clear()
    again = split(make_task("hopper/noisy-expert", 0, pool=10))
    for first, second in zip((expert, pile), again, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(first.transitions, second.transitions, strict=True))
        assert np.array_equal(first.timeout, second.timeout)
        assert first.attributes == second.attributes
    assert tasks._shipped_pool.cache_info().misses == 1  # it was recorded again, not remembered

    policy = shipped_policy("hopper", "expert")
    noisy = is_from(pile, "noisy")
    assert (expert.num_episodes, pile.num_episodes, noisy[pile.episode_starts].sum()) == (1, 15, 5)
    for rows in (expert, pile):
        far = np.abs(rows.transitions.action - policy.act_members(rows.transitions.obs[None])[0]).max(axis=1)
        assert far[~is_from(rows, "noisy")].max() < 1e-5
    assert np.median(far[noisy]) > 0.1
    # Noise replaces what was done, not what came of it: every episode has the expert's return.
    reference = environments.reference_returns()["demosift"]["hopper"]["expert"]["mean"]
    assert pile.returns().mean() == pytest.approx(reference, rel=0.05)


@pytest.fixture
def replay_folder(tmp_path: Path) -> Path:
    """What `collect` leaves behind, with a clumsy expert."""
    folder = tmp_path / "sac"
    make_policy(11, 3, members=1, environment=HOPPER).save(folder / "expert.safetensors")
    write_dataset(make_pool(9), folder / "replay.hdf5")
    return folder


def test_full_replay(replay_folder, monkeypatch):
    expert, pile = split(make_task("hopper/full-replay", 2, pool=3, replay=replay_folder))
    assert np.array_equal(pile.transitions.obs, make_pool(9).transitions.obs)
    assert is_from(pile, "replay").all()
    policy = make_policy(11, 3, members=1)
    np.testing.assert_allclose(
        expert.transitions.action, policy.act_members(expert.transitions.obs[None])[0], atol=1e-5
    )
    assert expert.num_episodes == 1
    index = expert.attributes["drawn"]["expert"][0]
    assert index == np.random.default_rng(2).permutation(3)[0]
    (same,) = tasks._record_pool(policy, HOPPER, "hopper", range(index, index + 1)).episodes()
    assert np.array_equal(expert.transitions.obs, same.obs)  # pool episode i does not depend on the pool's size

    monkeypatch.setattr(tasks, "REPLAY_ROWS", 2 * LENGTH + 3)
    _, pile = split(make_task("hopper/full-replay", 2, pool=1, replay=replay_folder))
    assert pile.episode_ends.tolist() == [LENGTH, 2 * LENGTH, 2 * LENGTH + 3]


def test_full_replay_refusals(replay_folder, tmp_path):
    with pytest.raises(InputError, match="demosift collect hopper --out DIR"):
        make_task("hopper/full-replay", 0)
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=f"demosift collect hopper --out {missing}"):
        make_task("hopper/full-replay", 0, replay=missing)
    write_dataset(make_pool(1, length=1500), replay_folder / "replay.hdf5")
    with pytest.raises(InputError, match=r"replay\.hdf5: has an episode of 1500 rows"):
        make_task("hopper/full-replay", 0, pool=1, replay=replay_folder)
    walker = environments.resolve("walker2d")
    make_policy(17, 6, members=1, environment=walker).save(replay_folder / "expert.safetensors")
    with pytest.raises(InputError, match=r"expert\.safetensors: made for Walker2d-v5, but the task is in Hopper-v5"):
        make_task("hopper/full-replay", 0, pool=1, replay=replay_folder)


@pytest.mark.parametrize("task", ["hopper", "hopper/nosuch", "CartPole-v1/noisy-expert", "/noisy-expert"])
def test_unknown_tasks_are_refused(task):
    with pytest.raises(InputError, match="unknown task") as caught:
        make_task(task, 0)
    assert "noisy-expert" in str(caught.value)


def test_negative_seeds_are_refused(pools):
    with pytest.raises(InputError, match="-1"):
        make_task("hopper/noisy-expert", -1)


def test_record(tmp_path: Path):
    spec = environments.resolve("Pendulum-v1")
    policy = make_policy(3, 1, members=2, environment=spec)
    dataset = record(policy, 2, seed=4, member=1, num_workers=1)
    assert (dataset.num_episodes, len(dataset)) == (2, 400)
    assert np.flatnonzero(dataset.timeout).tolist() == [199, 399]
    assert not dataset.transitions.terminal.any()
    action = policy.member(1).act_members(dataset.transitions.obs[None])[0]
    np.testing.assert_allclose(dataset.transitions.action, action, atol=1e-5)
    write_dataset(dataset, tmp_path / "pendulum.hdf5")
    read = read_dataset(tmp_path / "pendulum.hdf5")
    np.testing.assert_allclose(read.transitions.action, dataset.transitions.action, atol=1e-6)
    assert read.environment == spec
    starts = dataset.transitions.obs[[0, 200]]
    more = record(policy, 3, seed=4, num_workers=1)
    assert np.array_equal(more.transitions.obs[[0, 200]], starts)
    with pytest.raises(InputError, match="episodes: 0 is not"):
        record(policy, 0)
    with pytest.raises(InputError, match="which environment"):
        record(replace(policy, environment=None), 1)


def test_record_random_episodes_that_end():
    cartpole = environments.resolve("CartPole-v1")
    dataset = record(RandomPolicy(cartpole), 5, num_workers=1)
    assert dataset.num_episodes == 5
    assert dataset.transitions.terminal.sum() == 5
    assert not dataset.timeout.any()
    assert np.array_equal(dataset.returns(), np.diff(dataset.episode_ends, prepend=0))
