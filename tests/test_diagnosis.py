"""The diagnosis: the rule on constructed piles, each artefact found where it is and not where it is not."""

import itertools
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from demosift.data.rows import DatasetRows
from demosift.report.statistics import probability_greater
from demosift.sift.artefacts import clock_columns, coarseness, find_artefacts, other_units
from demosift.sift.calibration import effective_sample_size
from demosift.sift.diagnosis import Evidence, advise, calibration_bins, diagnose, in_words, judge, roc_curve
from demosift.sift.folds import find_copies, hash_rows
from demosift.sift.overlap import draw_sample, measure_overlap
from demosift.types import Dataset, Origin, Transitions

EPISODE = 100


def expert_action(obs: np.ndarray) -> np.ndarray:
    return np.tanh(np.stack([obs[:, 0] - obs[:, 1], obs[:, 2]], axis=1))


def make_set(
    seed: int, episodes: int, noisy: float = 0.0, offset: float = 0.0, sign: float = 1.0, **changes: Any
) -> Dataset:
    """Wandering states; a share of episodes acts at random."""
    rng = np.random.default_rng(seed)
    phase = rng.uniform(0, 2 * np.pi, (episodes, 1, 3)) + 0.4 * np.arange(EPISODE)[None, :, None] * [1.0, 0.7, 1.3]
    obs = (np.sin(phase) + 0.05 * rng.normal(size=phase.shape)).reshape(-1, 3) + offset
    action = sign * expert_action(obs - offset) + 0.02 * rng.normal(size=(len(obs), 2))
    random = np.repeat(np.arange(episodes) < round(noisy * episodes), EPISODE)
    action[random] = rng.uniform(-1, 1, (int(random.sum()), 2))
    timeout = np.arange(1, len(obs) + 1) % EPISODE == 0
    obs, action = obs.astype(np.float32), np.clip(action, -1, 1).astype(np.float32)
    zero = np.zeros(len(obs), np.float32)
    origin = Origin(random.astype(np.int8), ("clean", "noisy"))
    return Dataset(Transitions(obs, action, zero, obs, zero > 0), timeout, origin=origin, **changes)


def with_obs(dataset: Dataset, obs: np.ndarray) -> Dataset:
    return replace(dataset, transitions=dataset.transitions._replace(obs=obs.astype(np.float32)))


def with_column(dataset: Dataset, values: np.ndarray | float) -> Dataset:
    column = np.broadcast_to(values, (len(dataset),))[:, None]
    return with_obs(dataset, np.concatenate([dataset.transitions.obs, column], axis=1))


def ideal_weights(expert: Dataset, supplementary: Dataset, rng: np.random.Generator) -> np.ndarray:
    """What a good scorer would say: the residual of the expert's own rule, and how far the state is from its range."""

    def looks(dataset: Dataset) -> np.ndarray:
        obs, action = (x.astype(np.float64) for x in dataset.transitions[:2])
        obs = obs[:, :3]
        wrong = np.abs(action - expert_action(obs)).max(axis=1) + np.maximum(np.abs(obs).max(axis=1) - 1.3, 0)
        return np.where(wrong < 0.12, 1.4, 0.01) * np.exp(0.05 * rng.normal(size=len(obs)))

    return np.concatenate([looks(expert), looks(supplementary)])


def diagnosis_of(
    expert: Dataset, supplementary: Dataset, weight: np.ndarray | None = None, useless: bool = False
) -> dict[str, Any]:
    sources = DatasetRows(expert), DatasetRows(supplementary)
    hashes = np.concatenate([hash_rows(*each.transitions[:2]) for each in (expert, supplementary)])
    if weight is None:
        weight = ideal_weights(expert, supplementary, np.random.default_rng(9))
    return diagnose(sources, weight, find_copies(hashes, len(expert)), useless, 0)[0]


EXPERT = make_set(0, 10)


# The rule, on piles whose answer is known


def test_a_pile_of_the_experts_own_kind_is_for_sift_which_is_nbcu_there() -> None:
    found = diagnosis_of(EXPERT, make_set(1, 20))
    assert found["advised"] == "sift"
    assert "most of the pile" in found["headline"]
    assert found["samples"]["helpful"] > 0.85
    assert found["states"]["covered"] > 0.9
    assert found["expert_like"]["share"] > 0.95
    assert found["expert_like"]["episodes"] == 20
    assert found["effective_sample_size"]["union"]["rows"] == pytest.approx(3000, rel=0.02)
    assert found["effective_sample_size"]["union"]["episodes"] == pytest.approx(30, rel=0.02)
    assert "samples that help" in found["reason"]
    assert found["warnings"] == []


def test_the_very_same_file_is_for_bc_and_said_to_be_the_same() -> None:
    found = diagnosis_of(EXPERT, EXPERT, np.ones(2 * len(EXPERT)), useless=True)
    assert found["advised"] == "bc"
    assert "own rows again" in found["reason"]


def test_opposite_actions_on_the_same_states_promise_little() -> None:
    found = diagnosis_of(EXPERT, make_set(1, 20, sign=-1.0))
    assert found["advised"] == "sift"
    assert "expect little" in found["headline"]
    assert found["samples"]["harmful"] > 0.7
    assert "samples that harm" in found["reason"]
    assert found["effective_sample_size"]["union"]["rows"] < 1.2 * len(EXPERT)


def test_other_states_promise_little() -> None:
    found = diagnosis_of(EXPERT, make_set(1, 20, offset=8.0))
    assert found["advised"] == "sift"
    assert "expect little" in found["headline"]
    assert found["samples"]["elsewhere"] > 0.99
    assert found["states"]["covered"] == 0
    assert "neither help nor harm" in found["reason"]
    assert {warning["kind"] for warning in found["warnings"]} == {"alone"}  # told, and not taken for bookkeeping


@pytest.mark.parametrize("noisy", [0.25, 0.5, 0.9])
def test_a_mixture_is_for_sift(noisy: float) -> None:
    found = diagnosis_of(EXPERT, make_set(1, 20, noisy=noisy))
    assert found["advised"] == "sift"
    assert found["expert_like"]["share"] == pytest.approx(1 - noisy, abs=0.06)
    assert found["actions"]["other"] == pytest.approx(noisy, abs=0.12)
    assert found["expert_like"]["episodes"] == round(20 * (1 - noisy))
    assert found["actions"]["other_among_expert_like"] < 0.1


def test_one_expert_episode_is_enough() -> None:
    """A row's own stretch does not count, or every expert state would seem to have a neighbour right beside it."""
    expert = make_set(0, 1)
    found = diagnosis_of(expert, make_set(1, 20, noisy=0.5))
    assert found["advised"] == "sift"


def test_weights_that_do_not_follow_the_actions_cannot_be_trusted() -> None:
    supplementary = make_set(1, 20, noisy=0.5)
    blind = np.exp(0.1 * np.random.default_rng(0).normal(size=len(EXPERT) + len(supplementary)))
    found = diagnosis_of(EXPERT, supplementary, blind)
    assert found["advised"] is None
    assert "disagree" in found["headline"]
    assert found["actions"]["other_among_expert_like"] == pytest.approx(found["actions"]["other"], abs=0.05)
    none = diagnosis_of(EXPERT, supplementary, np.ones(len(EXPERT) + len(supplementary)), useless=True)
    assert none["advised"] is None
    assert "does not see" in none["headline"]
    assert "other actions" in none["reason"]


def test_too_few_expert_rows_to_tell() -> None:
    expert = make_set(0, 1).take(slice(0, 30))
    expert = replace(expert, timeout=np.arange(30) == 29)
    found = diagnosis_of(expert, make_set(1, 5))
    assert found["advised"] is None
    assert "30 rows" in found["reason"]


def test_rule_is_total_and_consistent() -> None:
    """Any evidence gets an answer, and never NBCU."""
    for near, wrong, like, kept_wrong, useless in itertools.product(
        (0.0, 0.04, 0.5, 1.0), (0.0, 0.1, 0.3, 1.0), (0.0, 0.01, 0.4, 1.0), (None, 0.02, 0.9), (False, True)
    ):
        advice = advise(Evidence(1000, 10_000, near, wrong, like, kept_wrong, useless))
        assert advice.method in (None, "sift")
        assert advice.reason.endswith(".")
        if kept_wrong == 0.9 and wrong in (0.3, 1.0):
            assert advice.method is None or "expect little" in advice.headline
        if useless and like == 1.0:  # all weights are equal
            assert advice.method in (None, "sift")
            assert advice.method is None or "most of the pile" in advice.headline
    assert advise(Evidence(1000, 10_000, 0.9, 0.0, 1.0, 0.0, separated_by="a clock")).method is None


def test_nothing_to_clone_on_states_that_are_covered_is_for_nearest_neighbour_rewards() -> None:
    """The pile wanders where the expert does and often acts as it does, but no row weighs as much as the expert's."""
    pile = make_set(1, 20, noisy=0.4)
    weight = np.concatenate([np.full(len(EXPERT), 2.0), np.full(len(pile), 0.01)])
    found = diagnosis_of(EXPERT, pile, weight)
    assert found["states"]["covered"] > 0.9
    assert 0.15 < found["actions"]["other"] < 0.6
    assert (found["advised"], found["heuristic"]) == ("seabo", True)
    assert "distance to the nearest expert row" in found["reason"]
    assert "heuristic" in found["reason"]
    assert not diagnosis_of(EXPERT, make_set(1, 20))["heuristic"]
    seen = Evidence(1000, 10_000, 0.9, 0.4, 0.0, None, covered=0.9)
    assert advise(seen).method == "seabo"
    # Each condition by itself turns the advice: coverage, how often the action is the expert's, something to clone.
    others = ({"covered": 0.4}, {"wrong": 0.7}, {"expert_like": 0.4})
    assert [advise(seen._replace(**change)).method for change in others] == ["sift"] * 3


def test_a_small_pile_that_looks_like_the_expert_is_not_said_to_look_unlike_it() -> None:
    advice = advise(Evidence(5_000, 984, 0.45, 0.28, 0.44, None))
    assert "expect little" in advice.headline
    assert "433 rows look like the expert's, which has 5,000" in advice.reason
    assert "hardly any of the pile" not in advice.headline


def test_an_expert_without_actions_is_for_methods_that_need_none() -> None:
    seen = Evidence(1000, 10_000, 0.5, 0.3, 0.2, None, covered=0.9, expert_actions=False)
    assert advise(seen).method == "smodice"
    assert advise(seen._replace(like_episodes=3)).method == "tailo"
    for advice in (advise(seen), advise(seen._replace(like_episodes=3))):
        assert advice.heuristic
        assert {"SMODICE", "TAILO"} <= set(advice.reason.replace(".", "").split())
    unclear = (seen._replace(useless=True), seen._replace(expert_rows=30), seen._replace(separated_by="a clock"))
    for evidence in unclear:
        advice = advise(evidence)
        assert advice.method is None
        assert "BC" not in advice.reason  # it needs the expert's actions


def test_words_for_a_terminal_name_the_advice_and_every_warning() -> None:
    found = diagnosis_of(with_column(EXPERT, 1.0), with_column(make_set(1, 20), 0.0))
    text = "\n".join(in_words(found))
    assert text.startswith("advice: Cannot tell")
    assert "warning: observation column 3 is 1 in every expert row and 0 in every other" in text


# Artefacts


def kinds(expert: Dataset, supplementary: Dataset) -> set[tuple[str, bool]]:
    return {(warning["kind"], warning["separates"]) for warning in diagnosis_of(expert, supplementary)["warnings"]}


SUPPLEMENTARY = make_set(1, 20, noisy=0.3)


def test_clean_files_have_no_artefacts() -> None:
    assert kinds(EXPERT, SUPPLEMENTARY) == set()
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=len(d)) for d in (EXPERT, SUPPLEMENTARY)]
    assert kinds(with_column(EXPERT, noise[0]), with_column(SUPPLEMENTARY, noise[1])) == set()
    assert kinds(with_column(EXPERT, 3.0), with_column(SUPPLEMENTARY, 3.0)) == set()  # the same constant says nothing


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.0), ("noise", 0.0), (0.0, "noise")])
def test_a_constant_column_in_one_file(first: float | str, second: float | str) -> None:
    rng = np.random.default_rng(0)
    expert, supplementary = (
        with_column(d, rng.normal(size=len(d)) if value == "noise" else float(value))
        for d, value in ((EXPERT, first), (SUPPLEMENTARY, second))
    )
    assert kinds(expert, supplementary) == {("constant", True)}
    found = diagnosis_of(expert, supplementary)
    assert found["advised"] is None
    assert found["samples"]["helpful"] > 0.5  # neighbours are found without that column


def test_a_goal_is_no_artefact() -> None:
    """One value in the only expert episode, another in each of the pile's: states that differ, not recorders."""
    goals = np.repeat(np.random.default_rng(0).normal(size=20), EPISODE)
    assert kinds(with_column(make_set(0, 1), 0.3), with_column(SUPPLEMENTARY, goals)) == {("constant", False)}


def test_other_units_of_a_column() -> None:
    degrees = SUPPLEMENTARY.transitions.obs * np.array([1.0, 57.3, 1.0])
    assert kinds(EXPERT, with_obs(SUPPLEMENTARY, degrees)) == {("units", True)}
    found = diagnosis_of(EXPERT, with_obs(SUPPLEMENTARY, degrees))
    assert found["advised"] is None
    assert "about 5" in found["reason"]
    rng = np.random.default_rng(0)
    assert other_units(rng.normal(size=1000), 2 * rng.normal(size=1000)) is None  # behaviour may well do that
    assert other_units(rng.normal(size=1000), 20 * rng.uniform(size=1000)) is None  # another shape


def test_a_clock() -> None:
    step = [np.arange(len(d)) % EPISODE for d in (EXPERT, SUPPLEMENTARY)]
    assert kinds(with_column(EXPERT, step[0]), with_column(SUPPLEMENTARY, step[1])) == {("clock", False)}
    stamped = with_column(EXPERT, 5000.0 + np.arange(len(EXPERT)) / 20)
    later = with_column(SUPPLEMENTARY, 9000.0 + np.arange(len(SUPPLEMENTARY)) / 20)
    assert kinds(stamped, later) == {("clock", True)}
    assert diagnosis_of(stamped, later)["advised"] is None
    assert kinds(stamped, with_column(SUPPLEMENTARY, 0.0)) == {("clock", True)}
    broken = step[0].astype(np.float64)
    broken[50] = -1
    assert not clock_columns(DatasetRows(with_column(EXPERT, broken))).any()


def test_rounding_in_one_file() -> None:
    assert kinds(EXPERT, with_obs(SUPPLEMENTARY, np.round(SUPPLEMENTARY.transitions.obs, 2))) == {("rounding", False)}
    assert kinds(EXPERT, with_obs(SUPPLEMENTARY, SUPPLEMENTARY.transitions.obs.astype(np.float16))) == {
        ("rounding", False)
    }
    assert (
        kinds(EXPERT, with_obs(SUPPLEMENTARY, SUPPLEMENTARY.transitions.obs.astype(np.float64))) == set()
    )  # read as float32 either way
    both = [with_obs(d, np.round(d.transitions.obs, 2)) for d in (EXPERT, SUPPLEMENTARY)]
    assert kinds(*both) == set()
    values = np.random.default_rng(0).normal(size=(100, 2))
    assert coarseness(values) is None
    assert coarseness(np.round(100 * values, 1)) == "1 decimal"
    assert coarseness(np.round(values, 3)) == "3 decimals"


def test_repeated_rows() -> None:
    twice = SUPPLEMENTARY.take(np.concatenate([np.arange(len(SUPPLEMENTARY))] * 2))
    assert kinds(EXPERT, twice) == {("repeats", False)}


def test_named_parts_of_observations_name_the_column() -> None:
    class Named(DatasetRows):
        obs_keys: ClassVar = {"arm": 3, "clock": 1}

    sources = Named(with_column(EXPERT, 1.0)), Named(with_column(SUPPLEMENTARY, 2.0))
    samples = tuple(draw_sample(each, 1000, np.random.default_rng(0)) for each in sources)
    found = find_artefacts(sources, samples, (0.0, 0.0))  # type: ignore[arg-type]
    assert found[0].text.startswith("observation clock column 0 is 1")


# The numbers


def test_a_constant_column_changes_no_overlap() -> None:
    """A camera's width, say, which is the same in both files."""
    pile = make_set(1, 20, noisy=0.5)
    found = []
    for change in (lambda part: part, lambda part: with_column(part, 640.0)):
        rng = np.random.default_rng(0)
        own, others = (draw_sample(DatasetRows(change(part)), 1_000, rng) for part in (EXPERT, pile))
        found.append(measure_overlap(own, others, np.zeros(own.obs.shape[1], bool)))
    assert 0.3 < found[0].helpful.mean() < 0.6
    for plain, widened in zip(*found, strict=True):
        np.testing.assert_array_equal(widened, plain)


def test_overlap_of_discrete_actions() -> None:
    def discrete(dataset: Dataset, flipped: bool) -> Dataset:
        choice = (dataset.transitions.obs[:, 0] > 0) ^ flipped
        return replace(dataset, transitions=dataset.transitions._replace(action=np.eye(2, dtype=np.int8)[choice * 1]))

    expert = discrete(EXPERT, False)
    own, same, flipped = (
        draw_sample(DatasetRows(d), 1000, np.random.default_rng(0))
        for d in (expert, discrete(SUPPLEMENTARY, False), discrete(SUPPLEMENTARY, True))
    )
    assert measure_overlap(own, same, np.zeros(3, bool)).helpful.mean() > 0.85
    assert measure_overlap(own, flipped, np.zeros(3, bool)).harmful.mean() > 0.7


def test_samples_say_where_their_rows_are() -> None:
    sample = draw_sample(DatasetRows(SUPPLEMENTARY), 50, np.random.default_rng(0))
    assert (sample.episode * EPISODE + sample.step == sample.row).all()
    assert (sample.length == EPISODE).all()
    np.testing.assert_array_equal(sample.obs, SUPPLEMENTARY.transitions.obs[sample.row])
    assert len(np.unique(sample.row)) == 50


def test_true_ratios_are_calibrated_and_doubled_ones_are_not() -> None:
    """Rows on a line: the expert's at N(1, 1), the pile's at N(0, 1); the ratio is known."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(1, 1, 5000), rng.normal(0, 1, 20_000)])
    ratio = np.exp(x - 0.5)
    weight = ratio / (0.2 * ratio + 0.8)  # d_E / d_U with a fifth of the union the expert's
    found = judge(weight, 5000, rng)
    assert found["calibration_error"] < 0.02
    assert judge(weight**3, 5000, rng)["calibration_error"] > 0.1
    assert found["auc"] == pytest.approx(0.76, abs=0.01)  # Phi(1/sqrt 2)
    curve = np.array(found["roc"])
    assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(found["auc"], abs=0.005)
    assert sum(one["mass"] for one in found["calibration"]) == pytest.approx(1)


def test_roc_of_equal_and_of_separate_weights() -> None:
    one, two = np.ones(10), np.full(10, 2.0)
    assert roc_curve(one, one) == [[0.0, 0.0], [1.0, 1.0]]
    assert [0.0, 1.0] in roc_curve(two, one)
    assert [1.0, 0.0] in roc_curve(one, two)
    assert probability_greater(two, one) == 1
    assert len(calibration_bins(one / 2, one, one)) == 1


def test_effective_sample_size_of_the_union_ignores_what_weighs_nothing() -> None:
    assert effective_sample_size(np.array([1.0, 1.0, 1e-6, 1e-6])) == pytest.approx(2, abs=1e-4)


def test_diagnosis_is_deterministic() -> None:
    assert diagnosis_of(EXPERT, SUPPLEMENTARY) == diagnosis_of(EXPERT, SUPPLEMENTARY)
