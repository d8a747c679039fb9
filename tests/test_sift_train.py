"""Weighted cloning on frozen scores: `train wbcu-two-stage --scores`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fit_tiny, random_dataset, random_demonstrations, tiny

from demosift.algorithms import Batch
from demosift.cli.main import main
from demosift.data import load, write_dataset
from demosift.learning.cloning import clone
from demosift.learning.fit import weigh
from demosift.sift.filtering import with_scores
from demosift.sift.scoring import score
from demosift.types import Demonstrations, InputError, Transitions

EXPERT_ROWS = 30


def weighted(data: Demonstrations, weight: np.ndarray) -> Demonstrations:
    return dataclasses.replace(data, weight=weight)


def number_of_rows(data: Demonstrations) -> int:
    return len(data.union.reward)


def test_a_step_is_weighted_cloning_by_the_given_weights():
    data, algorithm = random_demonstrations(), tiny("wbcu-two-stage", threshold=0.4)
    rows = Transitions(*(jnp.asarray(array[:16]) for array in data.union))
    weight = jnp.linspace(0.0, 2.0, 16)
    batch = Batch(rows, rows, rows, rows, jnp.zeros((2, 16, 1)), weight)
    state = algorithm.init(batch, jax.random.key(0))
    after, metrics = algorithm.step(state, batch, jnp.int32(0), jax.random.key(1))  # iteration 0: no first stage
    expected, loss = clone(state.policy, rows, jnp.where(weight >= 0.4, weight, 0.0), 3e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after.policy.params, expected.params)
    assert metrics["policy_loss"] == pytest.approx(float(loss))
    jax.tree.map(np.testing.assert_array_equal, after.discriminator, state.discriminator)


def policy_of(data: Demonstrations) -> np.ndarray:
    return np.concatenate([layer.kernel.ravel() for layer in fit_tiny("wbcu-two-stage", data=data).policy.layers])


def test_rows_without_weight_are_not_learned_from():
    data = random_demonstrations()
    assert data.supplementary is not None
    rows = data.supplementary.transitions
    other = dataclasses.replace(data.supplementary, transitions=rows._replace(action=-rows.action))
    changed = dataclasses.replace(data, supplementary=other)
    only_expert = (np.arange(number_of_rows(data)) < EXPERT_ROWS).astype(float)
    np.testing.assert_array_equal(policy_of(weighted(data, only_expert)), policy_of(weighted(changed, only_expert)))
    everything = np.ones(number_of_rows(data))
    assert not np.array_equal(policy_of(weighted(data, everything)), policy_of(weighted(changed, everything)))


def test_the_run_says_that_its_weights_were_given():
    data = random_demonstrations()
    run = fit_tiny("wbcu-two-stage", data=weighted(data, np.ones(number_of_rows(data))))
    assert "weight_sha256" in run.config["data"][0]
    with pytest.raises(InputError, match="trained on given weights"):
        weigh(run, data)


@pytest.mark.parametrize(
    ("name", "weight", "expected"),
    [
        ("bc", np.ones(90), "bc: finds its own weights"),
        ("wbcu", np.ones(90), "wbcu: finds its own weights"),
        ("wbcu-two-stage", np.ones(89), "90 finite numbers"),
        ("wbcu-two-stage", -np.ones(90), "none negative"),
        ("wbcu-two-stage", np.zeros(90), "not all zero"),
        ("wbcu-two-stage", np.full(90, np.nan), "finite"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(name: str, weight: np.ndarray, expected: str):
    with pytest.raises(InputError, match=expected):
        fit_tiny(name, data=weighted(random_demonstrations(), weight))


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    write_dataset(random_dataset(0, 60), tmp_path / "expert.hdf5")
    write_dataset(random_dataset(1, 90), tmp_path / "pile.hdf5")
    paths = tmp_path / "expert.hdf5", tmp_path / "pile.hdf5"
    score(*paths, out=tmp_path / "scores", scorer="neighbours", progress=False)
    return tmp_path


def train(folder: Path, *options: str, algorithm: str = "wbcu-two-stage", supplementary: str = "pile.hdf5") -> int:
    data = ["--expert", str(folder / "expert.hdf5"), "--supplementary", str(folder / supplementary)]
    size = ["--hidden", "8", "8", "--batch-size", "16", "--iterations", "10", "--evaluate-every", "0"]
    return main(["train", algorithm, *data, *size, "--log-every", "5", "--out", str(folder / "run"), *options])


def test_train_reads_the_scores(scored: Path, capsys: pytest.CaptureFixture[str]):
    assert train(scored, "--scores", str(scored / "scores"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == 10
    config: Any = json.loads((scored / "run" / "config.json").read_text())
    assert "weight_sha256" in config["data"][0]
    paths = scored / "expert.hdf5", scored / "pile.hdf5"
    weight = with_scores(load(*paths), *paths, scored / "scores").weight
    assert weight is not None
    assert weight.shape == (150,)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"supplementary": "other.hdf5"}, "other.hdf5: not what"),
        ({"algorithm": "wbcu"}, "unrecognized arguments: --scores"),
    ],
)
def test_scores_of_other_data_are_refused(
    options: dict[str, str], expected: str, scored: Path, capsys: pytest.CaptureFixture[str]
):
    write_dataset(random_dataset(2, 90), scored / "other.hdf5")
    assert train(scored, "--scores", str(scored / "scores"), **options) == 2
    assert expected in capsys.readouterr().err
    assert not (scored / "run").exists()


def test_scores_need_the_files_that_were_scored(scored: Path, capsys: pytest.CaptureFixture[str]):
    task = ["train", "wbcu-two-stage", "--task", "hopper/noisy-expert", "--out", str(scored / "run")]
    assert main([*task, "--scores", str(scored / "scores")]) == 2
    assert "--scores: needs --expert and --supplementary" in capsys.readouterr().err
