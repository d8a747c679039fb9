"""Pictures of datasets: found, decoded, embedded, cached, joined to the state, and scored."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import Episode, lerobot_v3, robomimic_file
from pictures import SIDE, draw, episodes, save_model, tiny_encoder, with_videos, write_video
from PIL import Image
from safetensors.numpy import save
from sklearn.decomposition import PCA

import demosift as ds
from demosift.cli.main import main
from demosift.data import digest_source, open_rows
from demosift.data.features import FeatureRows, fit_components, read_features
from demosift.files import cache_folder
from demosift.policy import read_tensors
from demosift.sift.artefacts import find_moved_cameras
from demosift.types import InputError
from demosift.vision import embedding
from demosift.vision.embedding import Cameras, embedded_rows, interpolate, prepare_features
from demosift.vision.frames import open_cameras


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SVT_LOG", "0")
    monkeypatch.setenv("DEMOSIFT_CACHE", str(tmp_path / "cache"))


def decode(source: Path, name: str = "top") -> list[np.ndarray]:
    """Every third picture of each episode, from the second on."""
    return [np.stack(list(clip.read(np.arange(1, clip.steps, 3)))) for clip in open_cameras(source)[name].clips]


def compare(found: list[np.ndarray], content: dict[int, Episode], tolerance: float) -> None:
    assert len(found) == len(content)
    for pictures, episode in zip(found, content.values(), strict=True):
        want = episode["image"][:-1][1::3]
        own = pictures[: len(want)]  # some formats keep the picture after the last step too
        assert own.shape == want.shape
        assert np.abs(own.astype(int) - want).mean() <= tolerance


@pytest.mark.parametrize("codec", ["libsvtav1", "libx264"])
@pytest.mark.parametrize("version", [2, 3])
def test_videos_give_the_picture_of_each_frame(version: int, codec: str, tmp_path: Path):
    content = episodes(0, [9, 14, 5])
    compare(decode(with_videos(tmp_path / "data", content, version, codec)), content, 1.5)


def test_a_picture_is_found_by_its_time_after_frames_were_dropped(tmp_path: Path):
    """`filter` cuts frames and keeps videos: `timestamp` says where a frame's picture is."""
    root = with_videos(tmp_path / "data", episodes(0, [12, 8]))
    rows = open_rows(root)
    keep = np.ones(rows.num_rows, bool)
    keep[:4] = False
    from demosift.data.formats.lerobot.selection import keep_lerobot
    from demosift.data.selection import Selection

    keep_lerobot(str(root), str(tmp_path / "kept"), Selection(keep, rows.episode_ends))
    whole, kept = (open_cameras(place)["top"].clips[0] for place in (root, tmp_path / "kept"))
    np.testing.assert_array_equal(next(whole.read(np.array([5]))), next(kept.read(np.array([1]))))


def image_column(root: Path, content: dict[int, Episode], as_files: bool = False) -> Path:
    """A LeRobot folder whose camera is a column of pictures, as bytes or as paths."""
    lerobot_v3(root, [content], done=False)
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    cells = []
    for number, picture in enumerate(np.concatenate([each["image"][:-1] for each in content.values()])):
        file = root / f"images/frame_{number:06d}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(file)
        inside = None if as_files else file.read_bytes()
        cells.append({"bytes": inside, "path": f"images/frame_{number:06d}.png"})
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(table.append_column("observation.images.top", pa.array(cells, kind)), path)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.top"]["dtype"] = "image"
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


@pytest.mark.parametrize("as_files", [False, True])
def test_pictures_in_parquet_files(as_files: bool, tmp_path: Path):
    content = episodes(1, [6, 4])
    compare(decode(image_column(tmp_path / "data", content, as_files)), content, 0)


def test_pictures_in_robomimic_files(tmp_path: Path):
    content = episodes(1, [6, 4])
    path = tmp_path / "demo.hdf5"
    robomimic_file(path, content, next_obs=False)
    compare(decode(path, "agentview_image"), content, 0)


def minari_folder(root: Path, content: dict[int, Episode], parts: Sequence[str]) -> Path:
    """A Minari dataset as its own storage writes it, whose observations are a picture, alone or beside vectors."""
    from gymnasium.spaces import Box, Dict
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    picture, vector = Box(0, 255, (SIDE, SIDE, 3), np.uint8), Box(-np.inf, np.inf, (2,), np.float32)
    space = Dict({"top": picture, **dict.fromkeys(parts, vector)}) if parts else picture
    root.mkdir()
    storage = MinariStorage.new(root / "data", observation_space=space, action_space=Box(-1, 1, (2,), np.float32))
    storage.update_metadata({"dataset_id": "pictures-v0", "minari_version": "0.5.4"})
    buffers = []
    for number, each in content.items():
        steps = len(each["actions"])
        obs = {"top": each["image"], **{name: each["object"].astype(np.float32) for name in parts}}
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=obs if parts else each["image"],  # type: ignore[arg-type]
                actions=each["actions"].astype(np.float32),  # type: ignore[arg-type]
                rewards=list(each["rewards"]),
                terminations=[False] * steps,
                truncations=[False] * (steps - 1) + [True],
            )
        )
    storage.update_episodes(buffers)
    return root


def test_pictures_in_minari_datasets(tmp_path: Path):
    content = episodes(1, [6, 4])
    beside = minari_folder(tmp_path / "beside-v0", content, ["object"])
    compare(decode(beside), content, 3)  # they are stored as JPEG
    want = np.concatenate([each["object"][:-1] for each in content.values()]).astype(np.float32)
    np.testing.assert_array_equal(ds.read_dataset(beside).transitions.obs, want)
    alone = minari_folder(tmp_path / "alone-v0", content, [])
    compare(decode(alone, "pixels"), content, 3)
    with pytest.raises(InputError, match="has no columns of numbers; score takes pictures"):
        ds.read_dataset(alone)
    cameras = Cameras(encoder=tiny_encoder(tmp_path / "tiny.onnx"), every=1, components=4)
    rows = prepare_features([alone], cameras).join(alone, open_rows(alone))
    assert (rows.num_rows, rows.obs_dim) == (10, 4)


def patched(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "No such file"),
        (lambda path: path.write_bytes(b"one video of everything"), "broken video"),
        (lambda path: path.write_bytes(b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"), "broken video"),
        (lambda path: write_video(path, draw(np.full((7, 2), 0.5))), r"no picture at .* s: the video ends at 0.600 s"),
        (lambda path: write_video(path, draw(np.full((20, 2), 0.5)), fps=5), "no picture at 0.100 s"),
        (patched(b"avc1", b"zzzz"), "codec|broken video"),
    ],
)
def test_a_video_that_is_wrong(spoil: Callable[[Path], Any], message: str, tmp_path: Path, capsys: Any):
    root = with_videos(tmp_path / "data", episodes(0, [12, 8]))
    other = with_videos(tmp_path / "other", episodes(1, [12]))
    tiny = tiny_encoder(tmp_path / "tiny.onnx")
    spoil(root / "videos/observation.images.top/chunk-000/file-000.mp4")
    asked = ["--encoder", str(tiny), "--every", "1", "--out", str(tmp_path / "scores")]
    assert main(["score", "--expert", str(other), "--supplementary", str(root), *asked]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "file-000.mp4" in lines[0]
    assert re.search(message, lines[0]), lines[0]
    assert not (tmp_path / "scores").exists()
    assert len(list((tmp_path / "cache/embeddings").glob("*"))) <= 1  # the expert's, whole


def test_what_belongs_to_other_data_is_refused_in_one_line(tmp_path: Path, capsys: Any):
    """Encoders, features and decisions that do not fit, episodes that are not there: exit 2, and nothing written."""
    root = with_videos(tmp_path / "data", episodes(0, [12] * 6))
    other = with_videos(tmp_path / "other", episodes(1, [12] * 6))
    with_videos(tmp_path / "old", episodes(0, [12] * 6), version=2)
    (tmp_path / "old/videos/chunk-000/observation.images.top/episode_000004.mp4").unlink()
    tiny = str(tiny_encoder(tmp_path / "tiny.onnx"))
    wrong = tmp_path / "wrong.onnx"
    nodes = [onnx.helper.make_node("Identity", ["image"], ["out"])]
    save_model(wrong, nodes, ["n", 8], {}, onnx.TensorProto.FLOAT)
    np.savez(tmp_path / "f.npz", features=np.zeros((72, 3)), digest=digest_source(other))
    one = ["--scorer", "neighbours", "--members", "1", "--task-column", "none"]
    sets = ["score", str(root), "--expert-episodes", "0-2", *one]
    assert main([*sets, "--out", str(tmp_path / "scores")]) == 0
    decisions = {"demosift": "decisions", "dataset": digest_source(other), "keep": [0], "drop": [1]}
    (tmp_path / "d.json").write_text(json.dumps(decisions))
    (tmp_path / "e.json").write_text(json.dumps(decisions | {"dataset": digest_source(root), "drop": [40]}))
    kept = ["filter", str(root), "--scores", str(tmp_path / "scores")]
    cache = ["--cache", str(tmp_path / "c")]
    before = {str(path) for path in tmp_path.rglob("*")}
    capsys.readouterr()
    for command, message in (
        ([*sets, "--encoder", str(wrong), *cache], "needs one input of pictures"),
        ([*sets, "--features", str(tmp_path / "f.npz")], "the features of another dataset"),
        (["score", str(root), "--expert-episodes", str(tmp_path / "d.json"), *one], "decisions about other data"),
        (["score", str(root), "--expert-episodes", "0-2", "--bad-episodes", "5-9", *one], "episode 6 does not exist"),
        (["score", str(tmp_path / "old"), "--expert-episodes", "0-2", *one, "--encoder", tiny, *cache], "000004.mp4"),
        ([*kept, "--decisions", str(tmp_path / "d.json")], "decisions about other data"),
        ([*kept, "--decisions", str(tmp_path / "e.json")], "episode 40 does not exist"),
    ):
        assert main([*command, "--out", str(tmp_path / "refused")]) == 2
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
        assert {str(path) for path in tmp_path.rglob("*") if tmp_path / "c" not in (path, *path.parents)} == before


def test_a_camera_cannot_lead_out_of_its_folder(tmp_path: Path):
    root = with_videos(tmp_path / "data", episodes(0, [5]))
    text = (root / "meta/info.json").read_text()
    (root / "meta/info.json").write_text(text.replace("observation.images.top", "observation.images/../../../top"))
    meta = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(meta)
    names = [name.replace("observation.images.top", "observation.images/../../../top") for name in table.column_names]
    pq.write_table(table.rename_columns(names), meta)
    with pytest.raises(InputError, match="not a name of a file below this folder"):
        open_cameras(root)


def test_cameras_have_names(tmp_path: Path):
    root = with_videos(tmp_path / "data", episodes(0, [5]))
    with pytest.raises(InputError, match="no camera 'wrist'; it has top"):
        open_cameras(root, ["wrist"])
    npz = tmp_path / "episodes"
    npz.mkdir()
    np.savez(npz / "episode_0.npz", observations=np.zeros((3, 2)), actions=np.zeros((3, 1)))
    with pytest.raises(InputError, match="npz data hold no pictures"):
        open_cameras(npz)
    with pytest.raises(InputError, match="every: 0 is not a positive number"):
        Cameras(every=0)


# Columns from embeddings.


def test_every_nth_picture_is_embedded_and_the_rest_lie_between():
    ends = np.array([7, 8, 12])
    place = embedded_rows(ends, 3)
    np.testing.assert_array_equal(place, [0, 3, 6, 7, 8, 11])
    values = place[:, None] * np.array([[1.0, -2.0]])
    got = interpolate(values, place)
    np.testing.assert_allclose(got, np.arange(12)[:, None] * np.array([[1.0, -2.0]]), atol=1e-6)
    np.testing.assert_array_equal(got[place], values.astype(np.float32))


def test_components_are_the_principal_ones():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)) + 3
    fitted = fit_components([values[:50], values[50:]], 3)
    theirs = PCA(3).fit(values)
    got, want = fitted.apply(values), theirs.transform(values)
    np.testing.assert_allclose(np.abs(got), np.abs(want), atol=1e-4)
    assert fitted.share == pytest.approx(theirs.explained_variance_ratio_.sum())
    assert fit_components([np.outer(np.arange(9.0), [1, 2, 3])], 3).axes.shape == (3, 1)
    with pytest.raises(InputError, match="20,000 columns; reduce them"):
        fit_components([np.zeros((2, 20_000), np.float32)], 3)


@pytest.fixture
def two_days(tmp_path: Path) -> tuple[Path, Path, Cameras]:
    expert = with_videos(tmp_path / "expert", episodes(0, [10, 6, 8]))
    other = with_videos(tmp_path / "other", episodes(1, [7, 12]))
    return expert, other, Cameras(encoder=tiny_encoder(tmp_path / "tiny.onnx"), every=2, components=4)


def join(expert: Path, other: Path, cameras: Any, state: bool = True) -> list[FeatureRows]:
    joiner = prepare_features([expert, other], cameras, state)
    return [joiner.join(source, open_rows(source)) for source in (expert, other)]


def test_rows_with_columns_from_pictures(two_days: tuple[Path, Path, Cameras]):
    expert, other, cameras = two_days
    rows, _ = join(expert, other, cameras)
    own = open_rows(expert)
    assert (rows.num_rows, rows.obs_dim) == (own.num_rows, own.obs_dim + 4)
    assert rows.obs_keys == {"observation.environment_state": 2, "observation.state": 3, "camera top": 4}
    whole = np.concatenate([obs for obs, _ in rows.blocks(7)])
    np.testing.assert_array_equal(whole[:, :5], np.concatenate([obs for obs, _ in own.blocks(7)]))
    np.testing.assert_array_equal(rows.take(np.array([9, 2]))[0], whole[[9, 2]])
    alone, _ = join(expert, other, cameras, state=False)
    np.testing.assert_array_equal(np.concatenate([obs for obs, _ in alone.blocks(100)]), whole[:, 5:])
    # The blob's place is in those columns.
    place = np.concatenate([each["place"][:-2] for each in episodes(0, [10, 6, 8]).values()])
    design = np.column_stack([whole[:, 5:], np.ones(len(whole))])
    left = place - design @ np.linalg.lstsq(design, place, rcond=None)[0]
    assert (left.std(axis=0) < 0.5 * place.std(axis=0)).all()


def test_embeddings_are_computed_once(two_days: tuple[Path, Path, Cameras], monkeypatch: pytest.MonkeyPatch):
    expert, other, cameras = two_days
    first = join(expert, other, cameras)
    monkeypatch.setattr(embedding, "compute_embeddings", lambda *_: pytest.fail("the cache was not used"))
    again = join(expert, other, cameras)
    np.testing.assert_array_equal(first[1].features, again[1].features)
    with pytest.raises(pytest.fail.Exception):
        join(expert, other, Cameras(encoder=cameras.encoder, every=3))


def test_a_cache_of_other_data_is_refused(two_days: tuple[Path, Path, Cameras]):
    expert, other, cameras = two_days
    join(expert, other, cameras)
    one, two = sorted((cache_folder() / "embeddings").iterdir())
    shutil.copy(one, two)
    with pytest.raises(InputError, match="embeddings of other data than its name says"):
        join(expert, other, cameras)
    whole, (facts, tensors) = one.read_bytes(), read_tensors(one)
    no_columns = save({"embedding": tensors["embedding"][:, :0]}, facts)
    eighths = {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}  # a type that NumPy does not know
    header = json.dumps({"__metadata__": facts, "embedding": eighths}).encode()
    for content in (whole[:200], len(header).to_bytes(8, "little") + header + bytes(8), no_columns):
        one.write_bytes(content)
        with pytest.raises(InputError, match="damaged; remove it"):
            join(expert, other, cameras)
    one.unlink()
    two.unlink()
    join(expert, other, cameras)


def test_a_video_that_changed_is_embedded_again(two_days: tuple[Path, Path, Cameras]):
    expert, other, cameras = two_days
    before = join(expert, other, cameras)[0].features
    write_video(expert / "videos/observation.images.top/chunk-000/file-000.mp4", draw(np.full((24, 2), 0.1)))
    assert not np.array_equal(join(expert, other, cameras)[0].features, before)


def test_episodes_of_one_dataset_share_its_embeddings(two_days: tuple[Path, Path, Cameras]):
    """Which episodes are the expert's may change; what the encoder said about them does not."""
    dataset, _, cameras = two_days
    whole = prepare_features([dataset], cameras).join(dataset, open_rows(dataset))
    parts = f"{dataset}::episodes=1", f"{dataset}::without=1"
    joiner = prepare_features(parts, cameras)
    one, others = (joiner.join(part, open_rows(part)) for part in parts)
    np.testing.assert_array_equal(one.features, whole.features[9:14])
    np.testing.assert_array_equal(others.features, np.delete(whole.features, np.s_[9:14], axis=0))
    assert len(list((cache_folder() / "embeddings").iterdir())) == 1


# Features of the user's own.


def test_features_from_files(tmp_path: Path):
    root = with_videos(tmp_path / "data", episodes(0, [6, 4]))
    rows = open_rows(root)
    assert rows.num_rows == 8  # of ten frames
    frames = np.arange(30.0).reshape(10, 3)
    want = frames[[0, 1, 2, 3, 4, 6, 7, 8]].astype(np.float32)
    np.save(tmp_path / "rows.npy", want)
    np.save(tmp_path / "frames.npy", frames)
    np.savez(tmp_path / "f.npz", features=frames, digest=digest_source(root))
    index = {"episode_index": [0] * 6 + [1] * 4, "frame_index": [*range(6), *range(4)], "index": list(range(10))}
    pq.write_table(pa.table({**index, "features": list(frames)}), tmp_path / "f.parquet")
    pq.write_table(pa.table(dict(zip("abc", frames.T, strict=True))), tmp_path / "columns.parquet")
    for name in ("rows.npy", "frames.npy", "f.npz", "f.parquet", "columns.parquet"):
        np.testing.assert_array_equal(read_features(tmp_path / name, root, rows), want, err_msg=name)
    np.testing.assert_array_equal(read_features(want, root, rows), want)


def turned(path: Path, frames: np.ndarray) -> None:
    index = np.arange(len(frames))[::-1].copy()
    pq.write_table(pa.table({"index": index, "features": list(frames)}), path)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "f.npy",
            lambda path, frames: np.save(path, frames[:-1]),
            r"has shape \(9, 3\), needs a row for each of the 8",
        ),
        ("f.npy", lambda path, frames: np.save(path, np.array([{}])), "never unpickled"),
        ("f.npy", lambda path, frames: np.save(path, np.where(frames == 4, np.nan, frames)), "row 1, column 1: nan"),
        ("f.npz", lambda path, frames: np.savez(path, features=frames, digest="0" * 64), "features of another dataset"),
        ("f.npz", lambda path, frames: np.savez(path, other=frames), "features: the file has no such array"),
        ("f.parquet", turned, "index: not that of the dataset"),
        ("f.txt", lambda path, frames: path.write_text("1 2 3"), "read from .npy, .npz and .parquet"),
        ("f.npy", lambda path, frames: None, "no such features file"),
    ],
)
def test_features_that_are_wrong(name: str, write: Callable[[Path, np.ndarray], Any], message: str, tmp_path: Path):
    root = with_videos(tmp_path / "data", episodes(0, [6, 4]))
    write(tmp_path / name, np.arange(30.0).reshape(10, 3))
    with pytest.raises(InputError, match=message):
        read_features(tmp_path / name, root, open_rows(root))


# Scoring.


def pile(seed: int, turned: list[bool]) -> dict[int, Episode]:
    """Actions point at the middle from where the blob is; in turned episodes, at right angles to that."""
    content = episodes(seed, [30] * len(turned))
    rng = np.random.default_rng([seed, 1])
    for wrong, episode in zip(turned, content.values(), strict=True):
        away = 0.5 - episode["place"][:-1]
        direction = away / np.linalg.norm(away, axis=1, keepdims=True)
        action = np.stack([-direction[:, 1], direction[:, 0]], axis=1) if wrong else direction
        episode["actions"] = np.clip(0.7 * action + 0.05 * rng.normal(size=action.shape), -1, 1)
    return content


def test_pictures_show_what_states_do_not(tmp_path: Path):
    """The state is noise. Who acts well can be told from the pictures alone."""
    expert = with_videos(tmp_path / "expert", pile(0, [False] * 8))
    wrong = [number % 2 == 1 for number in range(16)]
    other = with_videos(tmp_path / "pile", pile(1, wrong))
    cameras = Cameras(encoder=tiny_encoder(tmp_path / "tiny.onnx"), every=2, components=6)
    found = {}
    for name, asked in {
        "with": {"features": cameras},
        "without": {},
        "alone": {"features": cameras, "state": False},
    }.items():
        scored = ds.score(expert, other, scorer="neighbours", members=1, task_column="none", **asked)
        episode = scored.episodes()
        rank = episode["rank"][episode["source"] == "supplementary"]
        found[name] = np.mean(np.array(wrong)[np.argsort(rank)[8:]])  # share of wrong ones in the worse half
    assert found["with"] == found["alone"] == 1
    assert found["without"] < 0.8


def test_score_takes_pictures_on_the_command_line(tmp_path: Path, capsys: Any):
    expert = with_videos(tmp_path / "expert", pile(0, [False] * 5))
    other = with_videos(tmp_path / "pile", pile(1, [False, True] * 3))
    tiny = tiny_encoder(tmp_path / "tiny.onnx")
    sets = ["score", "--expert", str(expert), "--supplementary", str(other), "--scorer", "neighbours", "--members", "1"]
    asked = [
        "--encoder",
        str(tiny),
        "--cameras",
        "top",
        "--every",
        "3",
        "--components",
        "4",
        "--cache",
        str(tmp_path / "c"),
    ]
    assert main([*sets, *asked, "--out", str(tmp_path / "scores"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["features"]["cameras"]["top"]["components"] == 4
    assert summary["features"]["every"] == 3
    assert len(list((tmp_path / "c/embeddings").iterdir())) == 2
    for flags, message in (
        (["--every", "3"], "need --encoder"),
        (["--without-state"], "without the state there must be features"),
        (["--features", "a.npy", "b.npy", "--every", "3"], "not both"),
        (["--features", "a.npy", "b.npy"], "no such features file"),
        (["--encoder", "default", "--cameras", "wrist"], "no camera 'wrist'"),
        (["--encoder", str(tmp_path / "none.onnx")], "no such ONNX file"),
    ):
        assert main([*sets, *flags, "--out", str(tmp_path / "refused")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()


def test_data_in_memory_take_arrays_of_features(tmp_path: Path):
    rng = np.random.default_rng(0)
    place = rng.uniform(-1, 1, (600, 2))
    turned = np.repeat(np.arange(20) % 2 == 1, 20)
    action = np.where(np.concatenate([np.zeros(200, bool), turned])[:, None], place[:, ::-1] * [1, -1], place)
    state, ends = rng.normal(size=(600, 2)), np.arange(20, 401, 20)
    following = np.roll(state, -1, axis=0)
    whole = {"observations": state, "actions": action, "next_observations": following}
    expert = ds.Dataset.from_arrays(**{key: value[:200] for key, value in whole.items()}, ends=ends[:10])
    other = ds.Dataset.from_arrays(**{key: value[200:] for key, value in whole.items()}, ends=ends)
    scored = ds.score(expert, other, scorer="neighbours", members=1, features=(place[:200], place[200:]))
    weight = scored.supplementary
    assert weight[~turned].mean() > 2 * weight[turned].mean()
    assert ds.fit(ds.Sift(hidden=(8,)), ds.load(expert, other), weights=scored, iterations=1) is not None
    with pytest.raises(InputError, match="in memory, without pictures"):
        ds.score(expert, other, features=Cameras())


# A camera that was moved.


def moved(light: float, state: float = 0.0) -> tuple[FeatureRows, FeatureRows]:
    """Two sets of ten episodes from memory, with pictures averaged over cells as features."""
    found = []
    for seed, shift in ((0, 0.0), (1, 1.0)):
        content = episodes(seed, [12] * 10, light * shift)
        obs = np.concatenate([each["object"] for each in content.values()]) + state * shift
        action = np.concatenate([np.append(each["actions"], each["actions"][-1:], axis=0) for each in content.values()])
        data = ds.Dataset.from_arrays(obs, action, next_observations=obs, ends=13 * np.arange(1, 11))
        pictures = np.concatenate([each["image"] for each in content.values()])
        cells = pictures.reshape(-1, 8, SIDE // 8, 8, SIDE // 8, 3).mean(axis=(2, 4, 5)).reshape(len(obs), 64)
        found.append((open_rows(data), cells))
    fitted = fit_components([cells for _, cells in found], 8)
    expert, other = (FeatureRows(rows, fitted.apply(cells), {"top": 8}) for rows, cells in found)
    return expert, other


def test_a_camera_that_tells_the_days_apart_is_reported():
    (finding,) = find_moved_cameras(moved(light=15.0))
    assert (finding.kind, finding.column, finding.width, finding.separates) == ("camera", 2, 8, True)
    assert "camera top tells the two files apart" in finding.text


def test_a_camera_that_stayed_is_not():
    assert find_moved_cameras(moved(light=0.0)) == []


def test_where_episodes_start_elsewhere_pictures_should_show_it():
    assert find_moved_cameras(moved(light=15.0, state=5.0)) == []


def test_the_diagnosis_does_not_trust_a_moved_camera(tmp_path: Path):
    expert, other = moved(light=15.0)
    joined = [np.asarray(rows.features) for rows in (expert, other)]
    sets = []
    for rows in (expert, other):
        obs, action = rows.rows.take(np.arange(rows.num_rows))
        sets.append(ds.Dataset.from_arrays(obs, action, next_observations=obs, ends=rows.episode_ends))
    scored = ds.score(*sets, scorer="neighbours", members=1, features=joined)
    diagnosis = scored.summary["diagnosis"]
    assert [warning["kind"] for warning in diagnosis["warnings"]] == ["camera"]
    assert diagnosis["headline"] == "Cannot tell: the two files were recorded differently."
