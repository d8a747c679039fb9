"""Runs where LeRobot is installed, and demosift is not: writes a dataset, opens what demosift made of it, and trains.

python with_lerobot.py write FOLDER
python with_lerobot.py read FOLDER EPISODES FRAMES
python with_lerobot.py weights DATASET FILE
"""

# What is imported here is not installed where the types are checked.
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportOptionalMemberAccess=false

import importlib
import inspect
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

EPISODES, STEPS, SIDE, FPS = 8, 20, 64, 10
TOP = "observation.images.top"
REPOSITORY = "demosift/neighbours"


def write(folder: str) -> None:
    """Arms that reach a place which the camera shows; the last two go elsewhere. Two tasks."""
    rng = np.random.default_rng(0)
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["dx", "dy"]},
        TOP: {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
    }
    dataset = LeRobotDataset.create(REPOSITORY, FPS, features, root=folder, use_videos=True)
    apart = len(inspect.signature(dataset.add_frame).parameters) > 1  # versions of before take the task by itself
    for episode in range(EPISODES):
        state = rng.uniform(-1, 1, 3).astype(np.float32)
        for _ in range(STEPS):
            action = -0.5 * state[:2] if episode < EPISODES - 2 else rng.uniform(-1, 1, 2)
            action = np.clip(action + 0.02 * rng.normal(size=2), -1, 1).astype(np.float32)
            picture = np.full((SIDE, SIDE, 3), 40, np.uint8)
            row, column = (int(24 + 20 * value) for value in state[:2])
            picture[row : row + 12, column : column + 12] = 220
            frame = {"observation.state": state, "action": action, TOP: picture}
            task = f"reach {'left' if episode % 2 else 'right'}"
            dataset.add_frame(frame, task) if apart else dataset.add_frame({**frame, "task": task})
            state = np.clip(state + np.append(0.3 * action, 0), -1, 1).astype(np.float32)
        dataset.save_episode()
    if hasattr(dataset, "finalize"):
        dataset.finalize()


def decoder() -> str:
    """LeRobot takes torchcodec wherever it is installed, but without FFmpeg's libraries it does not load."""
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        return "pyav"
    return "torchcodec"


def read(folder: str, episodes: str, frames: str) -> None:
    """Every frame with its picture, and one step of `lerobot-train`."""
    dataset = LeRobotDataset(REPOSITORY, root=folder, video_backend=decoder())
    found = (dataset.num_episodes, dataset.num_frames, len(dataset))
    assert found == (int(episodes), int(frames), int(frames)), found
    for index in range(len(dataset)):
        item = dataset[index]
        assert item["index"] == index
        assert item[TOP].shape == (3, SIDE, SIDE)
        assert 0.1 < item[TOP].max() <= 1
        # The block in the picture is where the state says: pictures belong to their frames.
        row = float((item[TOP].mean(0).max(1).values > 0.5).nonzero().float().mean())
        assert abs(row - (29.5 + 20 * float(item["observation.state"][0]))) < 2.5, (index, row)
    assert all(torch.isfinite(torch.as_tensor(each["mean"])).all() for each in dataset.meta.stats.values())
    with tempfile.TemporaryDirectory() as temporary:
        small = ["dim_model=32", "n_heads=2", "dim_feedforward=32", "n_encoder_layers=1", "chunk_size=4"]
        small += ["n_action_steps=4", "pretrained_backbone_weights=null", "device=cpu", "push_to_hub=false"]
        flags = [f"--policy.{each}" for each in ["type=act", "use_vae=false", *small]]
        flags += [f"--dataset.repo_id={REPOSITORY}", f"--dataset.root={folder}", f"--output_dir={temporary}/run"]
        flags += [f"--dataset.video_backend={decoder()}"]
        flags += ["--steps=1", "--batch_size=4", "--num_workers=0", "--wandb.enable=false"]
        command = [str(Path(sys.executable).with_name("lerobot-train")), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not list(Path(temporary).rglob("model.safetensors")):
            sys.exit(f"lerobot-train: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    print(f"lerobot {version('lerobot')}: {folder}: {found[0]} episodes, {found[1]} frames, one step trained")


def weights(folder: str, file: str) -> None:
    """The weights of frames are aligned with the dataset, and weigh a batch's loss."""
    import pandas as pd

    dataset, table = LeRobotDataset(REPOSITORY, root=folder, video_backend=decoder()), pd.read_parquet(file)
    assert list(table.columns) == ["index", "weight"]
    assert table["index"].tolist() == [int(index) for index in dataset.hf_dataset["index"]]
    values = table["weight"].to_numpy()
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)))
    own = torch.tensor(table.set_index("index")["weight"].loc[batch["index"].tolist()].to_numpy(), dtype=torch.float32)
    model = torch.nn.Linear(3, 2)
    loss = ((model(batch["observation.state"]) - batch["action"]) ** 2).mean(1) @ (own / own.sum())
    loss.backward()
    assert torch.isfinite(model.weight.grad).all()
    print(f"lerobot {version('lerobot')}: {file}: {len(table)} weights, one step by them")


if __name__ == "__main__":
    {"write": write, "read": read, "weights": weights}[sys.argv[1]](*sys.argv[2:])
