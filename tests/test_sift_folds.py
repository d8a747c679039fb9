"""Folds: every row is weighed by models that were trained without it, and without any copy of it."""

import numpy as np
import pytest
from conftest import random_dataset

from demosift.data import open_rows
from demosift.sift.folds import Copies, Plan, find_copies, hash_rows, make_plan, repeated_episodes, split_rows
from demosift.sift.training import held_out_rows, training_rows
from demosift.sift.training_sample import TrainingSample, draw_training_sample, survey
from demosift.types import Dataset, InputError, Transitions


def joined(*parts: Dataset) -> Dataset:
    transitions = Transitions(*map(np.concatenate, zip(*(part.transitions for part in parts), strict=True)))
    return Dataset(transitions, np.concatenate([part.timeout for part in parts]))


def random_case(seed: int) -> tuple[Dataset, Dataset]:
    """One or many expert episodes; a pile with copies of them, of parts of them, and of its own episodes."""
    rng = np.random.default_rng(seed)
    expert = random_dataset(seed, int(rng.integers(30, 90)), episode=int(rng.choice([1000, 15, 3])))
    supplementary = random_dataset(seed + 1000, int(rng.integers(30, 200)), episode=int(rng.choice([7, 40, 1000])))
    parts = [supplementary]
    if rng.random() < 0.7:
        parts.append(expert)
    if rng.random() < 0.7:
        starts = supplementary.episode_starts
        parts.append(supplementary.take(slice(starts[-1], None)))
    if rng.random() < 0.5:
        rows = rng.choice(len(expert), 5)
        parts.append(Dataset(Transitions(*(array[rows] for array in expert.transitions)), np.ones(5, bool)))
    return expert, joined(*parts)


def plan_of(
    expert: Dataset, supplementary: Dataset, num_folds: int = 4, num_members: int = 3, seed: int = 0
) -> tuple[Plan, Copies]:
    first, second = open_rows(expert), open_rows(supplementary)
    hashes = np.concatenate([survey(source, lambda _: None).hashes for source in (first, second)])
    copies = find_copies(hashes, len(expert))
    return make_plan(first, second, copies, num_folds, num_members, seed), copies


def assert_no_leak(plan: Plan, expert: Dataset, supplementary: Dataset) -> None:
    """Compares the rows themselves, not their hashes."""
    rows = [
        obs.tobytes() + action.tobytes()
        for part in (expert, supplementary)
        for obs, action in zip(part.transitions.obs, part.transitions.action, strict=True)
    ]
    for model in range(plan.num_models):
        left_out = plan.left_out(model, slice(None))
        seen = {row for row, out in zip(rows, left_out, strict=True) if not out}
        assert not any(row in seen for row, out in zip(rows, left_out, strict=True) if out)


@pytest.mark.parametrize("seed", range(40))
def test_no_row_is_weighed_by_a_model_that_saw_it(seed: int):
    expert, supplementary = random_case(seed)
    plan, _ = plan_of(expert, supplementary, seed=seed)
    every = np.arange(len(expert) + len(supplementary))
    for member in range(plan.num_members):
        model_of = plan.model_of(member, every)
        assert ((model_of >= member * 4) & (model_of < member * 4 + 4)).all()
        left_out = [plan.left_out(member * 4 + fold, every) for fold in range(4)]
        np.testing.assert_array_equal(np.sum(left_out, axis=0), 1)  # weighed, and once
    assert_no_leak(plan, expert, supplementary)
    for model in range(plan.num_models):  # something to learn the expert from, and something to test it on
        of_expert = plan.left_out(model, slice(len(expert)))
        assert 0 < of_expert.sum() < len(expert)


def test_a_leak_shows():
    """Folds that ignore copies fail the check above."""
    expert = random_dataset(0, 60, episode=1000)
    supplementary = joined(random_dataset(1, 60), expert)
    plan, copies = plan_of(expert, supplementary)
    assert copies.shared[-60:].all()
    ignorant = make_plan(open_rows(expert), open_rows(supplementary), Copies(np.arange(180), 60), 4, 3, 0)
    with pytest.raises(AssertionError):
        assert_no_leak(ignorant, expert, supplementary)
    assert_no_leak(plan, expert, supplementary)


def test_episodes_stay_whole():
    ends = np.arange(10, 1010, 10)
    fold = split_rows(ends, 5, np.random.default_rng(0)).reshape(100, 10)
    assert (fold == fold[:, :1]).all()
    np.testing.assert_array_equal(np.bincount(fold[:, 0]), 20)


def test_long_episodes_do_not_meet_in_one_fold():
    ends = np.cumsum([1000] * 5 + [10] * 45)
    fold = split_rows(ends, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(fold), 1090)


def test_one_episode_is_cut_into_stretches():
    fold = split_rows(np.array([1000]), 5, np.random.default_rng(0))
    np.testing.assert_array_equal(fold, np.tile(np.repeat(np.arange(5), 50), 4))
    np.testing.assert_array_equal(split_rows(np.array([10]), 5, np.random.default_rng(0)), np.repeat(np.arange(5), 2))


def test_all_members_together_see_the_whole_expert_set():
    """The models that weigh a row of the pile leave out different parts of the expert's."""
    expert, supplementary = random_dataset(0, 60, episode=1000), random_dataset(1, 60)
    plan, _ = plan_of(expert, supplementary, num_folds=3, num_members=3)
    for row in (60, 119):
        models = [int(plan.model_of(member, np.array([row]))[0]) for member in range(3)]
        left_out = [plan.left_out(model, slice(60)) for model in models]
        np.testing.assert_array_equal(np.sum(left_out, axis=0), 1)


def test_equal_rows_have_equal_hashes():
    obs, action = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], np.float32), np.zeros((3, 1), np.float32)
    hashes = hash_rows(obs, action)
    assert hashes[0] == hashes[1] != hashes[2]
    many = np.random.default_rng(0).integers(0, 2, (100_000, 20)).astype(np.float32)
    assert len(np.unique(hash_rows(many, action[:1].repeat(100_000, axis=0)))) == len(np.unique(many, axis=0))


def test_repeated_episodes_are_counted():
    data = random_dataset(0, 60)  # ten episodes of six rows
    hashes = hash_rows(data.transitions.obs, data.transitions.action)
    assert repeated_episodes(hashes, data.episode_starts) == 0
    twice = np.concatenate([hashes, hashes[:12]])
    assert repeated_episodes(twice, np.arange(0, 72, 6)) == 2
    assert repeated_episodes(np.concatenate([hashes[:6], hashes[:6][::-1]]), np.array([0, 6])) == 0


def test_an_expert_of_equal_rows_is_refused():
    row = random_dataset(0, 30).take(np.zeros(30, int))
    expert = Dataset(row.transitions, np.ones(30, bool))
    with pytest.raises(InputError, match="1 different rows"):
        plan_of(expert, random_dataset(1, 60))


def test_expert_episodes_that_repeat_each_other_fill_all_folds():
    once = random_dataset(0, 12, episode=6)
    expert = joined(*[once] * 6)
    plan, _ = plan_of(expert, random_dataset(1, 60))
    assert set(plan.fold[: len(expert)]) == {0, 1, 2, 3}
    assert_no_leak(plan, expert, random_dataset(1, 60))


def make_sample(expert: Dataset, supplementary: Dataset) -> TrainingSample:
    plan, _ = plan_of(expert, supplementary)
    sources = open_rows(expert), open_rows(supplementary)
    return draw_training_sample(*sources, survey(sources[1], lambda _: None).normaliser(), plan, 0)


def test_models_train_and_are_stopped_on_different_rows():
    expert = random_dataset(0, 60, episode=1000)
    sample = make_sample(expert, joined(random_dataset(1, 90), expert))
    held_out = held_out_rows(sample, 0)
    for model, (of_expert, of_union, of_supplementary) in enumerate(zip(*training_rows(sample), strict=True)):
        assert not np.intersect1d(of_union, np.asarray(held_out.union.row[model])).size
        assert not np.intersect1d(of_expert, np.asarray(held_out.expert.row[model])).size
        np.testing.assert_array_equal(np.sort(np.concatenate([of_expert, of_supplementary])), of_union)
        assert (of_expert < 60).all()
        assert (of_supplementary >= 60).all()


def test_moments_are_those_of_all_rows():
    data = random_dataset(0, 60)
    known = survey(open_rows(data), lambda _: None)
    np.testing.assert_allclose(known.mean, data.transitions.obs.mean(axis=0, dtype=np.float64), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(known.deviation, data.transitions.obs.std(axis=0, dtype=np.float64), rtol=1e-6)
