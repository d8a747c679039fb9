"""robomimic, LeRobot and `.npz` data: real layouts, odd ones, round trips, and every refusal; and rows from disk."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import Episode, episode, frames, joined, lerobot_v2, lerobot_v3, npz_folder, robomimic_file
from test_data import HOPPER, Bomb, assert_same, make_dataset, raw_file

from demosift.data import check_pair, digest_source, load, open_pair, open_rows, read_dataset, write_dataset, write_hdf5
from demosift.data.formats.hdf5.rows import HDF5Rows
from demosift.types import Dataset, EnvironmentSpec, InputError

EPISODES = {number: episode(number, 5 + number) for number in (0, 1, 2, 10)}
FOREIGN = ("robomimic:{}/a.hdf5", "lerobot:{}/a", "npz:{}/a")


def expect(dataset: Dataset, episodes: list[Episode], keep_last: bool = True) -> None:
    """The dataset holds these episodes, in this order; without its last rows where their successor is unknown."""
    cut = None if keep_last else -1
    obs = np.concatenate([joined(each)[:cut] for each in episodes])
    np.testing.assert_array_equal(dataset.transitions.obs, obs)
    for key, found in (("actions", dataset.transitions.action), ("rewards", dataset.transitions.reward)):
        expected = np.concatenate([each[key][:cut] for each in episodes]).astype(np.float32)
        np.testing.assert_array_equal(found, expected)
    lengths = [len(each["actions"]) - (not keep_last) for each in episodes]
    np.testing.assert_array_equal(dataset.episode_ends, np.cumsum(lengths))


def refused(source: Path | str, *parts: str) -> None:
    for read in (read_dataset, open_everything):
        with pytest.raises(InputError) as error:
            read(source)
        message = str(error.value)
        assert "\n" not in message
        for part in parts:
            assert part in message, message


def open_everything(source: Path | str) -> None:
    for _ in open_rows(source).blocks(3):
        pass


class TestRobomimic:
    def test_demonstrations_come_by_number_and_keys_by_name(self, tmp_path: Path) -> None:
        path = robomimic_file(tmp_path / "a.hdf5", dict(reversed(EPISODES.items())))
        dataset = read_dataset(path)
        expect(dataset, list(EPISODES.values()))
        following = np.concatenate([joined(each, slice(1, None)) for each in EPISODES.values()])
        np.testing.assert_array_equal(dataset.transitions.next_obs, following)
        np.testing.assert_array_equal(np.flatnonzero(dataset.transitions.terminal) + 1, dataset.episode_ends)
        assert dataset.attributes["obs_keys"] == {"object": 2, "robot0_eef_pos": 3}
        assert dataset.attributes["skipped_obs_keys"] == ["agentview_image"]
        assert dataset.attributes["env_args"]["env_name"] == "Lift"
        assert dataset.environment is None, "Lift is no Gymnasium id"

    def test_named_keys_and_filter_keys(self, tmp_path: Path) -> None:
        path = robomimic_file(tmp_path / "a.hdf5", EPISODES)
        swapped = read_dataset(f"{path}::obs=robot0_eef_pos,object")
        np.testing.assert_array_equal(swapped.transitions.obs[:, 3:], read_dataset(path).transitions.obs[:, :2])
        assert read_dataset(f"{path}::obs=object").obs_dim == 2
        expect(read_dataset(f"{path}::filter=train"), [EPISODES[0], EPISODES[1]])
        assert read_dataset(f"robomimic:{path}::obs=object::filter=train").num_episodes == 2
        refused(f"{path}::obs=eef", "demo_0/obs/eef", "no such key", "robot0_eef_pos")
        refused(f"{path}::obs=agentview_image", "agentview_image", "images are not read")
        refused(f"{path}::filter=valid", "mask/valid", "train")
        refused(f"{path}::colour=red", "colour", "no option of robomimic")
        refused(f"{path}::obs", "NAME=VALUE")
        refused(f"{raw_file(tmp_path / 'native.hdf5')}::obs=x", "obs", "no option of hdf5")

    def test_without_successors_the_last_row_goes_unless_terminal(self, tmp_path: Path) -> None:
        path = robomimic_file(tmp_path / "a.hdf5", EPISODES, next_obs=False, done=False)
        expect(read_dataset(path), list(EPISODES.values()), keep_last=False)
        path = robomimic_file(tmp_path / "b.hdf5", EPISODES, next_obs=False)
        expect(read_dataset(path), list(EPISODES.values()))

    def test_dones_inside_do_not_cut(self, tmp_path: Path) -> None:
        path = robomimic_file(tmp_path / "a.hdf5", EPISODES)
        with h5py.File(path, "a") as file:
            file["data/demo_0/dones"][2:4] = 1  # pyright: ignore
            del file["data/demo_1/dones"], file["data/demo_1/rewards"]
            for name in ("demo_0", "demo_2", "demo_10"):
                del file[f"data/{name}/rewards"]
        dataset = read_dataset(path)
        assert dataset.num_episodes == 4
        np.testing.assert_array_equal(np.flatnonzero(dataset.timeout), [dataset.episode_ends[1] - 1])
        assert dataset.attributes["absent_keys"] == ["rewards"]

    def test_gym_environments_travel(self, tmp_path: Path) -> None:
        path = robomimic_file(tmp_path / "a.hdf5", EPISODES)
        with h5py.File(path, "a") as file:
            file["data"].attrs["env_args"] = json.dumps({"env_name": "Hopper-v5", "type": 2, "env_kwargs": {"a": 1}})
        assert read_dataset(path).environment == EnvironmentSpec("Hopper-v5", {"a": 1})

    def test_refusals(self, tmp_path: Path) -> None:
        def spoil(name: str, change: Callable[[h5py.File], None], *parts: str) -> None:
            path = robomimic_file(tmp_path / f"{name}.hdf5", EPISODES)
            with h5py.File(path, "a") as file:
                change(file)
            refused(path, f"{name}.hdf5", *parts)

        def put(key: str, value: object) -> Callable[[h5py.File], None]:
            def change(file: h5py.File) -> None:
                del file[key]
                if value is not None:
                    file[key] = value

            return change

        bad = EPISODES[1]["actions"].copy()
        bad[3, 1] = np.nan
        spoil("nan", put("data/demo_1/actions", bad), "data/demo_1: actions: row 3, column 1: nan")
        spoil("short", put("data/demo_2/actions", np.zeros((3, 2))), "demo_2", "3 rows", "num_samples says 7")
        spoil("wide", put("data/demo_1/actions", np.zeros((6, 3))), "demo_1", "actions", "demo_0")
        spoil("gone", put("data/demo_1/actions", None), "demo_1: actions", "no such key")
        spoil("lost", put("data/demo_1/obs/object", None), "demo_1", "obs", "::obs=")
        spoil("extra", lambda f: put_new(f, "data/demo_1/obs/new", np.zeros((6, 1))), "demo_1", "new", "::obs=")
        spoil("rows", put("data/demo_1/obs/object", np.zeros((4, 2))), "obs/object", "(4, 2)", "6 actions")
        spoil("next", put("data/demo_1/next_obs", None), "demo_1", "next_observations", "absent")
        spoil("key", put("data/demo_1/next_obs/object", None), "next_obs/object")
        spoil("states", put("data/demo_0/obs", None), "demo_0/obs: absent", "dataset_states_to_obs")
        spoil("name", lambda f: put_new(f, "data/episode", np.zeros(3)), "data/episode", "demo_0")
        spoil("link", put("data/demo_1/rewards", h5py.SoftLink("/data/demo_0/rewards")), "rewards", "link")
        spoil("args", lambda f: f["data"].attrs.__setitem__("env_args", "{"), "env_args")
        spoil("text", put("data/demo_0/actions", np.array([b"x"] * 5)), "actions", "not numbers")
        only = robomimic_file(tmp_path / "only.hdf5", EPISODES)
        with h5py.File(only, "a") as file:
            for number in EPISODES:
                for group in ("obs", "next_obs"):
                    del file[f"data/demo_{number}/{group}/object"], file[f"data/demo_{number}/{group}/robot0_eef_pos"]
        refused(only, "only images (agentview_image)")
        with h5py.File(tmp_path / "empty.hdf5", "w") as file:
            file.create_group("data")
        refused(tmp_path / "empty.hdf5", "the set is empty")

    def test_truncated_at_any_length(self, tmp_path: Path) -> None:
        content = robomimic_file(tmp_path / "whole.hdf5", EPISODES, images=False).read_bytes()
        for length in np.linspace(1, len(content) - 1, 20, dtype=int):
            (tmp_path / "cut.hdf5").write_bytes(content[:length])
            refused(tmp_path / "cut.hdf5", "HDF5 file")


def put_new(file: h5py.File, key: str, value: object) -> None:
    file[key] = value


def lerobot_episodes(version: str, root: Path, episodes: dict[int, Episode] = EPISODES, **options: bool) -> Path:
    if version == "v3.0":
        return lerobot_v3(
            root, [{k: v for k, v in episodes.items() if k < 2}, {k: v for k, v in episodes.items() if k > 1}]
        )
    return lerobot_v2(root, episodes, version, **options)


def columns_as_joined(dataset: Dataset) -> None:
    assert dataset.attributes["obs_keys"] == {"observation.environment_state": 2, "observation.state": 3}


class TestLeRobot:
    @pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
    def test_versions(self, tmp_path: Path, version: str) -> None:
        root = lerobot_episodes(version, tmp_path / "a")
        dataset = read_dataset(root)
        expect(dataset, list(EPISODES.values()))
        columns_as_joined(dataset)
        assert dataset.transitions.terminal.sum() == 4
        assert dataset.attributes["fps"] == 10
        assert dataset.attributes["robot_type"] == "so100"
        assert dataset.attributes["skipped_obs_keys"] == ["observation.images.top"]
        assert read_dataset(f"lerobot:{root}::obs=observation.state").obs_dim == 3

    def test_no_successor_no_row(self, tmp_path: Path) -> None:
        dataset = read_dataset(lerobot_v3(tmp_path / "a", [EPISODES], done=False))
        expect(dataset, list(EPISODES.values()), keep_last=False)
        assert dataset.timeout[dataset.episode_ends - 1].all()

    def test_frames_and_episodes_out_of_order_over_several_shards(self, tmp_path: Path) -> None:
        parts = [{10: EPISODES[10], 0: EPISODES[0]}, {2: EPISODES[2], 1: EPISODES[1]}]
        expect(read_dataset(lerobot_v3(tmp_path / "a", parts, shuffled=True)), list(EPISODES.values()))

    def test_doubles_scalars_and_discrete_actions(self, tmp_path: Path) -> None:
        root = tmp_path / "a"
        (root / "meta").mkdir(parents=True)
        (root / "data/chunk-000").mkdir(parents=True)
        number = {"dtype": "int64", "shape": [1], "names": None}
        features = {"observation.state": {"dtype": "float64", "shape": [1]}, "action": number}
        features |= {"frame_index": number, "episode_index": number}
        info = {"codebase_version": "v3.0", "features": features}
        (root / "meta/info.json").write_text(json.dumps(info))
        table = {"observation.state": [0.5, 1.5, 2.5], "action": [0, 2, 1]}
        table |= {"frame_index": [0, 1, 2], "episode_index": [0, 0, 0]}
        pq.write_table(pa.table(table), root / "data/chunk-000/file-000.parquet")
        dataset = read_dataset(root)
        np.testing.assert_array_equal(dataset.transitions.obs, [[0.5], [1.5]])
        np.testing.assert_array_equal(dataset.transitions.action, [[1, 0, 0], [0, 0, 1]])

    def test_refusals(self, tmp_path: Path) -> None:
        def spoil(name: str, change: Callable[[Path], None], *parts: str) -> None:
            root = lerobot_v2(tmp_path / name, EPISODES)
            change(root)
            refused(root, *parts)

        def edit(**changes: object) -> Callable[[Path], None]:
            def change(root: Path) -> None:
                path = root / "meta/info.json"
                path.write_text(json.dumps(json.loads(path.read_text()) | changes))

            return change

        def put(change: Callable[[pa.Table], pa.Table], number: int = 1) -> Callable[[Path], None]:
            path = f"data/chunk-000/episode_{number:06d}.parquet"
            return lambda root: pq.write_table(change(pq.read_table(root / path)), root / path)

        def column(key: str, values: object) -> Callable[[pa.Table], pa.Table]:
            return lambda table: table.set_column(table.schema.get_field_index(key), key, pa.array(values))  # pyright: ignore

        first = "episode_000001.parquet"
        spoil("nan", put(column("action", [[0.0, np.nan]] * 6)), first, "actions: row 0, column 1: nan")
        spoil("null", put(column("action", [[0.0, 1.0]] * 5 + [None])), first, "action: row 5: is null")
        spoil("hole", put(column("action", [[0.0, None]] * 6)), first, "action: row 0: holds a null")
        spoil("wide", put(column("action", [[0.0] * 3] * 6)), first, "action: row 0: has 3 numbers", "says 2")
        spoil("text", put(column("action", ["a"] * 6)), first, "action")
        spoil("lost", put(lambda t: t.drop_columns(["action"])), first, "action: the file has no such column")
        spoil("twice", put(column("frame_index", [0, 1, 1, 2, 3, 4])), first, "frame 1 follows 1")
        spoil("holes", put(column("frame_index", [0, 1, 2, 4, 5, 6])), first, "frame 4 follows 2", "missing")
        spoil("double", put(column("episode_index", [0] * 6)), "episode 0 is also in")
        spoil("gone", lambda root: (root / "data/chunk-000" / first).unlink(), "total_episodes: says 4", "holds 3")
        spoil("fewer", put(lambda t: t[:3]), "total_frames: says", "holds")
        spoil("none", lambda root: shutil.rmtree(root / "data"), "no data/*/*.parquet")
        spoil("version", edit(codebase_version="v1.6"), "codebase_version: v1.6")
        spoil("odd", edit(codebase_version="new"), "info.json")
        spoil("bare", edit(features=None), "info.json")
        spoil("blind", edit(features={"action": {"dtype": "float32", "shape": [2]}}), "no observation is a vector")
        spoil("json", lambda root: bad_json(root / "meta/info.json"), "info.json: not JSON")
        content = (tmp_path / "twice/data/chunk-000/episode_000000.parquet").read_bytes()
        for length in (1, 100, len(content) - 1):
            spoil(f"cut{length}", lambda root, n=length: cut(root / "data/chunk-000" / first, n), first, "Parquet")
        spoil("empty", lambda root: cut(root / "data/chunk-000" / first, 0), first, "the file is empty")
        bomb = pickle.dumps(Bomb())
        spoil("bomb", lambda root: put_bytes(root / "data/chunk-000" / first, bomb), first, "a pickle", "never")
        root = lerobot_v2(tmp_path / "fine", EPISODES)
        refused(f"{root}::obs=observation.images.top", "observation.images.top", "is not a vector")
        refused(f"{root}::obs=observation.speed", "observation.speed: no such feature")


def bad_json(path: Path) -> None:
    path.write_text("{")


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


def put_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


class TestNpz:
    def test_natural_order_and_both_ways_to_keep_the_last_state(self, tmp_path: Path) -> None:
        dataset = read_dataset(npz_folder(tmp_path / "a", EPISODES))
        expect(dataset, list(EPISODES.values()))
        assert dataset.timeout[dataset.episode_ends - 1].all()
        following = np.concatenate([joined(each, slice(1, None)) for each in EPISODES.values()])
        np.testing.assert_array_equal(dataset.transitions.next_obs, following)
        without = read_dataset(npz_folder(tmp_path / "b", EPISODES, last_state=False))
        expect(without, list(EPISODES.values()), keep_last=False)

    def test_a_terminal_for_the_last_step(self, tmp_path: Path) -> None:
        dataset = read_dataset(npz_folder(tmp_path / "a", EPISODES, terminals=True))
        np.testing.assert_array_equal(np.flatnonzero(dataset.transitions.terminal) + 1, dataset.episode_ends)
        assert not dataset.timeout.any()

    def test_refusals(self, tmp_path: Path) -> None:
        def spoil(name: str, *parts: str, **arrays: object) -> None:
            folder = npz_folder(tmp_path / name, EPISODES)
            good = {"observations": np.zeros((7, 5)), "actions": np.zeros((6, 2)), "rewards": np.zeros(6)}
            kept = {key: array for key, array in (good | arrays).items() if array is not None}
            np.savez(folder / "episode_1.npz", **kept)  # pyright: ignore
            refused(folder, "episode_1.npz", *parts)

        spoil("objects", "actions: holds Python objects", "never unpickled", actions=np.array([Bomb()] * 6))
        spoil("nan", "observations: row 0, column 0: nan", observations=np.full((7, 5), np.nan))
        spoil("narrow", "observations", "episode_0.npz", observations=np.zeros((7, 4)))
        spoil("short", "rewards: has 5 rows", rewards=np.zeros(5))
        spoil("lost", "actions: the file has no such key", actions=None)
        spoil("fewer", "rewards: absent, but", rewards=None)
        spoil("none", "the episode is empty", actions=np.zeros((0, 2)))
        spoil("text", "rewards: holds", rewards=np.array(["a"] * 6))
        spoil("flag", "terminals: row 5: 3", terminals=np.int64(3))
        spoil("both", "next_observations: given, though", next_observations=np.zeros((6, 5)))
        assert not (tmp_path / "exploded").exists()
        folder = npz_folder(tmp_path / "damaged", EPISODES)
        whole, path = (folder / "episode_2.npz").read_bytes(), folder / "episode_2.npz"
        for content, part in (
            (pickle.dumps(Bomb()), "a pickle and is never unpickled"),
            (whole[: len(whole) // 2], "not a whole .npz file"),
            (b"", "empty"),
            (whole.replace(b"NUMPY", b"GRUMP"), "episode_2.npz"),
        ):
            path.write_bytes(content)
            refused(folder, "episode_2.npz", part)

    def test_a_zip_bomb_is_refused_by_its_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = npz_folder(tmp_path / "a", EPISODES)
        with zipfile.ZipFile(folder / "episode_0.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            header = io.BytesIO()
            np.save(header, np.zeros(1 << 22))
            archive.writestr("observations.npy", header.getvalue())
        monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1024}[name])
        refused(folder, "episode_0.npz", "GiB")

    def test_a_folder_of_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        refused(tmp_path / "a", "no LeRobot dataset", "no .npz episodes")
        refused(f"npz:{tmp_path / 'a'}", "holds no .npz episodes")


@pytest.mark.parametrize("target", FOREIGN)
class TestEveryForeignFormat:
    @pytest.mark.parametrize("discrete", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_round_trip_keeps_every_bit(self, tmp_path: Path, target: str, seed: int, discrete: bool) -> None:
        environment = None if discrete or seed else HOPPER
        dataset = replace(make_dataset(seed, rows=80, discrete=discrete), environment=environment)
        write_dataset(dataset, target.format(tmp_path))
        for source in (target.format(tmp_path), target.format(tmp_path).partition(":")[2]):
            again = read_dataset(source)
            assert_same(dataset, again)
            assert again.environment == environment
            assert dict(dataset.attributes).items() <= dict(again.attributes).items()

    def test_bounds_travel(self, tmp_path: Path, target: str) -> None:
        environment = EnvironmentSpec("Nowhere-v0", {}, (-2.0, 0.0, -8.0), (2.0, 4.0, 8.0))
        dataset = replace(make_dataset(), environment=environment)
        write_dataset(dataset, target.format(tmp_path))
        again = read_dataset(target.format(tmp_path))
        assert_same(dataset, again, action_tolerance=1e-6)
        assert again.environment == environment

    def test_rows_with_gaps_survive(self, tmp_path: Path, target: str) -> None:
        dataset = make_dataset(rows=80).take(np.flatnonzero(np.arange(80) % 5 != 2))
        dataset.timeout[-1] = not dataset.transitions.terminal[-1]
        write_dataset(dataset, target.format(tmp_path))
        assert_same(dataset, read_dataset(target.format(tmp_path)))

    def test_what_was_read_from_one_can_be_written_to_another(self, tmp_path: Path, target: str) -> None:
        """Several observation keys become several again, where their order allows it."""
        dataset = read_dataset(robomimic_file(tmp_path / "source.hdf5", EPISODES))
        write_dataset(dataset, target.format(tmp_path))
        assert_same(dataset, read_dataset(target.format(tmp_path)))
        swapped = read_dataset(f"{tmp_path}/source.hdf5::obs=robot0_eef_pos,object")
        write_dataset(swapped, target.format(tmp_path / "again"))
        assert_same(swapped, read_dataset(target.format(tmp_path / "again")))

    def test_writes_nothing_over_something_or_by_half(
        self, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_dataset(make_dataset(), target.format(tmp_path))
        assert list(tmp_path.iterdir()) == []
        monkeypatch.undo()
        write_dataset(make_dataset(), target.format(tmp_path))
        if not target.startswith("robomimic"):
            with pytest.raises(InputError, match="the folder is not empty"):
                write_dataset(make_dataset(1), target.format(tmp_path))
        assert_same(make_dataset(), read_dataset(target.format(tmp_path)))

    def test_a_damaged_sidecar(self, tmp_path: Path, target: str) -> None:
        write_dataset(make_dataset(), target.format(tmp_path))
        for text in ("{", "[]", '{"action_low": [1], "action_high": [0]}', '{"num_actions": -1}', '{"env_kwargs": 3}'):
            if target.startswith("robomimic"):
                with h5py.File(tmp_path / "a.hdf5", "a") as file:
                    file["data"].attrs["demosift"] = text
            else:
                path = next((tmp_path / "a").rglob("demosift.json"))
                path.write_text(text)
            refused(target.format(tmp_path), "not what demosift writes")


def test_lerobot_metadata_agree_with_the_frames(tmp_path: Path) -> None:
    """What LeRobot reads besides the frames: where episodes lie, tasks by name, statistics."""
    dataset = make_dataset(rows=200)
    write_dataset(dataset, f"lerobot:{tmp_path / 'a'}")
    info = json.loads((tmp_path / "a/meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_frames"], info["total_episodes"]) == (200, dataset.num_episodes)
    table = pq.read_table(tmp_path / "a" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(table.column_names) == set(info["features"])
    assert table.schema.field("observation.state").type == pa.list_(pa.float32(), 4)
    np.testing.assert_array_equal(table["next.done"], dataset.transitions.terminal)
    np.testing.assert_array_equal(table["next.truncated"], dataset.timeout)
    np.testing.assert_allclose(table["timestamp"], np.asarray(table["frame_index"]) / info["fps"], rtol=1e-6)
    episodes = pq.read_table(tmp_path / "a/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["dataset_to_index"] for row in episodes] == dataset.episode_ends.tolist()
    stats = json.loads((tmp_path / "a/meta/stats.json").read_text())["observation.state"]
    obs = dataset.transitions.obs.astype(np.float64)
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(stats[name], getattr(obs, name)(axis=0), rtol=1e-9)
    assert stats["count"] == [200]
    tasks = pq.read_schema(tmp_path / "a/meta/tasks.parquet")
    assert json.loads(tasks.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]


def sources(tmp_path: Path) -> dict[str, Path | str]:
    write_hdf5(make_dataset(rows=200), tmp_path / "native.hdf5")
    write_hdf5(make_dataset(rows=200, discrete=True), tmp_path / "discrete.hdf5")
    with h5py.File(tmp_path / "discrete.hdf5", "a") as file:
        del file.attrs["num_actions"]
    write_dataset(make_dataset(rows=40), f"minari:{tmp_path}/minari")
    return {
        "native": tmp_path / "native.hdf5",
        "discrete": tmp_path / "discrete.hdf5",
        "robomimic": robomimic_file(tmp_path / "robomimic.hdf5", EPISODES, next_obs=False, done=False),
        "lerobot": lerobot_v3(tmp_path / "lerobot", [EPISODES], done=False),
        "npz": npz_folder(tmp_path / "npz", {**EPISODES, 3: episode(3, 1)}, last_state=False),
        "minari": tmp_path / "minari",
    }


@pytest.mark.parametrize("kind", ["native", "discrete", "robomimic", "lerobot", "npz", "minari"])
def test_rows_from_disk_are_the_rows_in_memory(tmp_path: Path, kind: str) -> None:
    source = sources(tmp_path)[kind]
    dataset, rng = read_dataset(source), np.random.default_rng(0)
    for rows in (open_rows(source), open_rows(dataset)):
        assert (rows.num_rows, rows.obs_dim, rows.action_dim) == (len(dataset), dataset.obs_dim, dataset.action_dim)
        assert rows.discrete == dataset.discrete
        np.testing.assert_array_equal(rows.episode_starts, dataset.episode_starts)
        np.testing.assert_array_equal(rows.episode_ends, dataset.episode_ends)
        blocks = list(rows.blocks(7))
        assert max(len(obs) for obs, _ in blocks) <= 7
        indices = rng.integers(len(dataset), size=60)
        for (obs, action), where in (
            (map(np.concatenate, zip(*blocks, strict=True)), slice(None)),
            (rows.take(indices), indices),
        ):
            np.testing.assert_array_equal(obs, dataset.transitions.obs[where])
            np.testing.assert_array_equal(action, dataset.transitions.action[where])
            assert (obs.dtype, action.dtype) == (np.float32, dataset.transitions.action.dtype)
        assert (rows.origin is None) == (dataset.origin is None)
        if rows.origin is not None and dataset.origin is not None:
            np.testing.assert_array_equal(rows.origin.code, dataset.origin.code)
        assert rows.environment == dataset.environment


@pytest.mark.parametrize("kind", ["native", "discrete", "robomimic", "lerobot", "npz", "minari"])
def test_some_blocks_are_those_of_the_whole(tmp_path: Path, kind: str) -> None:
    source = sources(tmp_path)[kind]
    last = open_rows(source).numbers[-1]
    for rows in (open_rows(source), open_rows(read_dataset(source)), open_rows(f"{source}::without={last}")):
        for size in (1, 7, 1000):
            every, layout = list(rows.blocks(size)), rows.layout(size)
            assert layout.ends.tolist() == np.cumsum([len(obs) for obs, _ in every]).tolist()
            assert layout.apart[0]
            for start, stop in ((0, None), (1, 3), (2, None), (0, 1), (len(every) - 1, None)):
                for found, expected in zip(rows.blocks(size, start, stop), every[start:stop], strict=True):
                    np.testing.assert_array_equal(found[0], expected[0])
                    np.testing.assert_array_equal(found[1], expected[1])


def test_some_blocks_read_some_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LeRobot file may hold a million frames: a range of blocks reads its index, and the row groups it needs."""
    from demosift.data.formats.lerobot import reading

    root = lerobot_v3(tmp_path / "lerobot", [{number: episode(number, 10) for number in range(8)}], done=False)
    (path,) = (root / "data").glob("*/*.parquet")
    pq.write_table(pq.read_table(path), path, row_group_size=25)
    rows, groups = open_rows(root), []
    read_table = reading.read_table

    def spy(path: Path, columns: Any = None, row_groups: Any = None) -> Any:
        groups.append(row_groups)
        return read_table(path, columns, row_groups)

    monkeypatch.setattr(reading, "read_table", spy)
    expected = read_dataset(root).transitions.obs[18:36]
    del groups[:]
    np.testing.assert_array_equal(np.concatenate([obs for obs, _ in rows.blocks(6, 3, 6)]), expected)
    assert groups == [None, [0, 1]]  # the index, and episodes 2 and 3, which are frames 20 to 39


@pytest.mark.parametrize("absent", [(), ("next_observations",), ("timeouts",), ("timeouts", "next_observations")])
@pytest.mark.parametrize("chunked", [False, True])
def test_native_rows_whatever_is_absent(tmp_path: Path, absent: tuple[str, ...], chunked: bool) -> None:
    path = tmp_path / "a.hdf5"
    write_hdf5(make_dataset(3, rows=300), path)
    with h5py.File(path, "a") as file:
        for key in absent:
            del file[key]
        for key in ("observations", "actions") if chunked else ():
            content = np.asarray(file[key], np.float64)
            del file[key]
            file.create_dataset(key, data=content, chunks=(17, 2), compression="gzip")
    for limit in (None, 7):
        dataset, rows = read_dataset(path, max_episode_steps=limit), open_rows(path, max_episode_steps=limit)
        np.testing.assert_array_equal(rows.episode_ends, dataset.episode_ends)
        obs, action = map(np.concatenate, zip(*rows.blocks(13), strict=True))
        np.testing.assert_array_equal(obs, dataset.transitions.obs)
        np.testing.assert_array_equal(action, dataset.transitions.action)
        order = np.random.default_rng(1).permutation(len(dataset))
        np.testing.assert_array_equal(rows.take(order)[0], dataset.transitions.obs[order])


def test_rows_of_a_pair_have_the_same_units(tmp_path: Path) -> None:
    small, large = np.full((10, 3), 0.5, np.float32), np.full((10, 3), 2, np.float32)
    expert, supplementary = raw_file(tmp_path / "e.hdf5", actions=small), raw_file(tmp_path / "p.hdf5", actions=large)
    for mode in ("rescale", "clip"):
        both, rows = load(expert, supplementary, actions=mode), open_pair(expert, supplementary, actions=mode)
        for dataset, part in zip((both.expert, both.supplementary), rows, strict=True):
            assert dataset is not None
            np.testing.assert_array_equal(next(part.blocks())[1], dataset.transitions.action)
    with h5py.File(supplementary, "a") as file:
        file.attrs["action_low"], file.attrs["action_high"] = [-4.0] * 3, [4.0] * 3
    assert (open_pair(expert, supplementary)[0].take(np.arange(10))[1] == 0.125).all()
    folder = npz_folder(tmp_path / "npz", EPISODES)
    with pytest.raises(InputError, match="observations: columns: 5, but 2"):
        open_pair(expert, folder)
    discrete = (
        raw_file(tmp_path / "d.hdf5", actions=np.arange(10) % 4),
        raw_file(tmp_path / "f.hdf5", actions=np.zeros(10, int)),
    )
    assert [part.action_dim for part in open_pair(*discrete)] == [4, 4]


def in_memory(value: float, **options: Any) -> Dataset:
    """Ten rows whose actions are between minus this value and this value."""
    actions = np.linspace(-value, value, 10, dtype=np.float32)[:, None]
    obs = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    return Dataset.from_arrays(obs, actions, next_observations=obs, ends=[10], **options)


def test_data_in_memory_whose_bounds_differ_are_no_pair(tmp_path: Path) -> None:
    small, large = in_memory(0.99, action_mode="rescale"), in_memory(1.99, action_mode="rescale")
    message = "memory: actions: bounds differ from those of memory; use files of one environment"
    for read in (load, open_pair, check_pair):
        with pytest.raises(InputError) as refused:
            read(small, large)
        assert str(refused.value) == message
    write_hdf5(large, tmp_path / "large.hdf5")
    for read in (load, open_pair):
        with pytest.raises(InputError, match=r"large\.hdf5: actions: bounds differ from those of memory"):
            read(small, tmp_path / "large.hdf5")
    both = open_pair(small, large, actions="rescale")
    assert [part.bounds and part.bounds.high[0] for part in both] == pytest.approx([1.99, 1.99])


@pytest.mark.parametrize("mode", ["check", "clip", "rescale"])
def test_data_in_memory_beside_a_file_have_the_units_that_loading_gives(tmp_path: Path, mode: Any) -> None:
    """Only one of them states its bounds: they hold for both."""
    plain, stated = in_memory(0.5), in_memory(1.5, action_low=[-2.0], action_high=[2.0])
    for number, (dataset, name) in enumerate([(plain, "plain"), (stated, "stated")]):
        write_hdf5(dataset, tmp_path / f"{name}.hdf5")
        other = tmp_path / f"{name}.hdf5"
        pairs = [(other, (stated, plain)[number]), ((stated, plain)[number], other), (plain, stated)]
        for pair in pairs:
            both, rows = load(*pair, actions=mode), open_pair(*pair, actions=mode)
            for part, own in zip((both.expert, both.supplementary), rows, strict=True):
                assert part is not None
                assert own.bounds == part.bounds
                np.testing.assert_array_equal(own.take(np.arange(10))[1], part.transitions.action)
    largest = [next(part.blocks())[1].max() for part in open_pair(plain, tmp_path / "stated.hdf5")]
    assert largest == [0.25, 0.75]


def test_a_pair_is_joined_of_the_same_keys(tmp_path: Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5", EPISODES)
    folder = lerobot_v3(tmp_path / "b", [EPISODES])
    write_hdf5(read_dataset(path), tmp_path / "native.hdf5")
    for read in (load, open_pair):
        read(path, tmp_path / "native.hdf5")
        for other in (f"{path}::obs=robot0_eef_pos,object", folder):
            with pytest.raises(InputError, match=r"observations: joined from .*, but from object, robot0_eef_pos in"):
                read(path, other)


def test_parts_that_are_too_much_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = npz_folder(tmp_path / "a", {number: episode(number, 400) for number in range(6)})
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1024, "SC_PHYS_PAGES": 100}[name])
    with pytest.raises(InputError, match="a: claims"):
        read_dataset(folder)
    assert open_rows(folder).num_rows == 2400, "one part at a time fits"


def test_bad_numbers_show_when_their_block_is_read(tmp_path: Path) -> None:
    actions = np.zeros((10, 3))
    actions[7, 1] = 1.5
    obs = np.zeros((10, 2))
    obs[8, 1] = np.nan
    for changes, part in (
        ({"actions": actions}, "row 7, column 1: 1.5"),
        ({"observations": obs}, "row 8, column 1: nan"),
    ):
        rows = open_rows(raw_file(tmp_path / "a.hdf5", **changes))
        blocks = rows.blocks(4)
        next(blocks)
        with pytest.raises(InputError, match=part):
            list(blocks)
        with pytest.raises(InputError, match=part):
            rows.take(np.array([1, 8, 7]))
        assert len(rows.take(np.array([0, 1]))[0]) == 2
    with pytest.raises(IndexError):
        rows.take(np.array([10]))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"observations": np.zeros((10, 2, 2))}, "needs two axes"),
        ({"rewards": np.zeros(11)}, "11 rows"),
        ({"terminals": np.full(10, 2)}, "row 0: 2 is neither 0 nor 1"),
        ({"next_observations": np.zeros((10, 3))}, "3 columns"),
        ({"actions": np.zeros((10, 2), int)}, "2 columns of integers"),
        ({"actions": np.float32(1)}, "has shape ()"),
        ({"observations": np.zeros((0, 2)), "actions": None}, "no such key"),
        ({"next_observations": None, "timeouts": np.ones(10), "terminals": np.zeros(10)}, "the set is empty"),
    ],
)
def test_a_bad_structure_shows_when_opened(tmp_path: Path, changes: dict[str, object], part: str) -> None:
    with pytest.raises(InputError) as error:
        open_rows(raw_file(tmp_path / "a.hdf5", **changes))
    assert part in str(error.value)


GROWTH = """
import resource, sys
from demosift.data import open_rows
rows = open_rows(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import numpy as np
total = sum(len(obs) for obs, _ in rows.blocks())
for seed in range(3):
    rows.take(np.random.default_rng(seed).integers(rows.num_rows, size=20_000))
assert total == rows.num_rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_reading_rows_needs_far_less_memory_than_the_file(tmp_path: Path) -> None:
    """A sparse file of 0.5 GB: blocks of it are read, never the whole; a mapping of all of it would show as well."""
    path, num_rows = tmp_path / "large.hdf5", 1_000_000
    with h5py.File(path, "w") as file:
        for key, width in (("observations", 64), ("next_observations", 64), ("actions", 8)):
            file.create_dataset(key, (num_rows, width), "f4", fillvalue=0).id.flush()
            file[key][num_rows - 1] = 0.5  # pyright: ignore
        for key in ("terminals", "timeouts"):
            file.create_dataset(key, data=np.arange(num_rows) % 1000 == 999)
    assert isinstance(open_rows(path), HDF5Rows)
    done = subprocess.run([sys.executable, "-c", GROWTH, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000, f"{int(done.stdout)} kB for a file of {path.stat().st_size // 1024} kB"


def test_digests_tell_sources_apart(tmp_path: Path) -> None:
    found = sources(tmp_path)
    digests = {kind: digest_source(source) for kind, source in found.items()}
    assert len(set(digests.values())) == len(digests)
    native, copy = Path(found["native"]), tmp_path / "renamed.hdf5"
    copy.write_bytes(native.read_bytes())
    assert digest_source(copy) == digests["native"], "a file may be renamed"
    with h5py.File(copy, "a") as file:
        file["observations"][3, 1] += 1  # pyright: ignore
    assert digest_source(copy) != digests["native"]
    (Path(found["npz"]) / "episode_2.npz").rename(Path(found["npz"]) / "episode_99.npz")
    assert digest_source(found["npz"]) != digests["npz"], "episodes come in another order"
    assert digest_source(f"{found['robomimic']}::obs=object") != digests["robomimic"]
    with pytest.raises(InputError, match=r"nowhere\.hdf5: cannot read"):
        digest_source(tmp_path / "nowhere.hdf5")


def test_duplicate_episodes_are_data_like_any_other(tmp_path: Path) -> None:
    twice = {0: EPISODES[0], 1: EPISODES[0]}
    for source in (npz_folder(tmp_path / "n", twice), robomimic_file(tmp_path / "r.hdf5", twice)):
        assert read_dataset(source).num_episodes == 2
    assert frames(0, EPISODES[0], 0).num_rows == 5
