"""`demosift filter`: which rows are kept, and that what is written is their part of the original and nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import Episode, episode, lerobot_v2, lerobot_v3, npz_folder, robomimic_file
from test_data import assert_same, make_dataset, raw_file

from demosift.cli.main import main
from demosift.data import digest_source, read_dataset, write_dataset, write_hdf5
from demosift.data.selection import Run, Selection
from demosift.sift.filtering import filter_dataset
from demosift.sift.scoring import score
from demosift.types import Dataset, InputError

EPISODES = {number: episode(number, 5 + number) for number in (0, 1, 2, 10)}
Weights = np.ndarray


def score_folder(folder: Path, data: Path | str, weight: Weights, role: str = "supplementary", **changes: Any) -> Path:
    """What `demosift score` writes, for these weights of one source; the other source is unknown to the tests."""
    dataset = read_dataset(data, changes.pop("actions", "check"))
    lengths = np.diff(dataset.episode_ends, prepend=0)
    number = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(len(dataset)) - np.repeat(dataset.episode_starts, lengths)
    other = "expert" if role == "supplementary" else "supplementary"
    parts = [(other, np.zeros(2, int), np.arange(2), np.full(2, 7.0)), (role, number, step, weight)]
    if role == "expert":
        parts.reverse()
    columns = {
        "source": np.concatenate([np.full(len(part[1]), part[0]) for part in parts]),
        "episode": np.concatenate([part[1] for part in parts]),
        "step": np.concatenate([part[2] for part in parts]),
        "weight": np.concatenate([part[3] for part in parts]),
    }
    folder.mkdir()
    pq.write_table(pa.table({**columns, "spread": np.zeros(len(weight) + 2)}), folder / "scores.parquet")
    log_weight = np.add.reduceat(np.log(np.maximum(weight, 1e-9)), dataset.episode_starts) / lengths
    rank = np.empty(len(lengths), int)
    rank[np.argsort(-log_weight, kind="stable")] = np.arange(len(lengths)) + 1
    episodes = {
        "source": [other] + [role] * len(lengths),
        "episode": [0, *range(len(lengths))],
        "rows": [2, *lengths],
        "log_weight": [0.0, *log_weight],
        "rank": [1, *rank],
    }
    if "numbers" in changes:  # files of before have none
        episodes["number"] = [0, *changes.pop("numbers")]
    pq.write_table(pa.table(episodes), folder / "episodes.parquet")
    summary = {
        role: {"path": str(data), "digest": digest_source(data), "rows": len(dataset), "episodes": len(lengths)},
        other: {"path": "elsewhere.hdf5", "digest": "0" * 64, "rows": 2, "episodes": 1},
        "threshold": 0.5,
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return folder


def weights_of(dataset: Dataset, seed: int = 0) -> Weights:
    return np.random.default_rng(seed).uniform(0, 1, len(dataset))


def make_source(kind: str, folder: Path, episodes: dict[int, Episode] = EPISODES, known: bool = True) -> Path | str:
    """A source of each format; `known` says whether the states after episodes are stored."""
    if kind == "hdf5":
        write_hdf5(make_dataset(rows=90), folder / "data.hdf5")
        with h5py.File(folder / "data.hdf5", "a") as file:
            file["infos/qpos"] = np.arange(90 * 3.0).reshape(90, 3)
            file.create_dataset(
                "infos/image", data=np.arange(90 * 4, dtype=np.int64).reshape(90, 2, 2), chunks=(7, 2, 2)
            )
            file["metadata/weights"] = np.eye(4)
            if not known:
                del file["next_observations"], file["timeouts"]
        return folder / "data.hdf5"
    if kind == "robomimic":
        return robomimic_file(folder / "data.hdf5", episodes, next_obs=known, done=known)
    if kind == "lerobot":
        halves = [{k: v for k, v in episodes.items() if k < 2}, {k: v for k, v in episodes.items() if k > 1}]
        return lerobot_v3(folder / "data", halves, done=known)
    if kind.startswith("v2"):
        return lerobot_v2(folder / "data", episodes, kind, done=known)
    if kind == "npz":
        return npz_folder(folder / "data", episodes, last_state=known)
    write_dataset(make_dataset(rows=90), f"minari:{folder / 'data-v0'}")
    return folder / "data-v0"


KINDS = ["hdf5", "robomimic", "lerobot", "v2.0", "v2.1", "npz", "minari"]


def out_of(kind: str, folder: Path) -> str:
    return str(folder / ("kept.hdf5" if kind in ("hdf5", "robomimic") else "kept-v0"))


def same_rows(kept: Dataset, expected: Dataset) -> None:
    assert_same(replace(kept, origin=None), replace(expected, origin=None))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_single_rows(tmp_path: Path, kind: str, known: bool) -> None:
    """The file's rows are those above the threshold, their successors untouched, and a gap ends an episode."""
    source = make_source(kind, tmp_path, known=known)
    dataset = read_dataset(source)
    weight = weights_of(dataset)
    done = filter_dataset(source, score_folder(tmp_path / "s", source, weight), out_of(kind, tmp_path), threshold=0.4)
    kept = read_dataset(done.out)
    rows = np.flatnonzero(weight >= 0.4)
    same_rows(kept, replace(dataset.take(rows), timeout=kept.timeout))
    lasts = np.append((np.diff(rows) > 1) | (dataset.transitions.terminal | dataset.timeout)[rows[:-1]], True)
    np.testing.assert_array_equal(kept.transitions.terminal | kept.timeout, lasts)
    assert (done.kept_rows, done.rows) == (len(rows), len(dataset))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes(tmp_path: Path, kind: str, known: bool) -> None:
    source = make_source(kind, tmp_path, known=known)
    dataset = read_dataset(source)
    weight = weights_of(dataset)
    done = filter_dataset(source, score_folder(tmp_path / "s", source, weight), out_of(kind, tmp_path), episodes=2)
    score = [np.log(part).mean() for part in np.split(weight, dataset.episode_ends[:-1])]
    best = np.sort(np.argsort(score)[-2:])
    lengths = np.diff(dataset.episode_ends, prepend=0)
    rows = np.flatnonzero(np.isin(np.repeat(np.arange(len(lengths)), lengths), best))
    same_rows(read_dataset(done.out), dataset.take(rows))
    assert (done.kept_episodes, done.episodes) == (2, dataset.num_episodes)


@pytest.mark.parametrize("kind", KINDS)
def test_keeping_everything_keeps_everything(tmp_path: Path, kind: str) -> None:
    source = make_source(kind, tmp_path)
    dataset = read_dataset(source)
    scores = score_folder(tmp_path / "s", source, np.ones(len(dataset)))
    kept = read_dataset(filter_dataset(source, scores, out_of(kind, tmp_path)).out)
    assert_same(kept, dataset)
    known = {key: value for key, value in dataset.attributes.items() if key != "absent_keys"}
    assert known.items() <= dict(kept.attributes).items()


def test_rules() -> None:
    selection = Selection(np.array([1, 1, 0, 1, 1, 1, 0, 0, 1], bool), np.array([2, 6, 9]))
    assert list(selection.runs()) == [Run(0, 0, 2), Run(1, 1, 4), Run(2, 2, 3)]
    assert selection.episodes.tolist() == [0, 1, 2]
    assert not selection.whole
    assert selection.run_ends.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 1]
    both = Selection(np.array([1, 1, 1, 1, 0], bool), np.array([2, 4, 5]))
    assert list(both.runs()) == [Run(0, 0, 2), Run(1, 0, 2)], "episodes do not run together"
    assert both.whole


def test_the_share_that_weighs_most(tmp_path: Path) -> None:
    source = raw_file(tmp_path / "a.hdf5")
    weight = np.array([0.5, 0.9, 0.5, 0.1, 0.5, 0.8, 0.2, 0.3, 0.5, 0.7])
    scores = score_folder(tmp_path / "s", source, weight)
    kept = read_dataset(filter_dataset(source, scores, tmp_path / "k.hdf5", top=0.4).out)
    np.testing.assert_array_equal(kept.transitions.reward, [0, 1, 5, 9], "of equal weights, the earlier")
    share = filter_dataset(source, scores, tmp_path / "l.hdf5", episodes=0.5)
    assert (share.kept_episodes, share.kept_rows) == (
        1,
        6 if np.log(weight[4:]).mean() > np.log(weight[:4]).mean() else 4,
    )
    default = filter_dataset(source, scores, tmp_path / "m.hdf5")
    assert default.kept_rows == 7
    assert default.rule == "weight at least 0.5"


def test_the_expert_can_be_filtered_too(tmp_path: Path) -> None:
    source = raw_file(tmp_path / "a.hdf5")
    scores = score_folder(tmp_path / "s", source, np.linspace(0, 1, 10), role="expert")
    assert filter_dataset(source, scores, tmp_path / "k.hdf5").kept_rows == 5


class TestNative:
    def test_everything_of_a_row_goes_with_it(self, tmp_path: Path) -> None:
        source = make_source("hdf5", tmp_path)
        dataset = read_dataset(source)
        weight = weights_of(dataset)
        out = filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k.hdf5").out
        with h5py.File(source) as old, h5py.File(out) as new:
            for key in ("infos/qpos", "infos/image", "infos/origin", "rewards"):
                np.testing.assert_array_equal(np.asarray(new[key]), np.asarray(old[key])[weight >= 0.5])
                assert new[key].dtype == old[key].dtype  # pyright: ignore
            np.testing.assert_array_equal(np.asarray(new["metadata/weights"]), np.eye(4))
            assert dict(new.attrs) == dict(old.attrs)
            assert np.array_equal(np.asarray(new["infos/origin"].attrs["names"]), ["clean", "noisy"])
        kept = read_dataset(out)
        assert kept.origin is not None
        assert dataset.origin is not None
        np.testing.assert_array_equal(kept.origin.code, dataset.origin.code[weight >= 0.5])

    def test_whole_episodes_keep_rows_that_were_never_scored(self, tmp_path: Path) -> None:
        """Without successors an episode's last row is not read; it is data of the episode all the same."""
        source = raw_file(tmp_path / "a.hdf5", next_observations=None)
        scores = score_folder(tmp_path / "s", source, np.array([0.1] * 4 + [0.9] * 5))
        out = filter_dataset(source, scores, tmp_path / "k.hdf5", episodes=1).out
        with h5py.File(out) as file:
            np.testing.assert_array_equal(np.asarray(file["rewards"]), [4, 5, 6, 7, 8, 9])
            np.testing.assert_array_equal(np.asarray(file["timeouts"]), [0, 0, 0, 0, 0, 1])
            assert "next_observations" not in file

    def test_links_are_refused(self, tmp_path: Path) -> None:
        source = make_source("hdf5", tmp_path)
        with h5py.File(source, "a") as file:
            file["infos/elsewhere"] = h5py.ExternalLink("/etc/passwd", "/")
        scores = score_folder(tmp_path / "s", source, np.ones(90))
        with pytest.raises(InputError, match="infos/elsewhere: is a link"):
            filter_dataset(source, scores, tmp_path / "k.hdf5")
        with h5py.File(source, "a") as file:
            del file["infos/elsewhere"]
            file["infos/self"] = file["infos"]
        scores = score_folder(tmp_path / "t", source, np.ones(90))
        with pytest.raises(InputError, match="infos/self: holds itself"):
            filter_dataset(source, scores, tmp_path / "k.hdf5")
        assert not (tmp_path / "k.hdf5").exists()


class TestRobomimic:
    def test_whole_demonstrations_keep_names_masks_and_images(self, tmp_path: Path) -> None:
        source = make_source("robomimic", tmp_path)
        dataset = read_dataset(source)
        weight = np.repeat([0.1, 0.9, 0.2, 0.8], np.diff(dataset.episode_ends, prepend=0))
        out = filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k.hdf5", episodes=2).out
        with h5py.File(out) as new, h5py.File(source) as old:
            assert sorted(new["data"]) == ["demo_1", "demo_10"]  # pyright: ignore
            assert new["mask/train"][()].tolist() == [b"demo_1"]  # pyright: ignore
            assert new["data"].attrs["total"] == 6 + 15
            assert new["data"].attrs["env_args"] == old["data"].attrs["env_args"]
            for key in ("states", "obs/agentview_image", "next_obs/agentview_image"):
                a, b = (file[f"data/demo_10/{key}"] for file in (new, old))
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            assert dict(new["data/demo_1"].attrs) == dict(old["data/demo_1"].attrs)

    def test_stretches_become_demonstrations(self, tmp_path: Path) -> None:
        source = make_source("robomimic", tmp_path, known=False)
        dataset = read_dataset(source)
        weight = np.ones(len(dataset))
        weight[[2, 3]] = 0
        out = filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k.hdf5").out
        with h5py.File(out) as new, h5py.File(source) as old:
            demos = [new[f"data/demo_{i}"] for i in range(len(new["data"]))]  # pyright: ignore
            assert [demo.attrs["source_demo"] for demo in demos] == ["demo_0", "demo_1", "demo_2", "demo_10"]
            assert [demo.attrs["num_samples"] for demo in demos] == [2, 5, 6, 14]
            images = np.asarray(old["data/demo_0/obs/agentview_image"])
            np.testing.assert_array_equal(np.asarray(demos[0]["next_obs/agentview_image"]), images[1:3])  # pyright: ignore
            assert new["mask/train"][()].tolist() == [b"demo_0", b"demo_1"]  # pyright: ignore

    def test_filter_key(self, tmp_path: Path) -> None:
        source = make_source("robomimic", tmp_path)
        dataset = read_dataset(source)
        weight = np.repeat([0.1, 0.9, 0.2, 0.8], np.diff(dataset.episode_ends, prepend=0))
        scores = score_folder(tmp_path / "s", source, weight)
        done = filter_dataset(source, scores, tmp_path / "k.hdf5", episodes=2, filter_key="sifted")
        with h5py.File(done.out) as new, h5py.File(source) as old:
            assert new["mask/sifted"][()].tolist() == [b"demo_1", b"demo_10"]  # pyright: ignore
            assert "sifted" not in old["mask"]  # pyright: ignore
        same_rows(read_dataset(done.out), dataset)
        rows = np.flatnonzero(np.isin(np.repeat(range(4), np.diff(dataset.episode_ends, prepend=0)), [1, 3]))
        same_rows(read_dataset(f"{done.out}::filter=sifted"), dataset.take(rows))
        for options, part in (
            ({"episodes": 2, "filter_key": "train"}, "mask/train"),
            ({"episodes": 2, "filter_key": "a/b"}, "not a name"),
            ({"episodes": 2, "filter_key": "x", "weights": True}, "not both"),
        ):
            with pytest.raises(InputError, match=part):
                filter_dataset(source, scores, tmp_path / "l.hdf5", **options)
        mixed = score_folder(tmp_path / "t", source, weights_of(dataset))
        with pytest.raises(InputError, match="whole demonstrations"):
            filter_dataset(source, mixed, tmp_path / "l.hdf5", filter_key="x")
        native = raw_file(tmp_path / "native.hdf5")
        with pytest.raises(InputError, match="not a robomimic file"):
            filter_dataset(
                native, score_folder(tmp_path / "u", native, np.ones(10)), tmp_path / "l.hdf5", filter_key="x"
            )
        assert not (tmp_path / "l.hdf5").exists()


class TestLeRobot:
    def test_version_3_metadata_agree(self, tmp_path: Path) -> None:
        source = make_source("lerobot", tmp_path)
        weight = np.repeat([0.1, 0.9, 0.2, 0.8], [5, 6, 7, 15])
        out = Path(filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k", episodes=2).out)
        info = json.loads((out / "meta/info.json").read_text())
        assert (info["total_episodes"], info["total_frames"], info["splits"]) == (2, 21, {"train": "0:2"})
        assert info["codebase_version"] == "v3.0"
        table = pq.read_table(out / "data/chunk-000/file-000.parquet")
        assert table["episode_index"].to_pylist() == [0] * 6 + [1] * 15
        assert table["index"].to_pylist() == list(range(21))
        assert table["frame_index"].to_pylist() == [*range(6), *range(15)]
        assert table["task_index"].to_pylist() == [1] * 6 + [0] * 15
        rows = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        old = {
            row["episode_index"]: row
            for file in (0, 1)
            for row in pq.read_table(Path(source) / f"meta/episodes/chunk-000/file-{file:03d}.parquet").to_pylist()
        }
        for row, number, span in zip(rows, (1, 10), ((0, 6), (6, 21)), strict=True):
            assert (row["dataset_from_index"], row["dataset_to_index"]) == span
            assert row["tasks"] == old[number]["tasks"]
            for key in ("from_timestamp", "to_timestamp", "file_index"):
                key = f"videos/observation.images.top/{key}"
                assert row[key] == old[number][key], "videos are not cut, so their times stay"
            assert row["stats/observation.images.top/mean"] == old[number]["stats/observation.images.top/mean"]
            np.testing.assert_allclose(row["stats/action/mean"], EPISODES[number]["actions"].mean(axis=0), rtol=1e-5)
        stats = json.loads((out / "meta/stats.json").read_text())
        actions = np.concatenate([EPISODES[1]["actions"], EPISODES[10]["actions"]])
        np.testing.assert_allclose(stats["action"]["std"], actions.std(axis=0), rtol=1e-5)
        np.testing.assert_allclose(stats["observation.images.top"]["mean"], [[[(6 * 1 + 15 * 10) / 21]]] * 3)
        assert (out / "videos/observation.images.top/chunk-000/file-000.mp4").is_file()
        assert (out / "meta/tasks.parquet").read_bytes() == (Path(source) / "meta/tasks.parquet").read_bytes()

    @pytest.mark.parametrize("version", ["v2.0", "v2.1"])
    def test_version_2_metadata_agree(self, tmp_path: Path, version: str) -> None:
        source = make_source(version, tmp_path)
        weight = np.repeat([0.1, 0.9, 0.2, 0.8], [5, 6, 7, 15])
        out = Path(filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k", episodes=2).out)
        info = json.loads((out / "meta/info.json").read_text())
        assert (info["total_episodes"], info["total_frames"], info["total_videos"]) == (2, 21, 2)
        assert sorted(path.name for path in out.glob("data/*/*")) == [
            "episode_000000.parquet",
            "episode_000001.parquet",
        ]
        videos = sorted(out.glob("videos/chunk-000/observation.images.top/*"))
        assert [path.read_bytes() for path in videos] == [b"video 1", b"video 10"]
        lines = [json.loads(line) for line in (out / "meta/episodes.jsonl").read_text().splitlines()]
        assert [(line["episode_index"], line["length"], line["tasks"]) for line in lines] == [
            (0, 6, ["task 1"]),
            (1, 15, ["task 0"]),
        ]
        assert (out / "meta/episodes_stats.jsonl").exists() == (version == "v2.1")
        assert (out / "meta/stats.json").exists() == (version == "v2.0")

    def test_stretches_keep_their_times_and_states(self, tmp_path: Path) -> None:
        source = make_source("lerobot", tmp_path, known=False)
        dataset = read_dataset(source)
        weight = np.ones(len(dataset))
        weight[1] = 0
        out = Path(filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "k").out)
        info = json.loads((out / "meta/info.json").read_text())
        assert info["features"]["next.observation.state"]["shape"] == [3]
        table = pq.read_table(out / "data/chunk-000/file-000.parquet")
        assert table["timestamp"].to_pylist()[:3] == pytest.approx([0, 0.2, 0.3]), "where the video has them"
        assert table["frame_index"].to_pylist()[:3] == [0, 0, 1]

    def test_a_missing_video_is_said(self, tmp_path: Path) -> None:
        source = Path(make_source("v2.1", tmp_path))
        weight = np.ones(33)
        scores = score_folder(tmp_path / "s", source, weight)
        (source / "videos/chunk-000/observation.images.top/episode_000002.mp4").unlink()
        with pytest.raises(InputError, match=r"episode_000002.mp4: the video of a kept episode is missing"):
            filter_dataset(source, scores, tmp_path / "k")
        assert not (tmp_path / "k").exists()

    @pytest.mark.parametrize("known", [True, False])
    def test_weights_per_frame(self, tmp_path: Path, known: bool) -> None:
        source = make_source("lerobot", tmp_path, {**EPISODES, 3: episode(3, 1)}, known=known)
        dataset = read_dataset(source)
        weight = weights_of(dataset)
        scores = score_folder(tmp_path / "s", source, weight)
        done = filter_dataset(source, scores, tmp_path / "w", episodes=2, weights=True)
        table = pq.read_table(Path(done.out) / "weights.parquet")
        assert table.column_names == ["episode_index", "frame_index", "index", "weight"]
        lengths = {0: 5, 1: 6, 2: 7, 3: 1, 10: 15} if known else {0: 5, 1: 6, 2: 7, 10: 15}
        expected = [(number, frame) for number, length in lengths.items() for frame in range(length)]
        assert list(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True)) == expected
        if known:
            np.testing.assert_array_equal(table["weight"], weight)
        else:
            assert table["weight"].to_pylist()[3] == table["weight"].to_pylist()[4], "the last frame has no score"
            np.testing.assert_array_equal(np.asarray(table["weight"])[:4], weight[:4])
        index = pq.read_table(Path(source) / "data/chunk-000/file-001.parquet", columns=["index"])["index"]
        assert set(table["index"].to_pylist()[-15:]) <= set(index.to_pylist())
        listed = json.loads((Path(done.out) / "episodes.json").read_text())
        assert len(listed) == 2
        assert set(listed) <= {0, 1, 2, 3, 10}


def test_weights_of_other_sources(tmp_path: Path) -> None:
    source = raw_file(tmp_path / "a.hdf5")
    weight = np.linspace(0, 1, 10)
    done = filter_dataset(source, score_folder(tmp_path / "s", source, weight), tmp_path / "w", weights=True)
    table = pq.read_table(Path(done.out) / "weights.parquet").to_pydict()
    assert table["episode_index"] == [0] * 4 + [1] * 6
    assert table["frame_index"] == [*range(4), *range(6)]
    assert json.loads((Path(done.out) / "episodes.json").read_text()) == [1]


def test_weights_name_the_demonstrations_of_a_robomimic_file(tmp_path: Path) -> None:
    source = make_source("robomimic", tmp_path)
    scores = score_folder(tmp_path / "s", source, np.repeat([0.1, 0.9, 0.2, 0.8], [5, 6, 7, 15]), numbers=[0, 1, 2, 10])
    out = Path(filter_dataset(source, scores, tmp_path / "w", episodes=2, weights=True).out)
    assert json.loads((out / "episodes.json").read_text()) == [1, 10]
    assert pq.read_table(out / "weights.parquet")["episode_index"].to_pylist()[-15:] == [10] * 15
    assert not (out / "delete_episodes.txt").exists(), "a command of LeRobot's is no use for other data"


def test_a_cut_end_takes_the_last_frame_along(tmp_path: Path) -> None:
    source = make_source("lerobot", tmp_path, known=False)
    scores = score_folder(tmp_path / "s", source, np.repeat([0.9, 0.9, 0.9, 0.1], [4, 5, 6, 14]))
    out = Path(filter_dataset(source, scores, tmp_path / "w", weights=True).out)
    light = [cut for cut in json.loads((out / "cuts.json").read_text())["cuts"] if cut["why"] == "low weight"]
    assert [(cut["start"], cut["stop"]) for cut in light] == [(0, 15)], "it has no row, and must not stay alone"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "target", ["minari:{}/to-v0", "lerobot:{}/to", "npz:{}/to", "robomimic:{}/to.hdf5", "{}/to.hdf5"]
)
def test_into_another_format(tmp_path: Path, kind: str, target: str) -> None:
    source = make_source(kind, tmp_path)
    dataset = read_dataset(source)
    weight = weights_of(dataset)
    scores = score_folder(tmp_path / "s", source, weight)
    kept = read_dataset(filter_dataset(source, scores, target.format(tmp_path)).out)
    same_rows(kept, replace(dataset.take(weight >= 0.5), timeout=kept.timeout))


def test_actions_in_units_nobody_states(tmp_path: Path) -> None:
    """Joint angles, say: they go into another format as they are."""
    content = {number: {**each, "actions": 90 * each["actions"]} for number, each in EPISODES.items()}
    source = lerobot_v3(tmp_path / "data", [content])
    with pytest.raises(InputError, match="--actions rescale"):
        read_dataset(source)
    scored = read_dataset(source, actions="rescale")
    scores = score_folder(tmp_path / "s", source, np.ones(len(scored)), actions="rescale")
    filter_dataset(source, scores, tmp_path / "k", episodes=2)
    out = filter_dataset(source, scores, tmp_path / "k.hdf5").out
    with h5py.File(out) as file:
        expected = np.concatenate([each["actions"] for each in content.values()])
        np.testing.assert_allclose(np.asarray(file["actions"]), expected, rtol=1e-5, atol=1e-4)


def test_minari_opens_the_kept_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_dataset(make_dataset(rows=90), "minari:aa/all-v0")
    dataset = read_dataset("minari:aa/all-v0")
    scores = score_folder(tmp_path / "s", "minari:aa/all-v0", weights_of(dataset))
    done = filter_dataset("minari:aa/all-v0", scores, "minari:aa/best-v0", episodes=3)
    theirs = minari.load_dataset("aa/best-v0")
    assert (theirs.total_episodes, theirs.total_steps) == (3, done.kept_rows)
    assert [episode.id for episode in theirs.iterate_episodes()] == [0, 1, 2]
    assert all("origin" in (episode.infos or {}) for episode in theirs.iterate_episodes())


def test_the_data_must_be_what_was_scored(tmp_path: Path) -> None:
    source = raw_file(tmp_path / "a.hdf5")
    scores = score_folder(tmp_path / "s", source, np.ones(10))
    other = raw_file(tmp_path / "b.hdf5", rewards=np.zeros(10))
    with pytest.raises(InputError, match=r"b\.hdf5: not what .* has scores of"):
        filter_dataset(other, scores, tmp_path / "k.hdf5")
    with h5py.File(source, "a") as file:
        file["rewards"][0] = 5  # pyright: ignore
    with pytest.raises(InputError, match="changed since"):
        filter_dataset(source, scores, tmp_path / "k.hdf5")
    assert not (tmp_path / "k.hdf5").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--threshold", "2"], "no row weighs 2; the heaviest weighs 1"),
        (["--top", "0"], "'0' is not a number above 0, at most 1"),
        (["--top", "0.01"], "0.01 of 10 rows is less than one"),
        (["--top", "1.5"], "'1.5' is not a number"),
        (["--episodes", "3"], "a number up to 2"),
        (["--episodes", "1.5"], "neither a share"),
        (["--episodes", "0.1"], "neither a share"),
        (["--episodes", "-1"], "'-1' is not a number above 0"),
        (["--episodes", "nan"], "'nan' is not a number above 0"),
        (["--threshold", "-1"], "'-1' is not a number above 0"),
        (["--threshold", "inf"], "'inf' is not a number above 0"),
        (["--top", "0.5", "--threshold", "0.5"], "only one of"),
        (["--scores", "nowhere"], "nowhere: no scores here"),
        (["--scores", "damaged"], "not a summary of scores"),
        (["--scores", "torn"], "scores.parquet: cannot read the scores"),
        (["--scores", "fewer"], "not a finite number for each of 11 rows"),
        (["--out", "kept.csv"], "kept.csv"),
        (["--out", "a.hdf5"], "a.hdf5 is what is read"),
        (["--out", "link/a.hdf5"], "a.hdf5 is what is read"),
        (["--out", "robomimic:a.hdf5"], "a.hdf5 is what is read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = raw_file(tmp_path / "a.hdf5")
    score_folder(tmp_path / "s", source, np.linspace(0, 1, 10))
    entry = {"digest": digest_source(source), "rows": 11}
    score_folder(tmp_path / "fewer", source, np.ones(10), supplementary=entry)
    score_folder(tmp_path / "damaged", source, np.ones(10), threshold="much")
    (score_folder(tmp_path / "torn", source, np.ones(10)) / "scores.parquet").write_bytes(b"PAR1")
    (tmp_path / "link").symlink_to(".")
    before, content = sorted(path.name for path in tmp_path.iterdir()), source.read_bytes()
    assert main(["filter", str(source), "--scores", "s", "--out", "k.hdf5", *flags]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert message in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert source.read_bytes() == content


def test_nothing_is_written_into_the_folder_that_is_read(tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "data" / "kept"):
        with pytest.raises(InputError, match="is what is read"):
            filter_dataset(f"npz:{tmp_path}", tmp_path, f"npz:{out}")


def test_reads_what_score_writes(tmp_path: Path) -> None:
    """Three of six episodes are the expert's own; they are the ones that are kept."""
    halves = make_dataset(1, rows=120), make_dataset(2, rows=120)
    write_hdf5(halves[0], tmp_path / "expert.hdf5")
    for number, half in enumerate(halves):
        for index, part in enumerate(np.split(np.arange(120), 3)):
            arrays = {"observations": half.transitions.obs, "actions": half.transitions.action}
            arrays |= {"rewards": half.transitions.reward, "next_observations": half.transitions.next_obs}
            (tmp_path / "pile").mkdir(exist_ok=True)
            path = tmp_path / "pile" / f"{2 * index + number}.npz"
            np.savez(path, **{key: array[part] for key, array in arrays.items()})  # pyright: ignore
    score(tmp_path / "expert.hdf5", tmp_path / "pile", out=tmp_path / "s", scorer="neighbours", members=1, folds=2)
    done = filter_dataset(tmp_path / "pile", tmp_path / "s", tmp_path / "kept", episodes=0.5)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["0.npz", "2.npz", "4.npz"]
    assert done.kept_rows == 120
    assert filter_dataset(tmp_path / "expert.hdf5", tmp_path / "s", tmp_path / "e.hdf5", top=0.5).kept_rows == 60


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = raw_file(tmp_path / "a.hdf5")
    scores = score_folder(tmp_path / "s", source, np.linspace(0, 1, 10))
    command = ["filter", str(source), "--scores", str(scores), "--out", str(tmp_path / "k.hdf5")]
    assert main([*command, "--top", "0.3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kept_rows"], answer["rows"], answer["kept_episodes"]) == (3, 10, 1)
    assert main([*command, "--episodes", "1"]) == 0
    assert "6 of 10 transitions (60.0%) of 1 of 2 episodes, the 1 best episodes" in capsys.readouterr().out
