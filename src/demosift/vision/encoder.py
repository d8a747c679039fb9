"""A frozen encoder in ONNX runtime: pictures in, an embedding of each out.

The file may be the user's own. Nothing in an ONNX file is code, but it may name other files to open (external data) and
operators of other libraries, or loop for ever; all of these are refused before the runtime sees it, and the runtime is
given bytes, not a path, and a limit of memory. It must have one input, of pictures (batch, height, width, 3) or (batch,
3, height, width), and its first output must be (batch, numbers).

    uint8 input      pixels as they are
    float32 input    pixels / 255, less ImageNet's mean, over its standard deviation
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from demosift.data.checks import check_finite, one_line
from demosift.files import expanded, open_regular
from demosift.results.export import import_onnxruntime
from demosift.simulation.cores import available_cores
from demosift.types import InputError
from demosift.vision.efficientnet import build_encoder, load_weights

DEFAULT, SIZE = "default", 224
BATCH = 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of pixels between 0 and 1
LOOPS = ("Loop", "Scan", "SequenceMap")
LARGEST = 4096  # side of a picture
_BATCH_BYTES = 1 << 26  # of the pictures in a batch
_MOST_MEMORY = 7 << 27  # beside four times the size of the file; a batch takes some 300 MiB in the usual networks
DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_MOST_BYTES = 1 << 31
_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Encoder:
    name: str
    digest: str
    size: tuple[int, int]  # height and width of what it takes
    channels_first: bool
    dtype: type
    batch: int | None  # the number of pictures that the file insists on
    session: Any

    @property
    def most(self) -> int:
        return self.batch or max(1, min(BATCH, _BATCH_BYTES // (3 * self.size[0] * self.size[1])))

    def embed(self, pictures: Iterable[Picture]) -> Iterator[Float32[np.ndarray, "pictures numbers"]]:
        """The embeddings of all pictures, in order, a batch at a time."""
        waiting: list[np.ndarray] = []
        for picture in pictures:
            waiting.append(fit_picture(picture, self.size))
            if len(waiting) == self.most:
                yield self._run(np.stack(waiting))
                waiting.clear()
        if waiting:
            yield self._run(np.stack(waiting))

    def _run(self, pictures: UInt8[np.ndarray, "pictures height width 3"]) -> Float32[np.ndarray, "pictures numbers"]:
        batch = self.prepare(pictures)
        missing = self.batch - len(batch) if self.batch else 0
        if missing:
            batch = np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)])
        try:
            out = self.session.run(None, {self.session.get_inputs()[0].name: batch})[0]
        except Exception as error:  # the runtime's own kinds of errors have no common base
            raise InputError(f"{self.name}: cannot encode pictures: {one_line(error)}") from error
        rows = out if isinstance(out, np.ndarray) and out.ndim == 2 and out.dtype.kind == "f" else np.zeros((0, 0))
        if len(rows) != len(batch) or rows.shape[1] == 0:
            shape = getattr(out, "shape", "no shape")
            raise InputError(f"{self.name}: gives {shape} for {len(batch)} pictures, needs a row of numbers for each")
        with np.errstate(over="ignore"):  # too large for float32 is reported as infinite
            out = out[: len(pictures)].astype(np.float32)
        check_finite(self.name, "embeddings", out)
        return out

    def prepare(self, pictures: UInt8[np.ndarray, "n height width 3"]) -> Shaped[np.ndarray, "n a b c"]:
        """The batch in the form that the file takes."""
        if self.dtype == np.float32:
            scaled = (pictures.astype(np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        else:
            scaled = pictures
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)) if self.channels_first else scaled


def fit_picture(picture: Picture, size: tuple[int, int]) -> UInt8[np.ndarray, "height width 3"]:
    """The whole picture, stretched to the encoder's height and width."""
    from PIL import Image

    if picture.shape[:2] == size:
        return picture
    resized = Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def load_encoder(name: str, cache: Path, size: int | None = None) -> Encoder:
    """The default encoder, or the one in an ONNX file. `size`: of pictures, where the file leaves it open."""
    try:
        import onnx  # noqa: F401

        import_onnxruntime()
    except ImportError as error:
        raise InputError("encoder: needs onnx and onnxruntime: pip install 'demosift[vision]'") from error
    if size is not None and not 8 <= size <= LARGEST:
        raise InputError(f"encoder: pictures of {size} pixels: needs between 8 and {LARGEST}")
    if name == DEFAULT:
        model = build_encoder(load_weights(cache), size or SIZE)
        return start_encoder("default encoder", model.SerializeToString(), None)
    path = expanded(name)
    content = read_model(path)
    check_model(path, content)
    return start_encoder(str(path), content, size)


def read_model(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"{path}: no such ONNX file (the built-in encoder is called {DEFAULT!r})")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: more than 2 GiB, which no ONNX file holds by itself")
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error


def check_model(path: Path, content: bytes) -> None:
    """Refuses a file that is not ONNX, points at other files, or needs operators of other libraries."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
        if not model.graph.node:
            raise ValueError("it has no nodes")
    except Exception as error:  # protobuf's and onnx's own kinds
        raise InputError(f"{path}: not an ONNX model: {one_line(error)}") from error
    own = {function.domain for function in model.functions}
    for message in walk(model):
        kind = message.DESCRIPTOR.name
        if kind == "TensorProto" and (message.data_location == onnx.TensorProto.EXTERNAL or message.external_data):
            raise InputError(
                f"{path}: {message.name or 'a tensor'}: its numbers lie in another file; store them inside"
            )
        if kind == "NodeProto" and message.domain not in (*DOMAINS, *own):
            raise InputError(f"{path}: {message.op_type}: an operator of {message.domain!r}, which is not ONNX's own")
        if kind == "NodeProto" and message.op_type in LOOPS:
            raise InputError(f"{path}: {message.op_type}: a loop, which need not end; an encoder has none")


def walk(message: Any) -> Iterator[Any]:
    """A protobuf message and all messages inside: graphs in attributes, functions, sparse and training tensors too."""
    waiting = [message]
    while waiting:
        each = waiting.pop()
        yield each
        for field, value in each.ListFields():
            if field.message_type is not None:
                waiting.extend(value if hasattr(value, "extend") else [value])


def _limit_memory(num_bytes: int) -> None:
    """For the sessions that are made next."""
    import onnxruntime as runtime

    memory = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    runtime.create_and_register_allocator(memory, runtime.OrtArenaCfg(num_bytes, 1, -1, -1))


def start_encoder(name: str, content: bytes, size: int | None) -> Encoder:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = available_cores()
    _limit_memory(_MOST_MEMORY + 4 * len(content))
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        session = onnxruntime.InferenceSession(
            content,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # which prints
        )
        inputs = session.get_inputs()
        shape, kind = inputs[0].shape if inputs else [], inputs[0].type if inputs else ""
    except Exception as error:
        raise InputError(f"{name}: ONNX runtime cannot run it: {one_line(error)}") from error
    wanted = "needs one input of pictures, uint8 or float32, (batch, height, width, 3) or (batch, 3, height, width)"
    if len(inputs) != 1 or len(shape) != 4 or kind not in _TYPES or 3 not in (shape[1], shape[3]):
        found = ", ".join(f"{each.type} {each.shape}" for each in inputs) or "none"
        raise InputError(f"{name}: {wanted}; has {found}")
    channels_first = shape[1] == 3
    sides = shape[2:] if channels_first else shape[1:3]
    stated = [side if isinstance(side, int) and side > 0 else None for side in sides]
    if size is not None and any(side not in (None, size) for side in stated):
        raise InputError(f"{name}: takes pictures of {sides[0]} x {sides[1]} pixels, not {size}")
    height, width = (side or size or SIZE for side in stated)
    batch = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None
    if max(height, width) > LARGEST or 3 * height * width * (batch or 1) > _BATCH_BYTES:
        raise InputError(f"{name}: takes {batch or 1} pictures of {height} x {width} pixels, which is too large")
    digest = hashlib.sha256(content).hexdigest()
    return Encoder(name, digest, (height, width), channels_first, _TYPES[kind], batch, session)
