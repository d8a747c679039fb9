"""Files as their own libraries write them, made with h5py, pyarrow and NumPy alone.

The layouts follow robomimic 0.3 (`robomimic/scripts/conversion`), LeRobot 2.0, 2.1 and 3.0
(`lerobot/datasets/lerobot_dataset.py` and its converters). What they hold is random.
"""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 10
Episode = dict[str, np.ndarray]

ROBOSUITE = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"], "control_freq": 20}}


def episode(seed: int, steps: int) -> Episode:
    """One more state than steps; two observation keys, joined in sorted order: object, then robot0_eef_pos."""
    rng = np.random.default_rng(seed)
    return {
        "robot0_eef_pos": rng.normal(size=(steps + 1, 3)),
        "object": rng.normal(size=(steps + 1, 2)),
        "actions": rng.uniform(-1, 1, (steps, 2)),
        "rewards": rng.normal(size=steps),
        "image": rng.integers(0, 255, (steps + 1, 4, 4, 3)).astype(np.uint8),
    }


def joined(states: Episode, rows: slice = slice(None, -1)) -> np.ndarray:
    return np.concatenate([states["object"][rows], states["robot0_eef_pos"][rows]], axis=1).astype(np.float32)


def robomimic_file(
    path: Path, episodes: dict[int, Episode], next_obs: bool = True, done: bool = True, images: bool = True
) -> Path:
    """float64 arrays, demonstrations by number, a filter key, images and simulator states beside."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(ROBOSUITE, indent=4)
        for number, content in episodes.items():
            demo, steps = data.create_group(f"demo_{number}"), len(content["actions"])
            demo.attrs["num_samples"] = steps
            demo.attrs["model_file"] = "<mujoco/>"
            demo["states"] = np.arange(steps * 5.0).reshape(steps, 5)
            demo["actions"], demo["rewards"] = content["actions"], content["rewards"]
            dones = np.zeros(steps, np.int64)
            dones[-1] = done
            demo["dones"] = dones
            for group, rows in [("obs", slice(None, -1))] + [("next_obs", slice(1, None))] * next_obs:
                for key in ("robot0_eef_pos", "object"):
                    demo[f"{group}/{key}"] = content[key][rows]
                if images:
                    pictures = content["image"][rows]
                    chunks = (2, *pictures.shape[1:])
                    demo.create_dataset(f"{group}/agentview_image", data=pictures, compression="gzip", chunks=chunks)
        data.attrs["total"] = sum(len(content["actions"]) for content in episodes.values())
        file["mask/train"] = np.array([f"demo_{number}" for number in list(episodes)[:2]], "S")
    return path


FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "observation.environment_state": {"dtype": "float32", "shape": [2], "names": None},
    "observation.images.top": {"dtype": "video", "shape": [4, 4, 3], "names": ["height", "width", "channel"]},
    "action": {"dtype": "float32", "shape": [2], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{
        key: {"dtype": "int64", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index")
    },
}


def frames(number: int, content: Episode, first: int, done: bool = True) -> pa.Table:
    """The frames of one episode. Version 2 has lists of any length, version 3 of a fixed one; both are read."""
    steps = len(content["actions"])

    def lists(array: np.ndarray) -> pa.Array:
        return pa.array(list(array.astype(np.float32)), pa.list_(pa.float32()))

    return pa.table(
        {
            "observation.state": lists(content["robot0_eef_pos"][:-1]),
            "observation.environment_state": lists(content["object"][:-1]),
            "action": lists(content["actions"]),
            "next.reward": content["rewards"].astype(np.float32),
            "next.done": (np.arange(steps) == steps - 1) & done,
            "timestamp": (np.arange(steps) / FPS).astype(np.float32),
            "frame_index": np.arange(steps),
            "episode_index": np.full(steps, number),
            "index": first + np.arange(steps),
            "task_index": np.full(steps, number % 2),
        }
    )


def _stats(table: pa.Table) -> dict[str, dict[str, list[float]]]:
    """As an episode's statistics are stored; those of the video cannot be computed from the frames."""
    found = {}
    for key in table.column_names:
        values = np.array(table[key].to_pylist(), np.float64).reshape(len(table), -1)
        found[key] = {name: getattr(values, name)(axis=0).tolist() for name in ("min", "max", "mean", "std")}
        found[key]["count"] = [len(table)]
    level = float(table["episode_index"][0].as_py())
    picture = {name: [[[level]]] * 3 for name in ("min", "max", "mean", "std")}
    return found | {"observation.images.top": {**picture, "count": [len(table)]}}


def _info(version: str, episodes: dict[int, Episode], features: dict[str, Any]) -> dict[str, Any]:
    total = sum(len(content["actions"]) for content in episodes.values())
    return {
        "codebase_version": version,
        "robot_type": "so100",
        "total_episodes": len(episodes),
        "total_frames": total,
        "total_tasks": 2,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(episodes)}"},
        "features": features,
    }


def lerobot_v2(root: Path, episodes: dict[int, Episode], version: str = "v2.1", done: bool = True) -> Path:
    (root / "meta").mkdir(parents=True)
    first, lines, stats = 0, [], []
    for number, content in episodes.items():
        table = frames(number, content, first, done)
        first += len(table)
        path = root / f"data/chunk-000/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        video = root / f"videos/chunk-000/observation.images.top/episode_{number:06d}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        video.write_bytes(b"video %d" % number)
        lines.append({"episode_index": number, "tasks": [f"task {number % 2}"], "length": len(table)})
        stats.append({"episode_index": number, "stats": _stats(table)})
    info = _info(version, episodes, FEATURES)
    info |= {
        "total_videos": len(episodes),
        "total_chunks": 1,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    write_lines(root / "meta/episodes.jsonl", lines)
    write_lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": f"task {i}"} for i in range(2)])
    if version == "v2.1":
        write_lines(root / "meta/episodes_stats.jsonl", stats)
    else:
        (root / "meta/stats.json").write_text(json.dumps(stats[0]["stats"]))
    return root


def lerobot_v3(root: Path, shards: list[dict[int, Episode]], done: bool = True, shuffled: bool = False) -> Path:
    """A data file per shard, one video file for all, two files of episode metadata."""
    (root / "meta").mkdir(parents=True)
    episodes = {number: content for shard in shards for number, content in shard.items()}
    starts = dict(zip(episodes, np.cumsum([0] + [len(c["actions"]) for c in episodes.values()]).tolist(), strict=False))
    rows: list[dict[str, Any]] = []
    for file, shard in enumerate(shards):
        tables = [frames(number, content, starts[number], done) for number, content in shard.items()]
        whole = pa.concat_tables(tables)
        if shuffled:
            whole = whole.take(np.random.default_rng(file).permutation(len(whole)))
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(whole, path)
        for number, table in zip(shard, tables, strict=True):
            rows.append(
                {
                    "episode_index": number,
                    "tasks": [f"task {number % 2}"],
                    "length": len(table),
                    "data/chunk_index": 0,
                    "data/file_index": file,
                    "dataset_from_index": starts[number],
                    "dataset_to_index": starts[number] + len(table),
                    "videos/observation.images.top/chunk_index": 0,
                    "videos/observation.images.top/file_index": 0,
                    "videos/observation.images.top/from_timestamp": starts[number] / FPS,
                    "videos/observation.images.top/to_timestamp": (starts[number] + len(table)) / FPS,
                    **{f"stats/{key}/{n}": v for key, each in _stats(table).items() for n, v in each.items()},
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": file % 2,
                }
            )
    for part in (0, 1):
        path = root / f"meta/episodes/chunk-000/file-{part:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        of_part = [row for row in rows if row["meta/episodes/file_index"] == part]
        if of_part:
            pq.write_table(pa.Table.from_pylist(of_part), path)
    video = root / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"one video of everything")
    info = _info("v3.0", episodes, FEATURES)
    info |= {
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["task 0", "task 1"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    (root / "meta/stats.json").write_text(json.dumps(_stats(frames(0, next(iter(episodes.values())), 0))))
    return root


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def npz_folder(folder: Path, episodes: dict[int, Episode], last_state: bool = True, **more: Any) -> Path:
    """As a script writes them: numbers without leading zeros, float64, the last state in the same array or not."""
    folder.mkdir()
    for number, content in episodes.items():
        states = joined(content, slice(None)).astype(np.float64)
        arrays = {"observations": states if last_state else states[:-1], "actions": content["actions"]}
        np.savez(folder / f"episode_{number}.npz", **{**arrays, "rewards": content["rewards"], **more})  # pyright: ignore
    return folder
