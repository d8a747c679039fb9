"""Pictures for tests: drawn scenes, real videos of them, LeRobot folders that hold these, and a tiny encoder."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
from layouts import FPS, Episode, lerobot_v2, lerobot_v3
from onnx import TensorProto, helper, numpy_helper

SIDE = 64


def draw(place: np.ndarray, light: float = 0.0) -> np.ndarray:
    """A white blob at each place in the unit square on a grey gradient, as uint8 pictures."""
    grid = (np.arange(SIDE) + 0.5) / SIDE
    background = 60 + 60 * grid[:, None] + 40 * grid[None, :] + light
    x, y = place[:, 0, None, None], place[:, 1, None, None]
    blob = np.exp(-((grid[None, None, :] - x) ** 2 + (grid[None, :, None] - y) ** 2) / (2 * 0.08**2))
    level = np.clip(background + (255 - background) * blob, 0, 255).astype(np.uint8)
    return np.repeat(level[..., None], 3, axis=3)


def write_video(path: Path, pictures: np.ndarray, codec: str = "libx264", fps: int = FPS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"libx264": {"g": "2", "crf": "18"}, "libsvtav1": {"preset": "12", "crf": "20", "g": "2"}}
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=fps, options=options.get(codec, {}))
        stream.width, stream.height, stream.pix_fmt = pictures.shape[2], pictures.shape[1], "yuv420p"
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def episodes(seed: int, lengths: Sequence[int], light: float = 0.0) -> dict[int, Episode]:
    """Episodes whose camera shows a place that no state tells; one more state and picture than steps."""
    rng, found = np.random.default_rng(seed), {}
    for number, steps in enumerate(lengths):
        place = 0.5 + 0.35 * np.cos(rng.uniform(0, 6.3, (1, 2)) + 0.15 * np.arange(steps + 1)[:, None] * [1, 1.3])
        found[number] = {
            "robot0_eef_pos": rng.normal(size=(steps + 1, 3)),
            "object": rng.normal(size=(steps + 1, 2)),
            "actions": rng.uniform(-1, 1, (steps, 2)),
            "rewards": np.zeros(steps),
            "place": place,
            "image": draw(place, light),
        }
    return found


def with_videos(root: Path, content: dict[int, Episode], version: int = 3, codec: str = "libx264") -> Path:
    """A LeRobot folder with real videos in the places of its camera `top`."""
    if version == 2:
        lerobot_v2(root, content, done=False)
        for number, each in content.items():
            path = root / f"videos/chunk-000/observation.images.top/episode_{number:06d}.mp4"
            write_video(path, each["image"][:-1], codec)
        return root
    lerobot_v3(root, [content], done=False)
    pictures = np.concatenate([each["image"][:-1] for each in content.values()])
    write_video(root / "videos/observation.images.top/chunk-000/file-000.mp4", pictures, codec)
    return root


def tiny_encoder(path: Path, cells: int = 8, **changes: Any) -> Path:
    """Averages over a grid of cells: (batch, side, side, 3) uint8 -> (batch, cells * cells)."""
    side = changes.get("side", SIDE)
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node(
            "AveragePool", ["first"], ["pooled"], kernel_shape=[side // cells] * 2, strides=[side // cells] * 2
        ),
        helper.make_node("ReduceMean", ["pooled"], ["grey"], axes=[1]),
        helper.make_node("Reshape", ["grey", "flat"], ["out"]),
    ]
    save_model(path, nodes, ["batch", side, side, 3], {"flat": np.array([0, -1])})
    return path


def save_model(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[Any],
    constants: dict[str, np.ndarray],
    kind: int = TensorProto.UINT8,
) -> Any:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", kind, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save_model(model, str(path))
    return model
