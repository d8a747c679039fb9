"""Minari: datasets written by demosift, and by Minari's own collector and storage, read back row for row."""

import json
import os
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from test_data import HOPPER, assert_same, make_dataset

from demosift.data import load, read_dataset, write_dataset, write_hdf5, write_minari
from demosift.types import EnvironmentSpec, InputError

# Minari's collector drops its temporary folders without closing them.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@pytest.fixture(autouse=True)
def datasets_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def collect(env_id: str, steps: int = 70) -> tuple[minari.MinariDataset, list[dict[str, np.ndarray]]]:
    """A dataset made through Minari's own API, and its episodes as Minari gives them back."""
    env = minari.DataCollector(gym.make(env_id, max_episode_steps=30))
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    dataset = env.create_dataset(
        "test/random-v0",
        eval_env=env_id,
        algorithm_name="random",
        author="a",
        author_email="b",
        code_permalink="c",
        description="d",
    )
    env.close()
    return dataset, [vars(episode) for episode in dataset.iterate_episodes()]


@pytest.mark.parametrize(("env_id", "high"), [("Pendulum-v1", 2.0), ("CartPole-v1", None)])
def test_reads_what_minari_collected(env_id: str, high: float | None) -> None:
    original, episodes = collect(env_id)
    dataset = read_dataset("minari:test/random-v0")
    assert len(dataset) == original.total_steps
    assert dataset.num_episodes == original.total_episodes
    ours = dataset.transitions
    start = 0
    for episode in episodes:
        steps = len(episode["rewards"])
        rows = slice(start, start := start + steps)
        np.testing.assert_array_equal(ours.obs[rows], episode["observations"][:-1].astype(np.float32))
        np.testing.assert_array_equal(ours.next_obs[rows], episode["observations"][1:].astype(np.float32))
        np.testing.assert_array_equal(ours.reward[rows], episode["rewards"].astype(np.float32))
        np.testing.assert_array_equal(ours.terminal[rows], episode["terminations"])
        expected = episode["actions"] / high if high else np.eye(2, dtype=np.int8)[episode["actions"]]
        np.testing.assert_array_equal(ours.action[rows], expected)
    assert dataset.environment is not None
    assert dataset.environment.id == env_id
    assert dataset.environment.num_actions == (None if high else 2)
    assert dataset.environment.action_high == ((high,) if high else None)
    assert dataset.timeout[-1] or ours.terminal[-1]


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_collected_data_survive_every_format(tmp_path: Path, env_id: str) -> None:
    collect(env_id)
    dataset = read_dataset("minari:test/random-v0")
    write_dataset(dataset, tmp_path / "a.hdf5")
    write_dataset(read_dataset(tmp_path / "a.hdf5"), "minari:other/copy-v3")
    copy = read_dataset("minari:other/copy-v3")
    assert_same(dataset, copy)
    assert copy.environment == dataset.environment


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_round_trip_keeps_every_bit(seed: int, discrete: bool) -> None:
    dataset = make_dataset(seed, rows=80, discrete=discrete)
    write_dataset(dataset, f"minari:made/up-v{seed}")
    again = read_dataset(f"minari:made/up-v{seed}")
    assert_same(dataset, again)
    assert dict(again.attributes) == dict(dataset.attributes)


def test_interrupted_chains_are_cut_and_every_row_is_kept(tmp_path: Path) -> None:
    dataset = make_dataset(rows=80).take(np.flatnonzero(np.arange(80) % 5 != 2))
    write_minari(dataset, tmp_path / "folder")
    again = read_dataset(tmp_path / "folder")
    assert_same(replace(dataset, timeout=again.timeout), again)
    assert again.num_episodes > dataset.num_episodes
    assert set(dataset.episode_ends) <= set(again.episode_ends)


def test_minari_itself_opens_what_we_write() -> None:
    dataset = replace(make_dataset(), environment=HOPPER)
    write_dataset(dataset, "minari:mujoco/hopper/mixed-v0")
    theirs = minari.load_dataset("mujoco/hopper/mixed-v0")
    assert theirs.total_steps == len(dataset)
    assert theirs.total_episodes == dataset.num_episodes
    assert list(minari.list_local_datasets()) == ["mujoco/hopper/mixed-v0"]
    assert theirs.env_spec is not None
    assert theirs.env_spec.kwargs == {"frame_skip": 4}
    assert theirs.env_spec.entry_point == gym.spec("Hopper-v5").entry_point
    for ours, episode in zip(dataset.episodes(), theirs.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(episode.observations[:-1], ours.obs)
        np.testing.assert_array_equal(episode.observations[-1], ours.next_obs[-1])
        np.testing.assert_array_equal(episode.actions, ours.action)
        assert bool(episode.terminations[-1]) != bool(episode.truncations[-1])
    assert read_dataset("minari:mujoco/hopper/mixed-v0").environment == HOPPER


def test_actions_are_written_in_the_environments_units() -> None:
    environment = EnvironmentSpec("Nowhere-v0", {}, (-2.0, 0.0, -8.0), (2.0, 4.0, 8.0))
    dataset = replace(make_dataset(), environment=environment)
    write_dataset(dataset, "minari:wide-v0")
    theirs = minari.load_dataset("wide-v0")
    assert isinstance(theirs.action_space, Box)
    np.testing.assert_array_equal(theirs.action_space.high, [2, 4, 8])
    first = next(iter(theirs)).actions
    np.testing.assert_allclose(first, dataset.transitions.action[: len(first)] * [2, 2, 8] + [0, 2, 0], atol=1e-6)
    again = read_dataset("minari:wide-v0")
    assert_same(dataset, again, action_tolerance=1e-6)
    assert again.environment == environment


def test_source_forms(tmp_path: Path, datasets_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset()
    write_dataset(dataset, "minari:aa/b-v0")
    write_dataset(dataset, f"minari:{tmp_path}/plain")
    monkeypatch.chdir(tmp_path)
    for source in (
        "minari:aa/b-v0",
        datasets_path / "aa" / "b-v0",
        "minari:./plain",
        "plain",
        f"minari:{tmp_path}/plain",
    ):
        assert_same(read_dataset(source), dataset)
    assert minari.MinariDataset(tmp_path / "plain" / "data").spec.dataset_id == "plain-v0"
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_dataset(dataset, "minari:home-v0")
    assert (tmp_path / ".minari" / "datasets" / "home-v0" / "data").is_dir()


def test_mixes_with_native_files(tmp_path: Path) -> None:
    write_dataset(make_dataset(1), "minari:a-v0")
    write_hdf5(make_dataset(2), tmp_path / "p.hdf5")
    assert len(load("minari:a-v0", tmp_path / "p.hdf5").union.reward) == 120


def storage(
    folder: Path, obs_space: gym.Space, action_space: gym.Space, data_format: str = "hdf5", **changes: object
) -> Path:
    """A Minari dataset of one three-step episode, made with Minari's own storage."""
    folder.mkdir()
    made = MinariStorage.new(folder / "data", obs_space, action_space, data_format=data_format)
    made.update_metadata({"dataset_id": f"{folder.name}-v0", "minari_version": minari.__version__})
    content: dict[str, object] = {
        "observations": np.arange(8, dtype=np.float64).reshape(4, 2),
        "actions": np.zeros((3, 1), np.float32),
        "rewards": [1.0, 2.0, 3.0],
        "terminations": [False, False, False],
        "truncations": [False, False, False],
    }
    made.update_episodes([EpisodeBuffer(**content | changes)])  # pyright: ignore[reportArgumentType]
    return folder


OBS, ACTION = Box(-np.inf, np.inf, (2,)), Box(-1, 1, (1,))


def test_odd_but_valid(tmp_path: Path) -> None:
    """An episode that just stops, doubles, no environment, an unbounded action box, actions of an integer box."""
    dataset = read_dataset(storage(tmp_path / "a", OBS, Box(-np.inf, np.inf, (1,))))
    assert dataset.environment is None
    np.testing.assert_array_equal(dataset.timeout, [False, False, True])
    np.testing.assert_array_equal(dataset.transitions.next_obs, [[2, 3], [4, 5], [6, 7]])
    assert dataset.transitions.obs.dtype == np.float32
    whole = storage(tmp_path / "b", OBS, Box(-1, 1, (1,), np.int64), actions=np.array([[1], [0], [-1]]))
    np.testing.assert_array_equal(read_dataset(whole).transitions.action, [[1], [0], [-1]])


def test_terminal_wins_over_truncation(tmp_path: Path) -> None:
    last = [False, False, True]
    dataset = read_dataset(storage(tmp_path / "a", OBS, ACTION, terminations=last, truncations=last))
    assert dataset.transitions.terminal[-1]
    assert not dataset.timeout.any()


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_minaris_other_storages(tmp_path: Path, data_format: str) -> None:
    obs = np.arange(8, dtype=np.float32).reshape(4, 2)
    formats = (data_format, "hdf5")
    a, b = (read_dataset(storage(tmp_path / name, OBS, ACTION, name, observations=obs)) for name in formats)
    assert_same(a, b)
    (tmp_path / data_format / "data" / "0" / "part-0.parquet").unlink(missing_ok=True)
    (tmp_path / data_format / "data" / "0" / "part-0.arrow").write_bytes(b"not arrow")
    with pytest.raises(InputError, match="damaged Minari data"):
        read_dataset(tmp_path / data_format)


def refused(source: Path | str, *parts: str) -> None:
    with pytest.raises(InputError) as error:
        read_dataset(source)
    message = str(error.value)
    assert "\n" not in message
    for part in (os.fspath(source), *parts):
        assert part in message, message


def test_refuses_what_is_not_flat(tmp_path: Path) -> None:
    nested = storage(tmp_path / "a", Dict({"x": OBS}), ACTION, observations={"x": np.zeros((4, 2))})
    refused(nested, "observations", "Dict", "not a flat Box")
    refused(storage(tmp_path / "b", Box(-1, 1, (2, 2)), ACTION, observations=np.zeros((4, 2, 2))), "observations")
    offset = Discrete(3, start=1)
    refused(storage(tmp_path / "c", OBS, offset, actions=np.array([1, 2, 3])), "actions", "Discrete")


def test_refuses_bad_content(tmp_path: Path) -> None:
    refused(storage(tmp_path / "a", OBS, ACTION, observations=np.zeros((3, 2))), "observations: episode 0 has 3")
    refused(storage(tmp_path / "b", OBS, ACTION, actions=np.zeros((2, 1))), "actions: episode 0 has 2")
    refused(storage(tmp_path / "c", OBS, ACTION, rewards=[1, np.nan, 2]), "rewards: row 1: nan")
    refused(storage(tmp_path / "d", OBS, Box(-2, 2, (1,)), actions=np.full((3, 1), 5.0)), "row 0, column 0", "[-2, 2]")
    refused(storage(tmp_path / "e", OBS, Discrete(2), actions=np.array([0, 1, 2])), "actions: row 2: 2")
    nothing = np.zeros(0, bool)
    empty = {"actions": np.zeros((0, 1)), "rewards": nothing, "terminations": nothing, "truncations": nothing}
    refused(episodes_of(tmp_path / "f", {"observations": np.zeros((1, 2))} | empty), "observations: the set is empty")


def episodes_of(folder: Path, *episodes: dict[str, np.ndarray]) -> Path:
    """A dataset whose HDF5 file holds these arrays, where Minari's own writer would stumble over them."""
    storage(folder, OBS, ACTION)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for index, episode in enumerate(episodes):
            for key, array in episode.items():
                file[f"episode_{index}/{key}"] = array
    edit(folder / "data", total_episodes=len(episodes))
    return folder


def test_refuses_episodes_that_differ(tmp_path: Path) -> None:
    flags = np.zeros(3, bool)
    whole = {"actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminations": flags, "truncations": flags}
    wide, narrow = ({"observations": np.zeros((4, columns))} | whole for columns in (2, 3))
    assert read_dataset(episodes_of(tmp_path / "same", wide, wide)).num_episodes == 2
    refused(episodes_of(tmp_path / "mixed", wide, narrow), "episodes differ in shape")
    refused(episodes_of(tmp_path / "scalar", wide, wide | {"rewards": np.zeros(())}), "episodes differ in shape")


def test_refuses_damage(tmp_path: Path) -> None:
    for name, damage, part in (
        ("cut", lambda data: os.truncate(data / "main_data.hdf5", 3000), "truncated"),
        ("gone", lambda data: (data / "main_data.hdf5").unlink(), "No such file"),
        ("json", lambda data: (data / "metadata.json").write_text("{"), "metadata.json"),
        ("list", lambda data: (data / "metadata.json").write_text("[]"), "metadata.json"),
        ("space", lambda data: edit(data, action_space=None), "action_space"),
        ("odd", lambda data: edit(data, action_space='{"type": "Magic"}'), "action_space"),
        ("more", lambda data: edit(data, total_episodes=2), "episode_1/observations"),
        ("spec", lambda data: edit(data, env_spec="{}"), "env_spec"),
        ("names", lambda data: edit(data, demosift_origin_names=3), "demosift_origin_names"),
        ("origin", lambda data: edit(data, demosift_origin_names=["a"]), "infos/origin"),
    ):
        folder = storage(tmp_path / name, OBS, ACTION)
        damage(folder / "data")
        with pytest.raises(InputError) as error:
            read_dataset(folder)
        assert part in str(error.value)
        assert name in str(error.value)


def edit(data: Path, **changes: object) -> None:
    metadata = json.loads((data / "metadata.json").read_text()) | changes
    (data / "metadata.json").write_text(json.dumps(metadata))


def test_never_follows_links_nor_makes_the_environment(tmp_path: Path) -> None:
    folder = storage(tmp_path / "a", OBS, ACTION)
    spec = {"id": "Evil-v0", "entry_point": "exploding_module:Env", "kwargs": {"x": 1}}
    edit(folder / "data", env_spec=json.dumps(spec))
    assert read_dataset(folder).environment == EnvironmentSpec("Evil-v0", {"x": 1}, (-1.0,), (1.0,))
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink("elsewhere.hdf5", "/rewards")
    with pytest.raises(InputError, match="episode_0/rewards: is a link"):
        read_dataset(folder)


def test_refuses_bad_names_and_writes_nothing(tmp_path: Path, datasets_path: Path) -> None:
    refused("minari:not/there-v0", "no Minari dataset at")
    refused("minari:no-version", "not a Minari id")
    refused("minari:a/../../b-v0", "not a Minari id")
    assert not datasets_path.exists()
    write_dataset(make_dataset(), "minari:a-v0")
    before = (datasets_path / "a-v0" / "data" / "main_data.hdf5").read_bytes()
    with pytest.raises(InputError, match="a-v0: the folder is not empty"):
        write_dataset(make_dataset(1), "minari:a-v0")
    assert (datasets_path / "a-v0" / "data" / "main_data.hdf5").read_bytes() == before
    assert os.listdir(datasets_path) == ["a-v0"]


def test_an_interrupted_write_leaves_nothing(datasets_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minari.dataset._storages.hdf5_storage.HDF5Storage.update_episodes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(make_dataset(), "minari:a-v0")
    assert not datasets_path.exists()
