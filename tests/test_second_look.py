"""The second look at episodes: what is like the expert's helps to judge the others."""

from pathlib import Path

import numpy as np

import demosift as ds
from demosift.data.rows import DatasetRows
from demosift.report.statistics import probability_greater
from demosift.results.scores import merit, read_scores
from demosift.sift.finish import Finish
from demosift.sift.scoring import score
from demosift.sift.second_look import SUPPORT, credit, in_order, possible, support, thinned
from demosift.types import Dataset, Transitions

STEPS = 20


def reaching(goals: np.ndarray, careful: np.ndarray, seed: int) -> Dataset:
    """From 0 to a goal on a line. A careful hand steps towards the goal, the other anywhere."""
    rng = np.random.default_rng(seed)
    obs, action = (np.zeros((len(goals), STEPS, width), np.float32) for width in (2, 1))
    place = np.zeros(len(goals))
    for step in range(STEPS):
        wanted = np.clip(2 * (goals - place), -1, 1) + 0.02 * rng.normal(size=len(goals))
        taken = np.clip(np.where(careful, wanted, rng.uniform(-1, 1, len(goals))), -1, 1)
        obs[:, step], action[:, step, 0] = np.stack([place, goals], axis=1), taken
        place = place + 0.2 * taken
    flat = obs.reshape(-1, 2)
    nothing = np.zeros(len(flat), bool)
    ends = np.arange(1, len(flat) + 1) % STEPS == 0
    return Dataset(Transitions(flat, action.reshape(-1, 1), nothing.astype(np.float32), flat, nothing), ends)


def test_goals_that_the_expert_did_not_show(tmp_path: Path):
    rng = np.random.default_rng(0)
    careful = np.arange(40) >= 10
    expert = reaching(np.array([0.9, 0.95, 1.0]), np.ones(3, bool), 1)
    # The careless ones have the expert's goals, most of the others have not.
    pile = reaching(np.where(careful, rng.uniform(-1, 1, 40), rng.uniform(0.9, 1, 40)), careful, 2)
    ds.write_dataset(pile, tmp_path / "pile.hdf5")
    scored = score(expert, tmp_path / "pile.hdf5", out=tmp_path / "scores", scorer="neighbours", members=1)
    episodes = {name: values[3:] for name, values in scored.episodes().items()}
    ranking = {"log_weight": episodes["log_weight"], "second_look": episodes["second_look"], "rank": -episodes["rank"]}
    told = {name: probability_greater(values[careful], values[~careful]) for name, values in ranking.items()}
    assert told["log_weight"] + 0.1 < told["second_look"] <= told["rank"]
    assert scored.summary["second_look"] == {"trusted": 10}
    # What `filter` reads ranks in the same way.
    read = read_scores(tmp_path / "pile.hdf5", tmp_path / "scores")
    assert np.array_equal(read.order[:5], np.argsort(episodes["rank"])[:5])


def test_few_episodes_get_one_look():
    many, few = (DatasetRows(reaching(np.zeros(count), np.ones(count, bool), 0)) for count in (20, 2))
    assert possible((many, many))
    assert not possible((few, many))
    assert not possible((many, few))


def test_episodes_return_to_their_places():
    trusted = np.array([False, True, False, True])
    divided = np.array([10, 11, 1, 3, 0, 2])  # the expert's two, the trusted ones, the others
    assert divided[in_order(2, trusted)].tolist() == [10, 11, 0, 1, 2, 3]


def test_thinned_episodes_keep_their_ends():
    data = reaching(np.array([0.0, 1.0, 2.0]), np.ones(3, bool), 0)
    found = thinned(DatasetRows(data), np.array([True, False, True]), 3)
    assert found.num_episodes == 2
    assert found.episode_ends.tolist() == [7, 14]
    assert np.array_equal(found.transitions.obs[6], data.transitions.obs[STEPS - 1])
    assert np.array_equal(found.transitions.obs[7], data.transitions.obs[2 * STEPS + 1])


def test_the_better_look_counts():
    looks = np.array([-1.0, -2.0]), np.array([-3.0, -0.5])
    assert merit(looks[0], None, looks[1]).tolist() == [-1.0, -0.5]
    assert merit(looks[0], None).tolist() == [-1.0, -2.0]


def test_early_stops_rank_last_in_the_same_order():
    looks, finish = np.array([0.5, 1.0, -9.0, 0.0]), np.array([0.7, 1.0, 0.85, 0.79])
    assert np.argsort(-merit(looks, finish)).tolist() == [1, 2, 0, 3]
    assert merit(looks, np.ones(4), support=np.array([0.0, -2.0, 0.0, 0.0])).tolist() == [0.5, -1.0, -9.0, 0.0]


def test_agreement_counts_as_far_as_it_ranks_like_the_weights():
    merits, agreement = np.array([1.0, 2.0, 3.0, 4.0]), np.array([-1.0, 0.0, 0.5, 2.0])
    assert np.allclose(support(merits, agreement), SUPPORT * agreement)
    assert np.array_equal(support(-merits, agreement), np.zeros(4))  # most of the pile is bad
    assert np.allclose(support(merits, agreement[[1, 0, 2, 3]]), SUPPORT * 0.8 * agreement[[1, 0, 2, 3]])


def test_an_episode_stops_early_only_if_expert_and_pile_say_so():
    by_expert, by_pile = Finish(np.array([1.0, 0.9, 0.3, 0.4, 1.0]), 0.9), Finish(np.array([1.0, 0.2, 0.7]), 0.8)
    found = credit(by_expert, by_pile)
    assert found.share.tolist() == [1.0, 0.9, 1.0, 0.4, 1.0]  # the expert's two first
    assert found.told == 0.9
    assert credit(by_expert, None) is by_expert
