"""The native file, episode cutting, action units, the normaliser, atomic writes, and every refusal."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import tree

from demosift.data import load, read_dataset, write_dataset, write_hdf5
from demosift.data.actions import TOLERANCE
from demosift.data.normaliser import Normaliser, fit_normaliser
from demosift.files import atomic_folder, atomic_write, write_json
from demosift.types import Bounds, Dataset, Demonstrations, EnvironmentSpec, InputError, Origin, Transitions

HOPPER = EnvironmentSpec("Hopper-v5", {"frame_skip": 4}, (-1.0,) * 3, (1.0,) * 3)


def make_dataset(
    seed: int = 0, rows: int = 60, obs_dim: int = 4, action_dim: int = 3, discrete: bool = False
) -> Dataset:
    """Episodes of random length; successors chain inside an episode and are fresh at its end."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(rows, obs_dim)).astype(np.float32)
    end = rng.random(rows) < 0.15
    end[-1] = True
    terminal = end & (rng.random(rows) < 0.5)
    next_obs = np.concatenate([obs[1:], obs[:1]])
    next_obs[end] = rng.normal(size=(int(end.sum()), obs_dim)).astype(np.float32)
    if discrete:
        action = np.eye(action_dim, dtype=np.int8)[rng.integers(action_dim, size=rows)]
    else:
        action = rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32)
        action[0], action[1] = 1, -0.0
    transitions = Transitions(obs, action, rng.normal(size=rows).astype(np.float32), next_obs, terminal)
    origin = Origin(rng.integers(2, size=rows).astype(np.int8), ("clean", "noisy"))
    return Dataset(transitions, end & ~terminal, None, origin, {"recipe": "made up", "seed": seed})


def stored(path: Path, key: str) -> np.ndarray:
    with h5py.File(path) as file:
        return np.asarray(file[key])


def assert_same(a: Dataset, b: Dataset, action_tolerance: float = 0) -> None:
    for name, x, y in zip(Transitions._fields, a.transitions, b.transitions, strict=True):
        assert x.dtype == y.dtype, name
        if name == "action" and action_tolerance:
            np.testing.assert_allclose(x, y, rtol=0, atol=action_tolerance)
        else:
            assert x.tobytes() == y.tobytes(), name
    np.testing.assert_array_equal(a.timeout, b.timeout)
    assert (a.origin is None) == (b.origin is None)
    if a.origin is not None and b.origin is not None:
        np.testing.assert_array_equal(a.origin.code, b.origin.code)
        assert a.origin.names == b.origin.names


def raw_file(path: Path, **changes: object) -> Path:
    """A small D4RL file of ten rows, two episodes of four and six; None removes a key."""
    rng = np.random.default_rng(7)
    obs = rng.normal(size=(11, 2)).astype(np.float32)
    content: dict[str, object] = {
        "observations": obs[:10],
        "actions": rng.uniform(-1, 1, (10, 3)).astype(np.float32),
        "rewards": np.arange(10, dtype=np.float32),
        "next_observations": obs[1:],
        "terminals": np.arange(10) == 3,
        "timeouts": np.arange(10) == 9,
    }
    with h5py.File(path, "w") as file:
        for key, array in (content | changes).items():
            if array is not None:
                file[key] = array
    return path


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_round_trip_keeps_every_bit(tmp_path: Path, seed: int, discrete: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, obs_dim, action_dim = rng.integers(1, 80), rng.integers(1, 9), rng.integers(2, 7)
    dataset = make_dataset(seed, max(int(rows), 2), int(obs_dim), int(action_dim), discrete)
    write_hdf5(dataset, tmp_path / "a.hdf5")
    again = read_dataset(tmp_path / "a.hdf5")
    assert_same(dataset, again)
    assert dict(again.attributes) == dict(dataset.attributes)
    assert again.source == str(tmp_path / "a.hdf5")
    assert again.discrete == discrete


def test_environment_travels(tmp_path: Path) -> None:
    for name, dataset, environment in (
        ("box", make_dataset(), HOPPER),
        ("discrete", make_dataset(discrete=True), EnvironmentSpec("CartPole-v1", num_actions=3)),
    ):
        write_hdf5(replace(dataset, environment=environment), tmp_path / f"{name}.hdf5")
        assert read_dataset(tmp_path / f"{name}.hdf5").environment == environment


def test_rewriting_gives_identical_bytes(tmp_path: Path) -> None:
    dataset = replace(make_dataset(rows=500), environment=HOPPER)
    first, second, third = (tmp_path / name for name in ("first.hdf5", "second-with-a-longer-name.hdf5", "third.h5"))
    write_hdf5(dataset, first)
    time.sleep(1.1)  # HDF5's own time stamps have seconds
    write_hdf5(dataset, second)
    write_hdf5(read_dataset(first), third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_file_follows_the_d4rl_layout(tmp_path: Path) -> None:
    write_hdf5(make_dataset(), tmp_path / "a.hdf5")
    types = {
        "observations": "float32",
        "actions": "float32",
        "rewards": "float32",
        "next_observations": "float32",
        "terminals": "bool",
        "timeouts": "bool",
        "infos/origin": "int8",
    }
    assert {key: str(stored(tmp_path / "a.hdf5", key).dtype) for key in types} == types
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file) == {key.split("/")[0] for key in types}
        assert np.array_equal(np.asarray(file["infos/origin"].attrs["names"]), ["clean", "noisy"])
        assert json.loads(str(file.attrs["attributes"])) == {"recipe": "made up", "seed": 0}


def test_types_and_shapes_of_foreign_files(tmp_path: Path) -> None:
    plain = read_dataset(raw_file(tmp_path / "plain.hdf5"))
    keys = ("observations", "actions", "rewards", "next_observations")
    wide = {key: stored(tmp_path / "plain.hdf5", key).astype(np.float64) for key in keys}
    wide["terminals"] = (np.arange(10) == 3).astype(np.uint8)[:, None]
    wide["timeouts"] = (np.arange(10) == 9).astype(np.float64)
    wide["rewards"] = wide["rewards"][:, None]
    assert_same(plain, read_dataset(raw_file(tmp_path / "wide.h5", **wide)))


def test_absent_rewards_are_zeros_and_said(tmp_path: Path) -> None:
    dataset = read_dataset(raw_file(tmp_path / "a.hdf5", rewards=None))
    assert not dataset.transitions.reward.any()
    assert dataset.attributes["absent_keys"] == ["rewards"]
    write_hdf5(dataset, tmp_path / "b.hdf5")
    assert read_dataset(tmp_path / "b.hdf5").attributes["absent_keys"] == ["rewards"]


def test_terminal_wins_over_timeout(tmp_path: Path) -> None:
    dataset = read_dataset(raw_file(tmp_path / "a.hdf5", timeouts=np.isin(np.arange(10), [3, 6])))
    np.testing.assert_array_equal(dataset.episode_ends, [4, 7, 10])
    np.testing.assert_array_equal(np.flatnonzero(dataset.timeout), [6, 9])
    assert [len(episode.obs) for episode in dataset.episodes()] == [4, 3, 3]


def test_absent_timeouts_are_found_where_successors_break(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(10, 2))
    following = np.roll(obs, -1, axis=0)
    following[6] += 1e-3
    path = raw_file(tmp_path / "a.hdf5", timeouts=None, observations=obs, next_observations=following)
    dataset = read_dataset(path)
    np.testing.assert_array_equal(dataset.episode_ends, [4, 7, 10])
    np.testing.assert_array_equal(dataset.transitions.next_obs, following.astype(np.float32))
    assert dataset.attributes["absent_keys"] == ["timeouts"]


def test_shuffled_rows_are_episodes_of_their_own(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(10)
    path = raw_file(tmp_path / "a.hdf5")
    keys = ("observations", "actions", "rewards", "next_observations", "terminals")
    shuffled = {key: stored(path, key)[order] for key in keys}
    dataset = read_dataset(raw_file(tmp_path / "b.hdf5", timeouts=None, **shuffled))
    followed = np.flatnonzero((np.diff(order) == 1) & (order[:-1] != 3))
    assert dataset.num_episodes == 10 - len(followed)


def test_without_successors_the_next_row_serves_but_never_across_episodes(tmp_path: Path) -> None:
    """Row 3 is terminal and stays; rows 6 and 9 end in a timeout, so nobody knows what followed, and they go."""
    path = raw_file(tmp_path / "a.hdf5", next_observations=None, timeouts=np.isin(np.arange(10), [6, 9]))
    dataset = read_dataset(path)
    obs = stored(path, "observations")
    kept = [0, 1, 2, 3, 4, 5, 7, 8]
    np.testing.assert_array_equal(dataset.transitions.obs, obs[kept])
    np.testing.assert_array_equal(dataset.transitions.next_obs, obs[[1, 2, 3, 3, 5, 6, 8, 9]])
    np.testing.assert_array_equal(dataset.transitions.reward, kept)
    np.testing.assert_array_equal(dataset.episode_ends, [4, 6, 8])
    np.testing.assert_array_equal(np.flatnonzero(dataset.timeout), [5, 7])
    assert dataset.attributes["dropped_rows"] == 2


def test_without_successors_an_episode_of_one_row_vanishes(tmp_path: Path) -> None:
    timeouts = np.isin(np.arange(10), [4, 9])  # row 3 is terminal: row 4 is alone
    dataset = read_dataset(raw_file(tmp_path / "a.hdf5", next_observations=None, timeouts=timeouts))
    np.testing.assert_array_equal(dataset.episode_ends, [4, 8])
    np.testing.assert_array_equal(np.flatnonzero(dataset.transitions.terminal), [3])
    np.testing.assert_array_equal(np.flatnonzero(dataset.timeout), [7])


@pytest.mark.parametrize("seed", range(5))
def test_dropping_successors_agrees_with_the_full_file(tmp_path: Path, seed: int) -> None:
    """Reading the same data with and without next_observations differs only in the rows that cannot be known."""
    full = make_dataset(seed, rows=200)
    write_hdf5(full, tmp_path / "full.hdf5")
    with h5py.File(tmp_path / "full.hdf5", "a") as file:
        del file["next_observations"]
    short = read_dataset(tmp_path / "full.hdf5")
    known = full.take(~full.timeout)
    inner = ~known.transitions.terminal
    np.testing.assert_array_equal(short.transitions.obs, known.transitions.obs)
    np.testing.assert_array_equal(short.transitions.next_obs[inner], known.transitions.next_obs[inner])
    assert short.origin is not None
    assert known.origin is not None
    np.testing.assert_array_equal(short.origin.code, known.origin.code)


def test_max_episode_steps_cuts_as_the_reference_does(tmp_path: Path) -> None:
    """A new trajectory starts after a terminal or after that many steps; a trailing piece counts as one."""
    chained = raw_file(tmp_path / "a.hdf5", timeouts=None)
    np.testing.assert_array_equal(read_dataset(chained).episode_ends, [4, 10])
    np.testing.assert_array_equal(read_dataset(chained, max_episode_steps=3).episode_ends, [3, 4, 7, 10])
    np.testing.assert_array_equal(read_dataset(chained, max_episode_steps=4).episode_ends, [4, 8, 10])
    bare = read_dataset(raw_file(tmp_path / "b.hdf5", timeouts=None, next_observations=None), max_episode_steps=4)
    np.testing.assert_array_equal(bare.transitions.reward, [0, 1, 2, 3, 4, 5, 6, 8])
    np.testing.assert_array_equal(bare.episode_ends, [4, 7, 8])
    with pytest.raises(InputError, match="max_episode_steps"):
        read_dataset(chained, max_episode_steps=0)


def test_actions_are_stored_in_the_environments_units(tmp_path: Path) -> None:
    environment = EnvironmentSpec("Made-v0", {}, (-2.0, 0.0, -0.4), (2.0, 10.0, 0.4))
    dataset = replace(make_dataset(rows=200), environment=environment)
    write_hdf5(dataset, tmp_path / "a.hdf5")
    expected = dataset.transitions.action * [2, 5, 0.4] + [0, 5, 0]
    np.testing.assert_allclose(stored(tmp_path / "a.hdf5", "actions"), expected, atol=1e-6)
    again = read_dataset(tmp_path / "a.hdf5")
    assert_same(dataset, again, action_tolerance=1e-6)
    assert again.environment == environment


def test_bounds_without_an_environment_survive(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.hdf5", actions=np.full((10, 3), 4, np.float32))
    with h5py.File(path, "a") as file:
        file.attrs["action_low"], file.attrs["action_high"] = [0.0] * 3, [8.0] * 3
    dataset = read_dataset(path)
    assert not dataset.transitions.action.any()
    write_hdf5(dataset, tmp_path / "b.hdf5")
    assert (stored(tmp_path / "b.hdf5", "actions") == 4).all()
    again = read_dataset(tmp_path / "b.hdf5")
    assert again.attributes == dataset.attributes
    assert again.bounds == dataset.bounds == ((0, 0, 0), (8, 8, 8))
    with h5py.File(tmp_path / "b.hdf5") as file:  # as every release wrote it
        assert file.attrs["attributes"] == '{"action_bounds": {"high": [8.0, 8.0, 8.0], "low": [0.0, 0.0, 0.0]}}'


def test_actions_out_of_bounds(tmp_path: Path) -> None:
    actions = np.zeros((10, 3), np.float32)
    actions[6, 1], actions[8, 2] = 1.5, -3
    path = raw_file(tmp_path / "a.hdf5", actions=actions)
    with pytest.raises(InputError) as refused:
        read_dataset(path)
    for part in (str(path), "actions", "row 6, column 1", "1.5", "--actions clip", "--actions rescale"):
        assert part in str(refused.value)
    clipped = read_dataset(path, actions="clip").transitions.action
    np.testing.assert_array_equal(clipped, np.clip(actions, -1, 1))
    rescaled = read_dataset(path, actions="rescale")
    np.testing.assert_array_equal(rescaled.transitions.action[:, 0], 0)  # a column that never moves
    assert rescaled.transitions.action[6, 1] == 1
    assert rescaled.transitions.action[0, 1] == -1
    assert rescaled.bounds == ((0, 0, -3), (0, 1.5, 0))
    write_hdf5(rescaled, tmp_path / "b.hdf5")
    np.testing.assert_allclose(stored(tmp_path / "b.hdf5", "actions"), actions, atol=1e-6)


def test_rounding_is_forgiven_and_removed(tmp_path: Path) -> None:
    actions = np.zeros((10, 3), np.float32)
    actions[2, 0] = 1 + TOLERANCE / 2
    assert read_dataset(raw_file(tmp_path / "a.hdf5", actions=actions)).transitions.action[2, 0] == 1
    actions[2, 0] = 1 + 2 * TOLERANCE
    with pytest.raises(InputError, match="row 2, column 0"):
        read_dataset(raw_file(tmp_path / "a.hdf5", actions=actions))


def test_unit_bounds_change_nothing() -> None:
    action = np.array([[-0.0, 1e-40, 0.1], [1, -1, 1 / 3]], np.float32)
    bounds = Bounds((-1,) * 3, (1,) * 3)
    assert bounds.to_unit(action).tobytes() == bounds.from_unit(action).tobytes() == action.tobytes()


@pytest.mark.parametrize("shape", [(10,), (10, 1)])
def test_discrete_actions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    index = np.array([0, 2, 1, 0, 0, 1, 2, 2, 1, 0], np.int64)
    path = raw_file(tmp_path / "a.hdf5", actions=index.reshape(shape))
    dataset = read_dataset(path)
    assert dataset.discrete
    np.testing.assert_array_equal(dataset.transitions.action, np.eye(3, dtype=np.int8)[index])
    with h5py.File(path, "a") as file:
        file.attrs["num_actions"] = 5
    assert read_dataset(path).action_dim == 5


def test_load_gives_both_files_the_same_units(tmp_path: Path) -> None:
    small, large = np.full((10, 3), 0.5, np.float32), np.full((10, 3), 2, np.float32)
    expert, supplementary = raw_file(tmp_path / "e.hdf5", actions=small), raw_file(tmp_path / "p.hdf5", actions=large)
    rescaled = load(expert, supplementary, actions="rescale")
    assert rescaled.supplementary is not None
    assert (rescaled.expert.transitions.action == -1).all()
    assert (rescaled.supplementary.transitions.action == 1).all()
    with h5py.File(supplementary, "a") as file:
        file.attrs["action_low"], file.attrs["action_high"] = [-4.0] * 3, [4.0] * 3
    shared = load(expert, supplementary)  # the expert file states no bounds: those of the pile hold for both
    assert (shared.expert.transitions.action == 0.125).all()
    with h5py.File(expert, "a") as file:
        file.attrs["action_low"], file.attrs["action_high"] = [-1.0] * 3, [1.0] * 3
    with pytest.raises(InputError, match=r"p\.hdf5: actions: bounds differ"):
        load(expert, supplementary)


def test_load_counts_discrete_actions_over_both_files(tmp_path: Path) -> None:
    expert = raw_file(tmp_path / "e.hdf5", actions=np.zeros(10, int))
    supplementary = raw_file(tmp_path / "p.hdf5", actions=np.arange(10) % 4)
    assert load(expert, supplementary).expert.action_dim == 4


def test_load_expert_alone_and_union_order(tmp_path: Path) -> None:
    expert, supplementary = raw_file(tmp_path / "e.hdf5"), raw_file(tmp_path / "p.hdf5", rewards=np.full(10, 5.0))
    assert load(expert).supplementary is None
    np.testing.assert_array_equal(load(expert, supplementary).union.reward[:11], [*range(10), 5])


def test_load_refuses_files_that_disagree(tmp_path: Path) -> None:
    expert = raw_file(tmp_path / "e.hdf5")
    others = {
        "observations: columns: 5, but 2": {"observations": np.zeros((10, 5)), "next_observations": np.zeros((10, 5))},
        "actions: columns: 2, but 3": {"actions": np.zeros((10, 2))},
        "actions: discrete, but continuous": {"actions": np.zeros(10, int)},
    }
    for message, changes in others.items():
        with pytest.raises(InputError) as refused:
            load(expert, raw_file(tmp_path / "p.hdf5", **changes))
        for part in (message, "p.hdf5", "e.hdf5"):
            assert part in str(refused.value)
    for number, name in ((3, "e2.hdf5"), (4, "p2.hdf5")):
        with h5py.File(raw_file(tmp_path / name, actions=np.zeros(10, int)), "a") as file:
            file.attrs["num_actions"] = number
    with pytest.raises(InputError, match="actions: choices: 4, but 3"):
        load(tmp_path / "e2.hdf5", tmp_path / "p2.hdf5")


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(InputError) as error:
        read_dataset(path)
    message = str(error.value)
    assert "\n" not in message
    for part in (path.name, *parts):
        assert part in message, message


def changed(array: np.ndarray, where: tuple[int, ...], value: float) -> np.ndarray:
    array = array.astype(np.float64)
    array[where] = value
    return array


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"observations": None}, ["observations", "no such key"]),
        ({"actions": None}, ["actions", "no such key"]),
        ({"terminals": None}, ["terminals", "no such key"]),
        ({"observations": np.zeros((10, 2, 2))}, ["observations", "(10, 2, 2)"]),
        ({"observations": np.zeros(10)}, ["observations", "(10,)"]),
        ({"observations": np.zeros((10, 0))}, ["observations", "no columns"]),
        ({"observations": np.float32(3)}, ["observations", "()"]),
        ({"actions": np.zeros(10)}, ["actions", "(10,)"]),
        ({"rewards": np.zeros((10, 2))}, ["rewards", "(10, 2)"]),
        ({"terminals": np.zeros((10, 2))}, ["terminals", "(10, 2)"]),
        ({"actions": np.zeros((9, 3))}, ["actions", "9 rows", "10"]),
        ({"rewards": np.zeros(11)}, ["rewards", "11 rows", "10"]),
        ({"timeouts": np.zeros(3)}, ["timeouts", "3 rows", "10"]),
        ({"next_observations": np.zeros((10, 3))}, ["next_observations", "3 columns", "2"]),
        ({"observations": changed(np.zeros((10, 2)), (4, 1), np.nan)}, ["observations", "row 4, column 1", "nan"]),
        ({"actions": changed(np.zeros((10, 3)), (9, 2), -np.inf)}, ["actions", "row 9, column 2", "-inf"]),
        ({"observations": changed(np.zeros((10, 2)), (5, 0), 1e300)}, ["observations", "row 5, column 0", "inf"]),
        ({"rewards": changed(np.zeros(10), (7,), np.nan)}, ["rewards", "row 7", "nan"]),
        ({"terminals": changed(np.zeros(10), (2,), 2)}, ["terminals", "row 2", "neither 0 nor 1"]),
        ({"terminals": changed(np.zeros(10), (2,), np.nan)}, ["terminals", "row 2", "nan"]),
        ({"actions": np.full((10, 3), 2)}, ["actions", "3 columns of integers"]),
        ({"actions": np.arange(10) - 3}, ["actions", "row 0", "-3"]),
        ({"observations": np.array([b"x"] * 10)}, ["observations", "not numbers"]),
        ({"actions": ["a"] * 10}, ["actions", "not numbers"]),
        ({"rewards": np.zeros(10, complex)}, ["rewards", "not numbers"]),
        ({"rewards": np.zeros(10, [("x", float)])}, ["rewards", "not numbers"]),
        ({"infos/origin": np.zeros(10, np.int8)}, ["infos/origin", "names"]),
        ({"actions": None, "actions/left": np.zeros(10)}, ["actions", "is a group"]),
    ],
)
def test_refuses_bad_content(tmp_path: Path, changes: dict[str, object], parts: list[str]) -> None:
    refused(raw_file(tmp_path / "bad.hdf5", **changes), *parts)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.hdf5"]


def test_refuses_an_empty_set(tmp_path: Path) -> None:
    shapes = {"observations": (0, 2), "next_observations": (0, 2), "actions": (0, 3)}
    changes = {key: np.zeros(shapes.get(key, (0,))) for key in ("rewards", "terminals", "timeouts", *shapes)}
    refused(raw_file(tmp_path / "empty.hdf5", **changes), "observations", "empty")
    refused(
        raw_file(tmp_path / "lone.hdf5", next_observations=None, timeouts=np.ones(10), terminals=np.zeros(10)), "empty"
    )


def test_refuses_what_is_not_hdf5(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path = tmp_path / f"pickle{protocol}.hdf5"
        path.write_bytes(pickle.dumps({"observations": [1, 2]}, protocol))
        refused(path, "not an HDF5 file", "a pickle", "never unpickled")
    np.savez(tmp_path / "data.npz", observations=np.zeros(3))
    np.save(tmp_path / "data.npy", np.zeros(3))
    (tmp_path / "pointer.hdf5").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "text.hdf5").write_text("hello there.")
    (tmp_path / "none.hdf5").touch()
    refused(tmp_path / "data.npz", "zip archive")
    refused(tmp_path / "data.npy", "NumPy")
    refused(tmp_path / "pointer.hdf5", "Git LFS")
    refused(tmp_path / "text.hdf5", "not an HDF5 file")
    refused(tmp_path / "none.hdf5", "empty")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bomb.hdf5"
    path.write_bytes(pickle.dumps(Bomb(), protocol))
    refused(path, "a pickle")
    assert not (tmp_path / "exploded").exists()


def test_refuses_missing_and_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path / "nowhere.hdf5", "No such file")
    refused(tmp_path, "folder")
    path = raw_file(tmp_path / "secret.hdf5")

    def deny(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(h5py, "is_hdf5", lambda _: False)  # what it answers for an unreadable file
    monkeypatch.setattr(os, "open", deny)  # the tests may run as root, who reads everything
    refused(path, "Permission denied")


def test_refuses_truncated_files_at_any_length(tmp_path: Path) -> None:
    content = raw_file(tmp_path / "whole.hdf5").read_bytes()
    path = tmp_path / "cut.hdf5"
    for length in np.linspace(1, len(content) - 1, 40, dtype=int):
        path.write_bytes(content[:length])
        refused(path, "HDF5 file")
    path.write_bytes(content[: len(content) // 2])
    refused(path, "truncated")


def test_refuses_links_and_data_elsewhere(tmp_path: Path) -> None:
    other = raw_file(tmp_path / "other.hdf5")
    for name, link in (("soft", h5py.SoftLink("/rewards")), ("external", h5py.ExternalLink(str(other), "/rewards"))):
        path = raw_file(tmp_path / f"{name}.hdf5", observations=link)
        refused(path, "observations", "link")
    path = raw_file(tmp_path / "group.hdf5", infos=h5py.ExternalLink(str(other), "/"))
    refused(path, "infos: is", "link")
    path = raw_file(tmp_path / "raw.hdf5", rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (10,), "f4", external=[("/etc/passwd", 0, 40)])
    refused(path, "rewards", "other files")
    path = raw_file(tmp_path / "virtual.hdf5", rewards=None)
    with h5py.File(path, "a") as file:
        layout = h5py.VirtualLayout((10,), "f4")
        layout[:] = h5py.VirtualSource(str(other), "rewards", (10,))
        file.create_virtual_dataset("rewards", layout)
    refused(path, "rewards", "other files")


def test_refuses_absurd_sizes(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "huge.hdf5", observations=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("observations", (10**12, 2), "f4", chunks=(1024, 2))
    refused(path, "GiB")
    refused(raw_file(tmp_path / "choices.hdf5", actions=np.full(10, 2**62)), "GiB")


def test_refuses_bad_attributes(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"attributes": "{"}, "attribute attributes: not JSON"),
        ({"env_kwargs": "[1]"}, "attribute env_kwargs: not a JSON object"),
        ({"env_kwargs": 3}, "attribute env_kwargs: not JSON"),
        ({"format_version": 99}, "attribute format_version: 99"),
        ({"num_actions": -1}, "attribute num_actions"),
        ({"num_actions": 3}, "actions: the file states num_actions"),
        ({"action_low": [-1.0] * 3}, "action_low, action_high"),
        ({"action_low": [1.0] * 3, "action_high": [-1.0] * 3}, "action_low, action_high"),
        ({"action_low": [-np.inf] * 3, "action_high": [1.0] * 3}, "action_low, action_high"),
        ({"action_low": "x", "action_high": "y"}, "action_low, action_high"),
        ({"action_low": [-1.0] * 2, "action_high": [2.0] * 2}, "actions: has 3 columns, its bounds have 2"),
    ]
    for number, (attributes, message) in enumerate(cases):
        path = raw_file(tmp_path / f"{number}.hdf5")
        with h5py.File(path, "a") as file:
            file.attrs.update(attributes)
        refused(path, message)
    path = raw_file(tmp_path / "origin.hdf5")
    with h5py.File(path, "a") as file:
        file["infos/origin"] = np.arange(10) % 3
        file["infos/origin"].attrs["names"] = ["a", "b"]
    refused(path, "infos/origin: row 2: 2")
    with h5py.File(path, "a") as file:
        file["infos/origin"].attrs["names"] = np.zeros(0)
    refused(path, "infos/origin: has no attribute names")


def test_refuses_unknown_options_and_targets(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.hdf5")
    with pytest.raises((InputError, TypeError), match="squash"):  # TypeError where annotations are checked at run time
        read_dataset(path, actions="squash")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"a\.csv: unknown format"):
        write_dataset(make_dataset(), tmp_path / "a.csv")
    with pytest.raises(InputError, match="the set is empty"):
        write_dataset(make_dataset().take(slice(0)), tmp_path / "b.hdf5")
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_normaliser_against_its_definition() -> None:
    obs = np.random.default_rng(0).normal(3, [1, 10, 0], (1000, 3)).astype(np.float32)
    fitted = Normaliser.fit(obs)
    wide = obs.astype(np.float64)
    np.testing.assert_array_equal(fitted.shift, (-wide.mean(axis=0)).astype(np.float32))
    np.testing.assert_array_equal(fitted.scale, (1 / (wide.std(axis=0) + 1e-3)).astype(np.float32))
    np.testing.assert_allclose(fitted.apply(obs), (wide + fitted.shift) * fitted.scale, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(fitted.apply(obs)[5], fitted.apply(obs[5]))
    assert fitted.apply(obs).dtype == np.float32
    np.testing.assert_array_equal(Normaliser.identity(3).apply(obs), obs)


def test_normaliser_does_not_lose_digits_over_many_rows() -> None:
    obs = np.full((2_000_000, 1), 100.1, np.float32)
    assert Normaliser.fit(obs).shift[0] == -np.float32(100.1)


def test_normaliser_over_which_set() -> None:
    both = Demonstrations(make_dataset(1), make_dataset(2, rows=300))
    assert both.supplementary is not None
    for over, obs in (("supplementary", both.supplementary.transitions.obs), ("union", both.union.obs)):
        np.testing.assert_array_equal(fit_normaliser(both, over).shift, Normaliser.fit(obs).shift)  # pyright: ignore[reportArgumentType]
    alone = Demonstrations(both.expert)
    np.testing.assert_array_equal(fit_normaliser(alone).shift, Normaliser.fit(both.expert.transitions.obs).shift)


def test_atomic_write_replaces_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("one")
        assert temporary.name == path.name
        assert not path.exists()
    assert path.read_text() == "one"
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            fail_half_way(atomic_write(path), error)
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def fail_half_way(writing: AbstractContextManager[Path], error: type[BaseException]) -> None:
    with writing as temporary:
        (temporary / "half" if temporary.is_dir() else temporary).write_text("half")
        raise error


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_atomic_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    with atomic_folder(path) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "a").write_text("one")
        assert list(path.iterdir()) == []
    assert (path / "sub" / "a").read_text() == "one"
    with pytest.raises(InputError, match="run: the folder is not empty"), atomic_folder(path):
        pytest.fail("ran")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(atomic_folder(tmp_path / "other"), KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("atomic", [atomic_write, atomic_folder])
def test_the_second_of_two_writers_is_refused(tmp_path: Path, atomic: Any) -> None:
    with atomic(tmp_path / "a") as temporary:
        (temporary / "b" if temporary.is_dir() else temporary).write_text("first")
        with pytest.raises(InputError, match="a: another process is writing there"), atomic(tmp_path / "a"):
            pytest.fail("ran")
    assert list(tree(tmp_path).values()) == [b"first"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_folder_that_appeared_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a: something else was written there"), atomic_folder(tmp_path / "a"):
        write_json(tmp_path / "a" / "b", "mine")
    assert tree(tmp_path) == {"a/b": b'"mine"\n'}


@pytest.mark.parametrize("atomic", [atomic_write, atomic_folder])
def test_what_a_killed_writer_left_is_swept(tmp_path: Path, atomic: Any) -> None:
    code = (
        f"import os, sys\nfrom demosift.files import {atomic.__name__}\n"
        f"with {atomic.__name__}(sys.argv[1]) as temporary:\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert [path.name for path in tmp_path.iterdir()] == [".a.partial"]
    with atomic(tmp_path / "a") as temporary:
        (temporary / "b" if temporary.is_dir() else temporary).write_text("whole")
    assert list(tree(tmp_path).values()) == [b"whole"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_atomic_refuses_the_wrong_kind_of_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a folder"), atomic_write(tmp_path):
        pytest.fail("ran")
    with pytest.raises(InputError, match="is a file"), atomic_folder(tmp_path / "file"):
        pytest.fail("ran")
    with pytest.raises(InputError, match=r"file/a\.txt: cannot write"), atomic_write(tmp_path / "file" / "a.txt"):
        pytest.fail("ran")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match=r"a\.hdf5: cannot write: No space left on device"):
        write_hdf5(make_dataset(), tmp_path / "a.hdf5")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_in_the_words_of_other_libraries(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No space left on device"), atomic_write(tmp_path / "a"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a"):
        raise FileNotFoundError(errno.ENOENT, "another file", "b")
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_data import make_dataset
from demosift.data import write_dataset
from demosift.types import InputError
dataset = make_dataset(rows=4000)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
for target in sys.argv[1:]:
    try:
        write_dataset(dataset, target)
    except InputError as error:
        print(error)
"""


def test_a_disk_that_is_truly_full(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: HDF5 fails, and would crash, in the same place."""
    code = LIMITED.format(tests=str(Path(__file__).parent), limit=100_000)
    targets = [str(tmp_path / "a.hdf5"), f"minari:{tmp_path / 'a-v0'}"]
    done = subprocess.run([sys.executable, "-c", code, *targets], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot write: File too large") == 2
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_writing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom demosift.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n    print('writing', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], stdout=-1, stderr=-1)
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_write_json_is_stable(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1], "a": "é"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "é", "b": [1]}
    assert (tmp_path / "a.json").read_text().startswith('{\n  "a"')
    assert (tmp_path / "a.json").read_text().endswith("}\n")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text())["b"] == [1]
