"""Data that a program holds: the same dataset as from a file with the same arrays, and the same messages."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pyarrow as pa
import pytest
from conftest import CHUNK, SEED, STEPS, random_demonstrations, tiny
from test_data import HOPPER, assert_same, make_dataset

import demosift as ds
from demosift.data import digest_source, write_hdf5
from demosift.data.memory import to_columns
from demosift.data.rows import DatasetRows
from demosift.learning.fit import check_scored, describe_data, with_weights
from demosift.sift.scoring import describe_source
from demosift.sift.training_sample import survey
from demosift.types import Bounds

ROWS = 10


def arrays(**changes: Any) -> dict[str, Any]:
    """Ten rows, two episodes of four and six; None leaves something out."""
    rng = np.random.default_rng(0)
    made = {
        "observations": rng.normal(size=(ROWS, 2)),
        "actions": rng.uniform(-1, 1, (ROWS, 3)),
        "rewards": rng.normal(size=ROWS),
        "next_observations": rng.normal(size=(ROWS, 2)),
        "terminals": np.arange(ROWS) == 3,
        "timeouts": np.arange(ROWS) == 9,
    }
    return {key: value for key, value in (made | changes).items() if value is not None}


INDICES = np.arange(ROWS) % 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"next_observations": None},
        {"timeouts": None},
        {"rewards": None, "next_observations": None, "timeouts": None},
        {"actions": INDICES},
        {"actions": INDICES[:, None], "rewards": np.ones((ROWS, 1), int)},
    ],
    ids=["all", "no successors", "no timeouts", "least", "discrete", "columns"],
)
def test_equals_what_is_read_from_a_file(tmp_path: Path, changes: dict[str, Any]):
    given = arrays(**changes)
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        for key, array in given.items():
            file[key] = array
    read, made = ds.read_dataset(tmp_path / "file.hdf5"), ds.Dataset.from_arrays(**given)
    assert_same(read, made)
    assert (read.attributes, read.environment, read.bounds) == (made.attributes, made.environment, made.bounds)
    assert made.source == "memory"


@pytest.mark.parametrize("discrete", [False, True])
def test_to_arrays_and_back(discrete: bool):
    dataset = make_dataset(discrete=discrete)
    back = ds.Dataset.from_arrays(**dataset.to_arrays())
    for x, y in zip(dataset.transitions, back.transitions, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(dataset.timeout, back.timeout)


def test_arrays_are_copied():
    given = arrays(observations=np.zeros((ROWS, 2), np.float32))
    dataset = ds.Dataset.from_arrays(**given)
    given["observations"][:] = 1
    dataset.to_arrays()["observations"][:] = 2
    assert (dataset.transitions.obs == 0).all()


def test_ends_say_where_episodes_end():
    given = arrays(timeouts=None, terminals=None)
    dataset = ds.Dataset.from_arrays(**given, ends=[4, 10])
    assert dataset.episode_ends.tolist() == [4, 10]
    assert not dataset.transitions.terminal.any()
    assert_same(dataset, ds.Dataset.from_arrays(**given, timeouts=np.isin(np.arange(ROWS), [3, 9])))
    again = ds.Dataset.from_arrays(**given, ends=dataset.episode_ends, terminals=np.arange(ROWS) == 3)
    assert again.transitions.terminal.sum() == again.timeout.sum() == 1


def test_lists_of_numbers_will_do():
    given = {key: array.tolist() for key, array in arrays().items()}
    assert_same(ds.Dataset.from_arrays(**given), ds.Dataset.from_arrays(**arrays()))


def test_actions_in_the_environments_units():
    torque = np.linspace(-2, 2, ROWS)[:, None]
    env = gym.make("Pendulum-v1")
    given = arrays(actions=torque)
    by_env = ds.Dataset.from_arrays(**given, environment=env)
    by_spec = ds.Dataset.from_arrays(**given, environment=ds.resolve("Pendulum-v1"))
    by_bounds = ds.Dataset.from_arrays(**given, action_low=[-2], action_high=[2])
    env.close()
    for dataset in (by_env, by_spec, by_bounds):
        np.testing.assert_allclose(dataset.transitions.action, torque / 2, atol=1e-6)
        np.testing.assert_allclose(dataset.to_arrays()["actions"], torque, atol=1e-6)
        assert dataset.bounds == Bounds((-2.0,), (2.0,))
    assert by_env.environment == by_spec.environment == ds.resolve("Pendulum-v1")
    clipped = ds.Dataset.from_arrays(**given, action_mode="clip")
    assert clipped.transitions.action.tolist() == np.clip(torque, -1, 1).astype(np.float32).tolist()
    assert ds.Dataset.from_arrays(**given, action_mode="rescale").bounds == by_bounds.bounds


def test_discrete_actions_know_how_many_there_are():
    given = arrays(actions=INDICES)
    assert ds.Dataset.from_arrays(**given).action_dim == 3
    assert ds.Dataset.from_arrays(**given, num_actions=5).action_dim == 5
    cart = ds.Dataset.from_arrays(**arrays(actions=INDICES % 2), environment=gym.make("CartPole-v1"))
    assert cart.discrete
    assert cart.environment is not None
    assert cart.environment.num_actions == 2


# Each kind of bad input, and what its one line says.

NAN = np.where(np.arange(ROWS) == 4, np.nan, 0.0)
RAGGED = [[0.0, 1.0]] * 9 + [[0.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros(11)}, "memory: rewards: has 11 rows, observations has 10"),
        ({"rewards": NAN}, "memory: rewards: row 4: nan is not a finite number"),
        ({"observations": np.stack([np.zeros(ROWS), NAN], 1)}, "memory: observations: row 4, column 1: nan is not"),
        ({"observations": RAGGED}, "memory: observations: rows differ in length"),
        ({"observations": np.full((ROWS, 2), None)}, "memory: observations: holds object, not numbers"),
        ({"observations": np.zeros(ROWS)}, "memory: observations: has shape (10,), needs two axes"),
        ({"observations": np.zeros((0, 2))}, "memory: actions: has 10 rows, observations has 0"),
        ({"next_observations": np.zeros((ROWS, 3))}, "memory: next_observations: has 3 columns, observations has 2"),
        ({"actions": np.full((ROWS, 3), 1.5)}, "memory: actions: row 0, column 0: 1.5 is outside [-1, 1]"),
        ({"actions": np.zeros((ROWS, 3), int)}, "memory: actions: 3 columns of integers"),
        ({"actions": INDICES, "num_actions": 2}, "memory: actions: row 2: 2 is not one of the 2 discrete actions"),
        ({"actions": INDICES, "num_actions": 0}, "memory: num_actions: 0 is not a positive integer"),
        ({"actions": ["left"] * ROWS}, "memory: actions: holds <U4, not numbers"),
        ({"terminals": np.full(ROWS, 2)}, "memory: terminals: row 0: 2 is neither 0 nor 1"),
        ({"action_low": [0.0]}, "memory: action_low, action_high: not two equally long lists"),
        ({"action_low": [0.0], "action_high": [1.0]}, "memory: actions: has 3 columns, its bounds have 1"),
        ({"action_mode": "scale"}, "action_mode: 'scale' is unknown; choose check, clip or rescale"),
        ({"environment": 7}, "memory: environment: is a int, not a registered Gymnasium environment"),
        ({"ends": [4, 10]}, "memory: ends: given, though timeouts says"),
        ({"timeouts": None, "ends": [4, 9]}, "memory: ends: the last is 9, actions has 10 rows"),
        ({"timeouts": None, "ends": [4, 4, 10]}, "memory: ends: entry 1: 4 is not above the one before it"),
        ({"timeouts": None, "ends": [0, 10]}, "memory: ends: entry 0: 0 is not above"),
        ({"timeouts": None, "ends": NAN}, "memory: ends: is float64 of shape (10,), needs integers"),
        ({"timeouts": None, "terminals": None, "next_observations": None}, "memory: terminals: absent; say where"),
        ({"source": "robot", "rewards": np.zeros(11)}, "robot: rewards: has 11 rows"),
    ],
)
def test_refused(changes: dict[str, Any], message: str):
    given = arrays(**changes)
    with pytest.raises(ds.InputError) as caught:
        ds.Dataset.from_arrays(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def episodes(dataset: ds.Dataset) -> list[dict[str, Any]]:
    return [
        {"observations": part.obs, "actions": part.action, "rewards": part.reward, "terminals": part.terminal}
        for part in dataset.episodes()
    ]


def test_from_episodes():
    dataset = make_dataset()
    given = [
        {**each, "observations": np.concatenate([part.obs, part.next_obs[-1:]]), "infos": {}}
        for each, part in zip(episodes(dataset), dataset.episodes(), strict=True)
    ]
    made = ds.Dataset.from_episodes(given, environment=HOPPER)
    assert made.environment == HOPPER
    for x, y in zip(dataset.transitions, made.transitions, strict=True):
        np.testing.assert_array_equal(x, y)
    for each in given:
        each["terminations"] = each.pop("terminals")[-1]  # one flag, by Gymnasium's name
    assert_same(made, ds.Dataset.from_episodes(iter(given), environment=HOPPER))
    short = ds.Dataset.from_episodes(episodes(dataset))  # without the last states: as in files, these rows are dropped
    assert len(short) == len(dataset) - dataset.timeout.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.zeros((1, 3))}, "memory: episode 1: actions: has 1 rows"),
        ({"actions": None}, "memory: episode 1: actions: the dictionary has no such key"),
        ({"observations": np.zeros((6, 9))}, "memory: episode 1: observations: rows of float32[9], but float32[2]"),
        ({"observations": RAGGED}, "memory: episode 1: observations: rows differ in length"),
        ({"rewards": np.full(6, np.nan)}, "memory: episode 1: rewards: row 0: nan is not a finite number"),
        ({"reward": np.zeros(6)}, "memory: episode 1: reward: unknown; known are observations, actions"),
        ({"terminations": np.zeros(6)}, "memory: episode 1: terminals: given twice"),
    ],
)
def test_episodes_refused(change: dict[str, Any], message: str):
    first, second = episodes(ds.Dataset.from_arrays(**arrays()))
    with pytest.raises(ds.InputError) as caught:
        ds.Dataset.from_episodes([first, {**second, **change}])
    assert message in str(caught.value)


def test_no_episodes():
    with pytest.raises(ds.InputError, match="memory: episodes: the set is empty"):
        ds.Dataset.from_episodes([])
    with pytest.raises(ds.InputError, match="memory: episode 0: is a list, not a dictionary"):
        ds.Dataset.from_episodes([[1, 2]])  # type: ignore[list-item]


@pytest.mark.parametrize("discrete", [False, True])
def test_from_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discrete: bool):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    ds.write_dataset(make_dataset(discrete=discrete), "minari:test/made-v0")
    loaded, read = minari.load_dataset("test/made-v0"), ds.read_dataset("minari:test/made-v0")
    made = ds.Dataset.from_minari(loaded)
    assert_same(read, made)
    assert (made.source, made.attributes, made.environment) == (read.source, read.attributes, read.environment)
    some = ds.Dataset.from_minari(loaded.filter_episodes(lambda episode: bool(episode.terminations[-1])))
    assert 0 < some.num_episodes == some.transitions.terminal.sum() < made.num_episodes
    with pytest.raises(ds.InputError, match="minari: is a str, not a"):
        ds.Dataset.from_minari("test/made-v0")


@pytest.mark.parametrize("discrete", [False, True])
def test_tables_and_back(discrete: bool):
    dataset = make_dataset(discrete=discrete)
    columns = to_columns(dataset)
    listed = {
        "state": list(dataset.transitions.obs),
        "actions": columns["action"] if discrete else list(dataset.transitions.action),
        "reward": dataset.transitions.reward,
        "next_obs": list(dataset.transitions.next_obs),
        "terminated": dataset.transitions.terminal,
        "trajectory": [f"run {number}" for number in columns["episode"]],
    }
    plain = ds.Dataset.from_arrays(**dataset.to_arrays())
    assert_same(plain, ds.Dataset.from_table(columns))
    assert_same(plain, ds.Dataset.from_table(pa.table(columns)))
    assert_same(plain, ds.Dataset.from_table(pa.table(listed), observations="state", episode="trajectory"))
    named = ds.Dataset.from_table(
        columns, observations=["obs_3", "obs_0"], next_observations=["next_obs_3", "next_obs_0"]
    )
    np.testing.assert_array_equal(named.transitions.obs, dataset.transitions.obs[:, [3, 0]])


def test_pandas_and_back():
    dataset = ds.Dataset.from_arrays(**make_dataset().to_arrays())
    assert_same(dataset, ds.Dataset.from_table(dataset.to_pandas()))


def test_without_pandas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ds.InputError, match="to_pandas: pandas is not installed"):
        make_dataset().to_pandas()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"obs_1": None}, {}, "observations: the table has no column 'obs_3', but later ones"),
        ({"action": None}, {}, "actions: the table has no column 'actions' or 'action'"),
        ({}, {"observations": "state"}, "observations: the table has no column 'state'"),
        ({}, {"observations": ["obs_0", "obs_9"]}, "observations: the table has no column 'obs_9'"),
        ({}, {"episode": "run"}, "episode: the table has no column 'run'"),
        ({"episode": np.arange(60) % 2}, {}, "episode: row 2: 0 comes back; sort the rows by episode"),
        ({"timeout": np.full(60, 2)}, {}, "timeouts: row 0: 2 is neither 0 nor 1"),
        ({"observations": [[0.0, 1.0]] * 59 + [[0.0]]}, {}, "observations: column 'observations': cells differ"),
    ],
)
def test_tables_refused(changes: dict[str, Any], options: dict[str, Any], message: str):
    columns: dict[str, Any] = to_columns(make_dataset(discrete=True))
    if "obs_1" in changes:
        columns["obs_4"] = columns.pop("obs_3")
    columns |= {key: value for key, value in changes.items() if value is not None}
    if changes.get("action", 0) is None:
        del columns["action"]
    with pytest.raises(ds.InputError) as caught:
        ds.Dataset.from_table(pa.table(columns), **options)
    assert f"memory: {message}" in str(caught.value)


# Loading and training.


def test_load_takes_datasets_and_files(tmp_path: Path):
    expert, pile = make_dataset(0), make_dataset(1)
    write_hdf5(expert, tmp_path / "expert.hdf5")
    write_hdf5(pile, tmp_path / "pile.hdf5")
    files = ds.load(expert=tmp_path / "expert.hdf5", supplementary=tmp_path / "pile.hdf5")
    for data in (
        ds.load(expert, pile),
        ds.load(expert, tmp_path / "pile.hdf5"),
        ds.load(tmp_path / "expert.hdf5", pile),
    ):
        assert data.supplementary is not None
        assert files.supplementary is not None
        assert_same(files.expert, data.expert)
        assert_same(files.supplementary, data.supplementary)
    assert ds.load(expert).expert is expert
    cut = ds.load(expert, max_episode_steps=2).expert
    assert np.diff(cut.episode_ends, prepend=0).max() == 2


def test_both_sets_get_the_same_units():
    given = arrays(actions=np.linspace(-1, 1, ROWS)[:, None])
    bounded = ds.Dataset.from_arrays(**given, action_low=[-2], action_high=[2])
    data = ds.load(ds.Dataset.from_arrays(**given), bounded)
    assert data.supplementary is bounded
    np.testing.assert_allclose(data.expert.transitions.action, bounded.transitions.action, atol=1e-6)
    other = ds.Dataset.from_arrays(**given, action_low=[-3], action_high=[3])
    with pytest.raises(ds.InputError, match="bounds differ"):
        ds.load(other, bounded)
    few, more = (ds.Dataset.from_arrays(**arrays(actions=INDICES % n)) for n in (2, 3))
    assert ds.load(few, more).expert.action_dim == 3
    with pytest.raises(ds.InputError, match="actions: continuous, but discrete"):
        ds.load(few, bounded)


OPTIONS: dict[str, Any] = {"seeds": [SEED], "iterations": STEPS, "log_every": CHUNK, "progress": False}


def test_weights_go_straight_into_training():
    data = random_demonstrations()
    weight = np.random.default_rng(0).uniform(0.1, 2, 90)
    # What `score` gives, without its minute of work.
    scored = SimpleNamespace(weight=weight, summary=summary(data))
    run = ds.fit(tiny("sift"), data, weights=scored, ensemble=1, **OPTIONS)
    assert run.config["data"][0]["weight_sha256"] == hashlib.sha256(weight.tobytes()).hexdigest()
    assert run.config["data"] == [describe_data(replace(data, weight=weight))]
    (by_array,) = with_weights([data], [weight.tolist()])
    np.testing.assert_array_equal(by_array.weight, weight)


def test_scores_go_straight_into_training():
    data = random_demonstrations()
    assert data.supplementary is not None
    scored = ds.score(data.expert, data.supplementary, scorer="neighbours", members=1, folds=2, progress=False)
    run = ds.fit(tiny("sift"), data, weights=scored, ensemble=1, **OPTIONS)
    assert run.config["data"][0]["weight_sha256"] == hashlib.sha256(scored.weight.tobytes()).hexdigest()


def summary(data: ds.Demonstrations) -> dict[str, Any]:
    """As `score` describes datasets."""
    parts = {"expert": data.expert, "supplementary": data.supplementary}
    return {
        name: describe_source(part, DatasetRows(part), survey(DatasetRows(part), lambda rows: None))
        for name, part in parts.items()
        if part is not None
    }


def test_weights_of_files_are_known_by_the_file(tmp_path: Path):
    write_hdf5(make_dataset(0), tmp_path / "expert.hdf5")
    data = ds.load(tmp_path / "expert.hdf5")
    check_scored(data, {"expert": {"rows": 60, "digest": digest_source(tmp_path / "expert.hdf5")}})
    with pytest.raises(ds.InputError, match="weights: of other rows than those of the expert set"):
        check_scored(data, {"expert": {"rows": 60, "digest": "0"}})


def test_weights_that_do_not_belong_are_refused():
    data, other = random_demonstrations(), random_demonstrations(seed=5)

    def refused(message: str, weights: Any, name: str = "sift", given: Any = data) -> None:
        with pytest.raises(ds.InputError, match=message):
            ds.fit(tiny(name), given, weights=weights, **OPTIONS)

    weight = np.ones(90)
    refused(
        "weights: of other rows than those of the expert set", SimpleNamespace(weight=weight, summary=summary(other))
    )
    longer = random_demonstrations(num_rows=72)
    refused(r"weights: of shape \(102,\); the union has 90 rows", SimpleNamespace(weight=np.ones(102), summary={}))
    refused(
        "60 rows of the supplementary set were scored",
        SimpleNamespace(weight=np.ones(102), summary=summary(data)),
        given=longer,
    )
    refused("weights: a str is neither scores nor an array", "scores")
    refused("finite numbers, none negative", -weight)
    refused("bc: finds its own weights; those given with the data are for", weight, "bc")
    refused("weights: 1 of them for 2 datasets", [weight], given=[data, other])
    refused("weights: the data come with weights already", weight, given=replace(data, weight=weight))


def test_types_alone_load_no_reader():
    code = "import sys, demosift as ds; ds.Dataset; sys.exit('h5py' in sys.modules or 'demosift.data' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not isinstance(make_dataset().from_arrays, type(make_dataset().to_arrays))  # a constructor binds no dataset
