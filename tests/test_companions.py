"""Companions: where one expert episode is like itself and like no other, those that look like it help to weigh rows."""

from functools import cache

import numpy as np
import pytest

from demosift.data.rows import DatasetRows
from demosift.sift.companions import COMPANIONS, LONE, find_companions, foresight, recognised, with_companions
from demosift.sift.folds import find_copies, hash_rows, make_plan
from demosift.sift.scored import Scored
from demosift.sift.scoring import score
from demosift.types import Dataset, Transitions

STEPS = 60
CAREFUL = np.arange(30) < 20
ALONE = np.ones(1, bool)


def landings(careful: np.ndarray, seed: int) -> Dataset:
    """From somewhere on an arc to its middle. A careful hand goes straight there, the other anywhere.

    All of them see the careful hand's states, so that states do not tell who acted.
    """
    rng = np.random.default_rng(seed)
    angle = rng.uniform(-1, 1, len(careful))
    start = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    left = np.linspace(1, 0.1, STEPS)[None, :, None]
    obs = start[:, None] * left + 0.01 * rng.normal(size=(len(careful), STEPS, 2))
    wanted = -0.8 * obs / np.linalg.norm(obs, axis=2, keepdims=True)
    action = np.where(careful[:, None, None], wanted, rng.uniform(-1, 1, wanted.shape))
    obs, action = (array.reshape(-1, 2).astype(np.float32) for array in (obs, action))
    nothing = np.zeros(len(obs), bool)
    ends = np.arange(1, len(obs) + 1) % STEPS == 0
    return Dataset(Transitions(obs, action, nothing.astype(np.float32), obs, nothing), ends)


@cache
def scored(any_careful: bool = True) -> Scored:
    return score(landings(ALONE, 3), landings(CAREFUL & any_careful, 1), members=1)


def even(weight: np.ndarray) -> float:
    """Which share of the rows these weights are worth."""
    return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))


def test_other_good_episodes_count_as_much_as_the_expert(monkeypatch: pytest.MonkeyPatch):
    found, careful = scored(), np.repeat(CAREFUL, STEPS)
    assert found.summary["companions"]["believed"]
    assert CAREFUL[found.summary["companions"]["episodes"]].all()
    assert any("helped to weigh" in warning for warning in found.summary["warnings"])
    assert len(found.summary["held_out"]["folds"]) == 1
    weight = found.supplementary
    assert weight[~careful].sum() < 0.1 * weight.sum()
    assert even(weight[careful]) > 0.5
    monkeypatch.setattr("demosift.sift.union.find_companions", lambda *given: None)
    without = score(landings(ALONE, 3), landings(CAREFUL, 1), members=1)
    assert without.summary["companions"] is None
    assert even(without.supplementary[careful]) < 0.2, "or this data cannot show the difference"


def test_strangers_are_not_believed():
    """Of a pile without a good episode, the best are no better than the rest."""
    found = scored(any_careful=False)
    assert found.summary["companions"] is None
    assert not any("helped to weigh" in warning for warning in found.summary["warnings"])
    assert found.supplementary.sum() < 0.1 * found.weight.sum()


LIKE, UNLIKE = 0.4, -2.0
EXCHANGEABLE = [0.5, *[LIKE] * COMPANIONS, *[UNLIKE] * 3]
JOINED = np.arange(len(EXCHANGEABLE) - 1) < COMPANIONS
FEW_NEAR = [1.0, 0.9, 0.8, -3.0]


@pytest.mark.parametrize(
    ("alone", "believed"),
    [
        (EXCHANGEABLE, True),
        ([0.5, LIKE, LIKE, LIKE, UNLIKE, *[UNLIKE] * 3], False),  # one of the companions is a stranger
        ([0.0, *[LIKE] * COMPANIONS, *[UNLIKE] * 3], False),  # the expert is, among companions
        ([LIKE - 0.05, *[LIKE] * COMPANIONS, *[UNLIKE] * 3], True),
        ([0.0] * 8, False),  # nothing was learned
    ],
)
def test_what_is_believed(alone: list[float], believed: bool):
    assert recognised(np.array(alone), np.array(alone), 1, JOINED) is believed


@pytest.mark.parametrize(
    ("best", "experts", "pile", "careful", "found"),
    [
        (FEW_NEAR, ALONE, 30, True, True),  # some episodes may pass where the expert did
        ([1.0, 0.9, 0.8, 0.7], ALONE, 30, True, False),
        (FEW_NEAR, np.ones(LONE + 1, bool), 30, True, False),
        (FEW_NEAR, ALONE, 2 * COMPANIONS - 1, True, False),
        (FEW_NEAR, ALONE, 30, False, False),  # who acts otherwise is no companion
    ],
)
def test_who_has_companions(best: list[float], experts: np.ndarray, pile: int, careful: bool, found: bool):
    sources = DatasetRows(landings(experts, 0)), DatasetRows(landings(np.full(pile, careful), 1))
    mean = np.concatenate([np.full(len(experts), 1.0), best, np.full(pile - len(best), -5.0)])
    chosen = find_companions(sources, mean, 0)
    assert (chosen is not None) == found
    if chosen is not None:
        assert chosen.sum() == COMPANIONS


def test_foresight():
    hands = [landings(ALONE, 3), landings(np.ones(8, bool), 103), landings(np.zeros(8, bool), 203)]
    expert, alike, other = ((hand.transitions.obs, hand.transitions.action) for hand in hands)
    assert foresight(expert, alike) > 0.5
    assert foresight(expert, other) < 0.1


def test_each_of_them_is_left_out_whole_and_its_rows_in_the_pile_with_it():
    sources = DatasetRows(landings(ALONE, 0)), DatasetRows(landings(CAREFUL, 1))
    chosen = np.isin(np.arange(len(CAREFUL)), [2, 5, 7, 11])
    pair = with_companions(sources, chosen)
    assert pair[1] is sources[1]
    rows = [source.take(np.arange(source.num_rows)) for source in pair]
    hashes = np.concatenate([hash_rows(*own) for own in rows])
    plan = make_plan(*pair, find_copies(hashes, pair[0].num_rows), 5, 1, 0, fewest=1)
    fold = plan.fold[: pair[0].num_rows].reshape(-1, STEPS)
    assert sorted(fold[:, 0]) == [0, 1, 2, 3, 4]
    assert (fold == fold[:, :1]).all()
    pile = plan.fold[pair[0].num_rows :].reshape(-1, STEPS)
    np.testing.assert_array_equal(pile[chosen], fold[1:])
