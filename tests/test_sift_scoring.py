"""Scoring: weights that are density ratios, the files that hold them, and errors or warnings where they are wrong."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import random_dataset, tree

from demosift.cli.main import main
from demosift.data import write_dataset
from demosift.data.changes import ChangeRows
from demosift.data.rows import DatasetRows
from demosift.report.statistics import probability_greater
from demosift.sift import scorers
from demosift.sift.calibration import (
    effective_sample_size,
    fit_coefficients,
    log_loss,
    segment_quantiles,
)
from demosift.sift.scored import Scored
from demosift.sift.scorers import SCORERS, ContrastScorer, make_scorer
from demosift.sift.scoring import score
from demosift.sift.training import EarlyStopping
from demosift.tasks.recipes import make_task
from demosift.types import Dataset, InputError, Transitions

NUM_EXPERT, NUM_GOOD, NUM_BAD = 400, 600, 600
RATIO = (NUM_EXPERT + NUM_GOOD + NUM_BAD) / (NUM_EXPERT + NUM_GOOD)  # d_E/d_U of rows that the expert could have made

TINY: dict[str, Any] = {"batch_size": 64, "hidden": (16, 16)}
QUICK: dict[str, dict[str, Any]] = {
    "contrast": {**TINY, "iterations": 500, "second_iterations": 250},
    "wbcu": {**TINY, "iterations": 750, "learning_rate": 3e-3},
    "demodice": {**TINY, "iterations": 750, "learning_rate": 3e-3},
    "dwbc": {**TINY, "iterations": 750, "learning_rate": 3e-3},
    "neighbours": {},
    "trees": {"trees": 10},
}


def quick(name: str) -> scorers.Scorer:
    return SCORERS[name](**QUICK[name])


def rows(seed: int, num_rows: int, good: bool, episode: int = 20) -> Dataset:
    """The expert's action follows from the state; the other one is its opposite. States are the same."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (num_rows, 2)).astype(np.float32)
    action = np.clip(0.5 * obs[:, :1] + rng.normal(0, 0.05, (num_rows, 1)), -1, 1).astype(np.float32)
    action = action + np.float32(0.5) if good else -action - np.float32(0.5)
    ends = np.arange(1, num_rows + 1) % episode == 0
    action = np.clip(action, -1, 1)
    return Dataset(Transitions(obs, action, np.zeros(num_rows, np.float32), obs, np.zeros(num_rows, bool)), ends)


def join(*parts: Dataset) -> Dataset:
    transitions = Transitions(*map(np.concatenate, zip(*(part.transitions for part in parts), strict=True)))
    return Dataset(transitions, np.concatenate([part.timeout for part in parts]))


EXPERT = rows(0, NUM_EXPERT, good=True)
SUPPLEMENTARY = join(rows(1, NUM_GOOD, good=True), rows(2, NUM_BAD, good=False))


def turning(seed: int, episodes: int, way: float, length: int = 40) -> Dataset:
    """States that go round a circle, one way or the other; actions tell nothing."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, (episodes, 1)) + way * 0.3 * np.arange(length)
    obs = np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(-1, 2).astype(np.float32)
    obs += 0.01 * rng.normal(size=obs.shape).astype(np.float32)
    action = rng.uniform(-1, 1, (len(obs), 1)).astype(np.float32)
    ends = np.arange(1, len(obs) + 1) % length == 0
    zero = np.zeros(len(obs), np.float32)
    return Dataset(Transitions(obs, action, zero, obs, zero > 0), ends)


def test_an_expert_without_actions_is_scored_by_where_states_lead(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    expert, pile = turning(0, 5, 1.0), join(turning(1, 10, 1.0), turning(2, 10, -1.0))
    good = np.arange(len(pile)) < len(pile) // 2
    how: dict[str, Any] = {"scorer": quick("neighbours"), "members": 1, "folds": 3, "progress": False}

    def auc(weight: np.ndarray) -> float:
        return probability_greater(weight[good], weight[~good])

    blind, found = (score(expert, pile, **how, expert_observations=known) for known in (False, True))
    assert auc(blind.supplementary) < 0.7
    assert auc(found.supplementary) > 0.95
    assert found.summary["diagnosis"]["advised"] == "tailo"
    assert found.summary["diagnosis"]["compared"] == "changes of the state"
    other = expert.transitions._replace(action=-expert.transitions.action)
    again = score(dataclasses.replace(expert, transitions=other), pile, **how, expert_observations=True)
    np.testing.assert_array_equal(again.weight, found.weight)  # no action is looked at
    for name, dataset in (("expert", expert), ("pile", pile)):
        write_dataset(dataset, tmp_path / f"{name}.hdf5")
    with h5py.File(tmp_path / "expert.hdf5", "a") as file:
        del file["actions"]
    command = ["score", "--expert", str(tmp_path / "expert.hdf5"), "--supplementary", str(tmp_path / "pile.hdf5")]
    command += ["--scorer", "neighbours", "--members", "1", "--folds", "3", "--expert-observations"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "advice: Try TAILO" in capsys.readouterr().out
    assert "expert state, another next state" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(InputError, match="no expert whose observations"):
        score(None, pile, **how, expert_observations=True)


def test_changes_of_states_are_the_same_row_by_row_and_block_by_block():
    """A last row takes the change that led to it; an episode of one row has none; blocks may end anywhere."""
    obs = np.array([[0.0], [1], [3], [10], [20], [25]], np.float32)
    ends = np.array([False, False, True, True, False, True])
    zero = np.zeros(6, np.float32)
    rows = DatasetRows(Dataset(Transitions(obs, obs, zero, obs, zero > 0), ends))
    changes = ChangeRows(rows, np.array([2.0]))
    expected = np.array([[1.0], [2], [2], [0], [5], [5]]) / 2
    np.testing.assert_array_equal(changes.take(np.arange(6))[1], expected)
    for size in (1, 2, 4, 6):
        np.testing.assert_array_equal(np.concatenate([action for _, action in changes.blocks(size)]), expected)
        np.testing.assert_array_equal(np.concatenate([states for states, _ in changes.blocks(size)]), obs)


@functools.cache
def scored(name: str) -> Scored:
    return score(EXPERT, SUPPLEMENTARY, scorer=quick(name), members=2, folds=3, progress=False)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("contrast", "wbcu", "neighbours") else pytest.mark.long)
        for name in SCORERS
    ],
)
def test_the_experts_rows_weigh_more(name: str):
    supplementary = scored(name).supplementary
    assert probability_greater(supplementary[:NUM_GOOD], supplementary[NUM_GOOD:]) > 0.9
    assert supplementary[:NUM_GOOD].mean() > 2 * supplementary[NUM_GOOD:].mean()


@pytest.mark.parametrize("name", ["contrast", "neighbours"])
def test_weights_are_density_ratios(name: str):
    result = scored(name)
    assert result.supplementary[:NUM_GOOD].mean() == pytest.approx(RATIO, rel=0.1)
    assert result.expert.mean() == pytest.approx(RATIO, rel=0.1)
    assert result.supplementary[NUM_GOOD:].mean() < 0.2
    size = result.summary["effective_sample_size"]["supplementary"]
    assert size == pytest.approx(NUM_GOOD, rel=0.15)


def test_a_scorer_without_actions_is_no_scorer(monkeypatch: pytest.MonkeyPatch):
    """The checks above notice: the state alone tells nothing here."""

    def blind(*parts: Any) -> scorers.Fitted:
        return scorers.Fitted(lambda model, obs, action: obs.T.astype(np.float64))

    monkeypatch.setattr(scorers, "together", blind)
    result = score(EXPERT, SUPPLEMENTARY, scorer="neighbours", folds=3, progress=False)
    supplementary = result.supplementary
    assert 0.4 < probability_greater(supplementary[:NUM_GOOD], supplementary[NUM_GOOD:]) < 0.6
    assert supplementary[:NUM_GOOD].mean() < 1.2


@pytest.mark.long
def test_noise_is_told_from_clean_data(monkeypatch: pytest.MonkeyPatch):
    """A small share of the benchmark. Where actions are left out of it, the answer is chance."""
    task = make_task("halfcheetah/noisy-expert", 0)
    supplementary = task.supplementary
    assert supplementary is not None
    assert supplementary.origin is not None
    code, names = supplementary.origin
    clean = code == names.index("clean")
    small = ContrastScorer(iterations=500, second_iterations=0)

    def separation() -> float:
        result = score(task.expert, supplementary, scorer=small, members=1, folds=2, progress=False)
        return probability_greater(result.supplementary[clean], result.supplementary[~clean])

    assert separation() > 0.985
    together = scorers.together
    monkeypatch.setattr(scorers, "together", lambda *parts: together(parts[0]))  # the states alone
    assert separation() < 0.7


def test_the_second_round_draws_from_the_union_by_weight(monkeypatch: pytest.MonkeyPatch):
    drawn: list[np.ndarray] = []
    resample = scorers.resample

    def spy(*arguments: Any) -> list[np.ndarray]:
        own = resample(*arguments)
        drawn.extend([] if drawn else own)  # of the first look at the episodes
        return own

    monkeypatch.setattr(scorers, "resample", spy)
    score(EXPERT, SUPPLEMENTARY, scorer=quick("contrast"), members=1, folds=2, progress=False)
    for picked in drawn:
        share = np.mean(picked >= NUM_EXPERT + NUM_GOOD)
        assert share < 0.1 < NUM_BAD / (NUM_EXPERT + NUM_GOOD + NUM_BAD)
        assert np.mean((picked >= NUM_EXPERT) & (picked < NUM_EXPERT + NUM_GOOD)) > 0.4


def test_discrete_actions_are_scored():
    expert, supplementary = random_dataset(0, 60, discrete=True), random_dataset(1, 90, discrete=True)
    for name in ("contrast", "dwbc", "neighbours"):
        short = {key: 20 for key in QUICK[name] if key.endswith("iterations")}
        scorer = SCORERS[name](**{**QUICK[name], **short})
        result = score(expert, supplementary, scorer=scorer, members=1, folds=2, progress=False)
        assert np.isfinite(result.weight).all()


def files(folder: Path, expert: Dataset = EXPERT, supplementary: Dataset = SUPPLEMENTARY) -> list[str]:
    folder.mkdir(exist_ok=True)
    write_dataset(expert, folder / "expert.hdf5")
    write_dataset(supplementary, folder / "pile.hdf5")
    return ["--expert", str(folder / "expert.hdf5"), "--supplementary", str(folder / "pile.hdf5")]


def run_score(folder: Path, out: str, *options: str) -> int:
    paths = [flag for name in ("expert", "supplementary") for flag in (f"--{name}", str(folder / FILE[name]))]
    return main(["score", *paths, "--out", str(folder / out), "--scorer", "neighbours", *options])


FILE = {"expert": "expert.hdf5", "supplementary": "pile.hdf5"}


def test_the_folder_holds_what_was_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files(tmp_path)
    assert run_score(tmp_path, "scores", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "scores" / "summary.json").read_text())
    assert answer == {"out": str(tmp_path / "scores"), **summary}
    assert summary["supplementary"]["rows"] == NUM_GOOD + NUM_BAD
    assert len(summary["held_out"]["folds"]) == 5
    table = pq.read_table(tmp_path / "scores" / "scores.parquet").to_pydict()
    assert list(table) == ["source", "episode", "step", "weight", "spread", "fold"]
    assert table["source"] == ["expert"] * NUM_EXPERT + ["supplementary"] * (NUM_GOOD + NUM_BAD)
    np.testing.assert_array_equal(table["step"], np.arange(len(table["step"])) % 20)
    np.testing.assert_array_equal(table["episode"][:NUM_EXPERT], np.arange(NUM_EXPERT) // 20)
    np.testing.assert_array_equal(table["episode"][NUM_EXPERT:], np.arange(NUM_GOOD + NUM_BAD) // 20)
    weight = np.array(table["weight"])
    assert (weight > 0).all()
    assert (np.array(table["spread"]) > 0).any()
    episodes = pq.read_table(tmp_path / "scores" / "episodes.parquet").to_pydict()
    assert len(episodes["rank"]) == (NUM_EXPERT + NUM_GOOD + NUM_BAD) // 20
    by_episode = weight.reshape(-1, 20)
    np.testing.assert_allclose(episodes["mean"], by_episode.mean(axis=1))
    np.testing.assert_allclose(episodes["log_weight"], np.log(by_episode).mean(axis=1))
    np.testing.assert_allclose(episodes["q25"], np.quantile(by_episode, 0.25, axis=1))
    np.testing.assert_allclose(episodes["kept"], (by_episode >= 0.5).mean(axis=1))
    supplementary = np.array(episodes["source"]) == "supplementary"
    assert sorted(np.array(episodes["rank"])[supplementary]) == list(range(1, 61))
    assert np.array(episodes["rank"])[supplementary][:30].max() < np.array(episodes["rank"])[supplementary][30:].min()


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path):
    files(tmp_path)
    for out, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert run_score(tmp_path, out, "--seed", seed, "--folds", "2") == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a")["scores.parquet"] != tree(tmp_path / "c")["scores.parquet"]


def test_networks_give_the_same_weights_again():
    again = score(EXPERT, SUPPLEMENTARY, scorer=quick("contrast"), members=2, folds=3, progress=False)
    np.testing.assert_array_equal(again.weight, scored("contrast").weight)
    np.testing.assert_array_equal(again.spread, scored("contrast").spread)


@pytest.mark.parametrize(("weights", "spread"), [((1.0, 3.0), 2**0.5), ((2.0,), np.nan)])
def test_the_spread_is_the_sample_deviation_over_members(
    weights: tuple[float, ...], spread: float, monkeypatch: pytest.MonkeyPatch
):
    def known(*arguments: Any) -> np.ndarray:
        return np.repeat(np.log([weights]).T, len(arguments[-1]), axis=1)

    monkeypatch.setattr("demosift.sift.weighing.weigh_block", known)
    found = score(EXPERT, SUPPLEMENTARY, scorer="neighbours", members=len(weights), folds=3, progress=False)
    np.testing.assert_allclose(found.spread, spread)


def test_the_best_state_is_a_copy():
    """The next iterations reuse the memory of the state before, where it is of one part."""
    models: Any = SimpleNamespace(first=0, cohort=SimpleNamespace(state={"kernel": jnp.ones(3)}))
    part: Any = None
    stopping = EarlyStopping(part, models, 1, None, lambda count: None)
    stopping.on_log(1, {"held_out_loss": np.array(1.0)})
    assert stopping.best is not None
    assert stopping.best.state["kernel"] is not models.cohort.state["kernel"]


def test_rewards_and_next_states_are_not_read():
    rng = np.random.default_rng(0)

    def other(data: Dataset) -> Dataset:
        transitions = data.transitions._replace(
            reward=rng.normal(size=len(data)).astype(np.float32), next_obs=data.transitions.next_obs + 1
        )
        return dataclasses.replace(data, transitions=transitions)

    before, after = (
        score(*pair, scorer="neighbours", folds=2, progress=False)
        for pair in ((EXPERT, SUPPLEMENTARY), map(other, (EXPERT, SUPPLEMENTARY)))
    )
    np.testing.assert_array_equal(before.weight, after.weight)
    assert before.summary == after.summary


def test_rows_that_models_were_not_trained_on_are_scored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("demosift.sift.training_sample.SUPPLEMENTARY_ROWS", 300)
    monkeypatch.setattr("demosift.sift.training_sample.EXPERT_ROWS", 100)
    monkeypatch.setattr("demosift.sift.engines.BLOCK", 70)
    result = score(EXPERT, SUPPLEMENTARY, scorer="neighbours", progress=False)
    assert result.summary["pool_rows"] == {"expert": 100, "supplementary": 300}
    supplementary = result.supplementary
    assert probability_greater(supplementary[:NUM_GOOD], supplementary[NUM_GOOD:]) > 0.95


def with_nan(data: Dataset) -> Dataset:
    obs = data.transitions.obs.copy()
    obs[7, 1] = np.nan
    return dataclasses.replace(data, transitions=data.transitions._replace(obs=obs))


def write_raw(data: Dataset, path: Path) -> None:
    """What `write_dataset` would refuse."""
    write_dataset(dataclasses.replace(data, transitions=data.transitions._replace(obs=data.transitions.next_obs)), path)
    import h5py

    with h5py.File(path, "r+") as file:
        file["observations"][...] = data.transitions.obs  # type: ignore[index]


BAD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "NaN": (lambda f: write_raw(with_nan(SUPPLEMENTARY), f / "pile.hdf5"), "row 7, column 1"),
    "other sizes": (lambda f: write_dataset(random_dataset(0, 60), f / "pile.hdf5"), "observations"),
    "a pickle": (lambda f: (f / "pile.hdf5").write_bytes(b"\x80\x04N."), "never unpickled"),
    "truncated": (lambda f: (f / "pile.hdf5").write_bytes((f / "pile.hdf5").read_bytes()[:3000]), "HDF5"),
    "empty": (lambda f: (f / "expert.hdf5").write_bytes(b""), "empty"),
    "absent": (lambda f: (f / "expert.hdf5").unlink(), "No such file"),
    "one row": (lambda f: write_dataset(rows(0, 1, True, episode=1), f / "expert.hdf5"), "has one row"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files(tmp_path)
    spoil, expected = BAD_FILES[case]
    spoil(tmp_path)
    assert run_score(tmp_path, "scores") == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert not (tmp_path / "scores").exists()
    assert not any(".partial" in name for name in tree(tmp_path))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--scorer", "oracle"], "unknown scorer 'oracle'"),
        (["--folds", "1"], "folds: '1' is not a whole number from 2 to 100"),
        (["--seed", "-1"], "seed: '-1'"),
        (["--threshold", "0"], "threshold: '0' is not a number above 0"),
    ],
)
def test_bad_requests_are_refused(
    options: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files(tmp_path)
    assert run_score(tmp_path, "scores", *options) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "scores").exists()


def test_a_taken_folder_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    monkeypatch.setattr("demosift.sift.union.open_pair", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(InputError, match="not empty"):
        score(EXPERT, SUPPLEMENTARY, out=tmp_path / "mine")


def warnings_of(expert: Dataset, supplementary: Dataset) -> str:
    return " ".join(score(expert, supplementary, scorer="neighbours", folds=2, progress=False).summary["warnings"])


def test_what_cannot_be_right_is_said():
    assert warnings_of(EXPERT, SUPPLEMENTARY) == ""
    assert "every row of the supplementary set is also in the expert set" in warnings_of(EXPERT, EXPERT)
    assert "20 rows of the supplementary set are copies" in warnings_of(
        EXPERT, join(SUPPLEMENTARY, EXPERT.take(slice(20)))
    )
    assert "2 of 62 episodes of the supplementary set repeat" in warnings_of(
        EXPERT, join(SUPPLEMENTARY, SUPPLEMENTARY.take(slice(40)))
    )
    assert "only 40 rows" in warnings_of(EXPERT.take(slice(40)), SUPPLEMENTARY)


def test_a_pile_like_the_expert_weighs_one():
    result = score(EXPERT, rows(5, 600, good=True), scorer="neighbours", progress=False)
    assert np.mean(np.abs(result.weight - 1) < 0.35) > 0.95
    assert result.weight.mean() == pytest.approx(1.0, abs=0.1)


def gaussian_features(share: float, num_rows: int = 40_000) -> tuple[np.ndarray, int]:
    """z ~ N(1, 1) for the expert's and N(-1, 1) otherwise: log d_E/d_B = 2z. The union is that share the expert's."""
    rng = np.random.default_rng(0)
    num_good = int(share * num_rows)
    z = np.concatenate([rng.normal(1, 1, num_good), rng.normal(-1, 1, num_rows - num_good)])
    return np.stack([z, rng.normal(size=num_rows)]), num_good // 4


@pytest.mark.parametrize("share", [0.5, 0.02])
def test_calibration_finds_the_closed_form(share: float):
    features, num_expert = gaussian_features(share)
    found = fit_coefficients(features, num_expert)
    assert found.slopes[0] == pytest.approx(2.0, rel=0.1)
    assert found.slopes[1] == pytest.approx(0.0, abs=0.1)
    assert found.share == pytest.approx(share, rel=0.25)
    z = np.array([[-2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    exact = 1 / (share + (1 - share) * np.exp(-2 * z[0]))
    np.testing.assert_allclose(np.exp(found.log_weight(z)), exact, rtol=0.3)


def test_what_says_nothing_has_no_coefficient():
    found = fit_coefficients(np.random.default_rng(0).normal(size=(1, 5_000)), 500)
    np.testing.assert_allclose(np.exp(found.log_weight(np.array([[-3.0, 0.0, 3.0]]))), 1.0, atol=0.15)
    backwards = fit_coefficients(-gaussian_features(0.5)[0][:1], 5_000)
    assert backwards.useless
    np.testing.assert_allclose(backwards.log_weight(np.array([[5.0]])), 0.0, atol=1e-12)


def test_measures_by_hand():
    assert log_loss(np.zeros(5), 2) == pytest.approx(2 * np.log(2))
    assert effective_sample_size(np.array([1.0, 1.0, 0.0])) == pytest.approx(2.0)
    value, starts = np.random.default_rng(0).normal(size=30), np.array([0, 1, 4, 20])
    quantiles = segment_quantiles(value, starts, (0.05, 0.5))
    expected = [np.quantile(part, (0.05, 0.5)) for part in np.split(value, starts[1:])]
    np.testing.assert_allclose(quantiles, np.transpose(expected))


def test_an_unknown_scorer_names_the_known():
    with pytest.raises(InputError, match="contrast, wbcu"):
        make_scorer("magic")
