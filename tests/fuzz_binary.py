"""How arrays are spoiled, and the formats that hold them: NumPy's, Parquet, Arrow, HDF5, safetensors and ONNX."""

import contextlib
import io
import json
import math
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutators import NUMBERS, TEXTS, dumps, of_bytes, spoil
from safetensors.numpy import load_file, save_file

from demosift.results.checkpoint import STATE, write_arrays

MOST_BYTES = 1 << 22  # of an array that an earlier mutation left; one that claims more is replaced, not read


# Arrays


def odd_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Another type, another shape, or other numbers."""
    with np.errstate(all="ignore"):
        changes: list[Callable[[], Any]] = [
            lambda: array.astype(
                rng.choice(["f2", "f8", "i1", "i8", "u8", "c8", "?", "S5", "U3", ">f4", "M8[s]", "g", "m8[s]", "u1"])
            ),
            lambda: array.reshape(-1),
            lambda: array[None],
            lambda: array[..., None],
            lambda: array[: rng.randrange(len(array) + 1)],
            lambda: np.concatenate([array, array]),
            lambda: array[:0],
            lambda: np.array(rng.choice(NUMBERS[:6])),
            lambda: array[:, :0],
            lambda: array[:, :1],
            lambda: np.full_like(array, rng.choice(NUMBERS[:4])),
            lambda: set_one(
                array.astype(rng.choice(["f4", "f8"])), rng.choice([np.nan, np.inf, 3e38, 1e30, 7.0, -1.0])
            ),
            lambda: set_one(array.astype("i8"), rng.choice([-1, 7, 2**40, 2**62])),
            lambda: np.zeros(len(array), [("a", "f4"), ("b", "i4")]),
            lambda: np.zeros((len(array), 1 << 17), array.dtype),  # a huge row
            lambda: np.zeros((0, 1 << 17), array.dtype),
            lambda: array.reshape(*array.shape, *[1] * 28),
            lambda: array[::-1],
        ]
        try:
            return np.asarray(rng.choice(changes)())
        except (ValueError, TypeError, IndexError, OverflowError):
            return array


def set_one(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.flat[array.size // 2] = value
    return array


def of_npz(path: Path, rng: random.Random, secret: Path) -> None:
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = rng.choice(sorted(arrays))
    members = {f"{key}.npy": to_npy(array) for key, array in arrays.items()}
    kind = rng.randrange(9)
    if kind == 0:
        del members[f"{name}.npy"]
    elif kind == 1:  # a header that claims what is not there
        header = {"descr": "<f4", "fortran_order": False, "shape": (rng.choice([10**12, 2**31, 10**6, -1, 0]), 3)}
        members[f"{name}.npy"] = npy_header(repr(header)) + b"\0" * 64
    elif kind == 2:
        members[f"{name}.npy"] = npy_header(rng.choice(["{", "(" * 500, "{'descr': '|O', 'shape': (3,)}", "1", ""]))
    elif kind == 3:
        members[rng.choice([*TEXTS, "x"]).replace("\0", "") or "y"] = b"not an array"
    elif kind == 4:
        members[f"{rng.choice(['²', '../x', 'x/y', 'observations '])}.npy"] = members[f"{name}.npy"]
    elif kind == 5:
        members[f"{name}.npy"] = members[f"{name}.npy"] + b"more"
    elif kind == 8:
        members[f"{name}.npy"] = spoil_npy(members[f"{name}.npy"], rng)
    else:
        members[f"{name}.npy"] = to_npy(odd_array(arrays[name], rng))
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
    with zipfile.ZipFile(path, "w", rng.choice(methods)) as archive:
        for key, content in members.items():
            archive.writestr(key, content)
        if kind == 6 and rng.random() < 0.2:  # a bomb
            archive.writestr("bomb.npy", b"\0" * (200 << 20), zipfile.ZIP_DEFLATED)
    if rng.random() < 0.2:
        of_bytes(path, rng)


def of_npy(path: Path, rng: random.Random, secret: Path) -> None:
    if rng.random() < 0.5:
        path.write_bytes(to_npy(odd_array(np.load(path), rng)))
    else:
        path.write_bytes(spoil_npy(path.read_bytes(), rng))


def spoil_npy(content: bytes, rng: random.Random) -> bytes:
    """Another header before the same numbers."""
    shapes = [(10**12, 3), (2**62, 2**62), (10**9,), (-1, 3), (0, 10**12), (), (3, 0), (2**31, 2**31), (1.5,), "x"]
    types = ["<f4", "|O", "<f8", "<M8[s]", "|V0", "|S0", "<U1000000", "f4,f4", "x", 1, [("a", "<f4")], ">c16"]
    header = {
        "descr": rng.choice(types),
        "fortran_order": rng.choice([False, True, 1, "x"]),
        "shape": rng.choice(shapes),
    }
    if rng.random() < 0.2:
        del header[rng.choice(list(header))]
    texts = [
        "{",
        "(" * 500,
        "[" * 100_000,
        "{'descr': '|O'}",
        "1",
        "",
        "__import__('os')",
        "{'a': 1}",
        "\xff",
        "9" * 5000,
    ]
    text = repr(header) if rng.random() < 0.7 else rng.choice(texts)
    version = rng.choice([b"\x01\x00"] * 5 + [b"\x02\x00", b"\x03\x00", b"\xff\xff"])
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", min(len(text.encode()) + 1, 65535))
    return b"\x93NUMPY" + version + length + text.encode() + b"\n" + content[128:]


def to_npy(array: np.ndarray) -> bytes:
    if array.size > 10**8:
        raise ValueError("an earlier mutation made it endless")
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_header(text: str) -> bytes:
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def of_parquet(path: Path, rng: random.Random, secret: Path) -> None:
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    place, rows = table.column_names.index(name), len(table)
    if rows > 1000:  # an earlier mutation, which is enough
        return
    columns: list[Callable[[], Any]] = [
        lambda: pa.array(["x"] * rows),
        lambda: pa.array([rng.choice(TEXTS) for _ in range(rows)]),
        lambda: pa.array([None] * rows),
        lambda: pa.array([1] * rows, pa.decimal128(10, 2)),
        lambda: pa.array([1] * rows, pa.timestamp("ns")),
        lambda: pa.array([1] * rows, pa.duration("s")),
        lambda: pa.array([[1.0] * (i % 3) for i in range(rows)]),
        lambda: pa.array([[1.0, None]] * rows),
        lambda: pa.array([[[1.0]]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([rng.choice([math.nan, math.inf, 3e38, 1e300, -1.0, 7.0, 0.5]) for _ in range(rows)]),
        lambda: pa.array([rng.choice([0, -1, 7, 10**9, 2**62]) for _ in range(rows)]),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([b"\xff"] * rows),
        lambda: pa.array([True] * rows),
        lambda: table.column(place).take(pa.array([0] * rows)),
        lambda: pa.array(["expert"] * rows).dictionary_encode(),
        lambda: pa.array([[0.0] * 5000] * rows),
        lambda: pa.array([1.5] * rows, pa.float16() if hasattr(np, "float16") else pa.float32()),
        lambda: pa.array([1] * rows, pa.date64()),
        lambda: pa.array([1] * rows, pa.time32("s")),
        lambda: pa.array([2**62] * rows, pa.timestamp("us")),
        lambda: pa.nulls(rows, pa.list_(pa.float32())),
        lambda: pa.array([b"ab"] * rows, pa.binary(2)),
        lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[0.0] * 3] * rows, pa.list_(pa.float64(), 3)),
        lambda: pa.array([["x"]] * rows),
        lambda: pa.array([[]] * rows, pa.list_(pa.float32())),
        lambda: pa.array([math.nan] * rows),
        lambda: pa.array(["a", "b", "supplementary"] * rows)[:rows].dictionary_encode(),
        lambda: pa.array([1.0] * (rows - 1) + [None]),
    ]
    kind = rng.randrange(12)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.rename_columns([rng.choice(TEXTS) if each == name else each for each in table.column_names])
    elif kind == 2:
        table = table.append_column(name, table.column(place))
    elif kind == 3:
        table = table.slice(0, rng.randrange(rows + 1))
    elif kind == 4:  # rows that take no room
        most = rng.choice([10**5, 10**6, 3 * 10**6]) // table.num_columns
        first = table.slice(0, 1)
        most = min(most, 10**8 // max(first.nbytes, 1))
        table = first.take(pa.array(np.zeros(most, np.int32)))
    elif kind == 5:
        table = table.take(pa.array([rng.randrange(rows) for _ in range(rows)]))
    elif kind == 6:
        table = pa.table({**{f"x{i}": pa.array([1] * rows) for i in range(500)}, name: table.column(place)})
    elif kind == 7:
        table = table.replace_schema_metadata(
            {"pandas": "{", "digest": b"\xff", "ARROW:schema": "x", "huggingface": "1"}
        )
    else:
        table = table.set_column(place, name, rng.choice(columns)())
    store = rng.choice([True, True, True, False])
    pq.write_table(table, path, compression=rng.choice(["snappy", "gzip", "none", "zstd"]), store_schema=store)


def of_arrow(path: Path, rng: random.Random, secret: Path) -> None:
    """Arrow's own file, as Minari keeps it: a column of another kind, or none."""
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    parquet = path.with_suffix(".parquet")
    pq.write_table(table, parquet)
    try:
        of_parquet(parquet, rng, secret)
        table = pq.read_table(parquet)[:100]  # a file of many rows is large here, and takes its time
    finally:
        parquet.unlink()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


# HDF5


def of_hdf5(path: Path, rng: random.Random, secret: Path) -> None:
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        found: Any = file[name]
        parent: Any = found.parent
        base = name.rpartition("/")[2]
        if rng.random() < 0.3:
            odd_attribute(rng.choice([file, found]), rng)
            return
        kind = rng.randrange(20)
        if kind >= 8 and not isinstance(found, h5py.Dataset):
            kind = rng.randrange(8)
        readable = isinstance(found, h5py.Dataset) and found.dtype.kind != "O" and 0 < found.nbytes < MOST_BYTES
        array = found[()] if readable else np.zeros((3, 2), "f4")
        new = rng.choice([*TEXTS, "demo_²", "demo_99", "x"]).replace("\0", "") or "y"
        if kind == 0:
            del file[name]
        elif kind == 1:
            file.move(name, f"{name.rpartition('/')[0]}/{new}")
        else:
            del file[name]
            if kind == 2:
                parent[base] = h5py.SoftLink(rng.choice(["/", "/nowhere", f"/{name}", "/actions", "/data"]))
            elif kind == 3:
                parent[base] = h5py.ExternalLink(str(secret), "/actions")
            elif kind == 4:
                parent.create_group(base)
            elif kind == 5:
                parent[base] = parent  # a group that holds itself
            elif kind == 6:
                parent[base] = np.dtype("f4")
            elif kind == 7:
                shape = (rng.choice([10**9, 10**12, 2**40, 10**7]), *array.shape[1:])
                parent.create_dataset(
                    base, shape, "f4", chunks=(1, *array.shape[1:]), compression=rng.choice([None, "gzip"])
                )
            elif kind == 8:
                parent.create_dataset(base, (len(array),), rng.choice([h5py.vlen_dtype(np.int32), h5py.string_dtype()]))
            elif kind == 9:
                parent.create_dataset(base, data=h5py.Empty("f4"))
            elif kind == 10:
                parent.create_dataset(base, array.shape, array.dtype, external=[(str(secret), 0, 1000)])
            elif kind == 11:
                layout = h5py.VirtualLayout(array.shape, "f4")
                layout[...] = h5py.VirtualSource(str(secret), "actions", array.shape)
                parent.create_virtual_dataset(base, layout)
            elif kind == 12:
                kinds: list[Any] = [
                    h5py.enum_dtype({"A": 0, "B": 1}),
                    h5py.ref_dtype,
                    h5py.regionref_dtype,
                    "V4",
                    "c16",
                ]
                kinds += [h5py.opaque_dtype("M8[s]"), np.dtype(("f4", (2,))), h5py.string_dtype("ascii", 4), "g", ">i2"]
                parent.create_dataset(base, array.shape, rng.choice(kinds))
            elif kind == 13:
                options = [{"scaleoffset": 2}, {"shuffle": True}, {"fletcher32": True}, {"compression": "lzf"}]
                parent.create_dataset(base, data=array, chunks=True, **rng.choice(options))
            elif kind == 14:  # never written, with something odd in its place
                fill = rng.choice([np.nan, np.inf, 7.0, 1e30])
                parent.create_dataset(base, array.shape, "f8", fillvalue=fill, maxshape=(None,) * array.ndim)
            elif kind == 15:
                parent.create_group("/".join([base, *["a"] * rng.choice([50, 1500])]))
            elif kind == 16:
                group = parent.create_group(base)
                for index in range(rng.choice([100, 2000])):
                    group.create_group(f"demo_{index}")
            elif kind == 17:
                parent.create_dataset(base, data=array)
                parent[base].attrs.create("x" * 300, np.zeros(rng.choice([10, 8000])), dtype="f8")
            else:
                parent.create_dataset(base, data=odd_array(array, rng))


def odd_attribute(found: Any, rng: random.Random) -> None:
    names = list(found.attrs)
    name = rng.choice([*names, *names, "env_id", "num_samples", "action_low", "num_actions"])
    value = found.attrs.get(name, "{}")
    values: list[Any] = [h5py.Empty("f4"), np.zeros(0), np.arange(3), "x", b"\xff\xfe", np.nan, np.inf, 2**62, -1, True]
    values += [h5py.Empty("S1"), np.zeros((2, 2)), np.float16(1), np.array([b"\xff"]), 2**63 - 1, -1.5]
    values += [[1e308] * 2, [-np.inf] * 2, [0.0] * 2, np.array(["a", "b"], object), 1e308, "", "[]", "{}", "x" * 60000]
    if isinstance(value, str) and rng.random() < 0.7:
        with contextlib.suppress(ValueError):
            values = [dumps(spoil(json.loads(value), rng))]
    del_first = name in found.attrs and rng.random() < 0.2
    if del_first:
        del found.attrs[name]
    else:
        found.attrs[name] = rng.choice(values)


# Policies and checkpoints


def of_safetensors(path: Path, rng: random.Random, secret: Path) -> None:
    if rng.random() < 0.4:
        of_tensors(path, rng)
        return
    content = path.read_bytes()
    header, data = split_safetensors(content)
    about = header.get("__metadata__", {})
    key = next((key for key in ("demosift", "checkpoint") if key in about), None)
    kind = rng.randrange(4)
    if kind < 2 and key is not None:
        about[key] = dumps(spoil(json.loads(about[key]), rng))
    elif kind == 2:
        name = rng.choice(sorted(set(header) - {"__metadata__"}))
        header[name]["dtype"] = rng.choice(
            ["F8_E4M3", "F8_E5M2", "F16", "BF16", "I32", "F64", "BOOL", "C64", "F4", "X"]
        )
    else:
        header = spoil(header, rng)
    if rng.random() < 0.2:
        bad = struct.pack("<f", rng.choice([math.nan, math.inf, 3e38]))
        place = 4 * rng.randrange(max(len(data) // 4, 1))
        data = data[:place] + bad + data[place + 4 :]
    text = dumps(header).encode("utf-8", "replace")
    path.write_bytes(struct.pack("<Q", rng.choice([len(text)] * 9 + [2**62])) + text + data)


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def of_tensors(path: Path, rng: random.Random) -> None:
    """Other arrays in a whole file: a checkpoint is sealed again, so that what it holds is looked at."""
    arrays, (header, _) = load_file(path), split_safetensors(path.read_bytes())
    about = header.get("__metadata__", {})
    told = json.loads(about["checkpoint"]) if "checkpoint" in about else {}
    note = json.loads(told["note"]) if told.get("note") else {}
    name, kind = rng.choice(sorted(arrays)), rng.randrange(8)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[rng.choice(["x", "layers/9/kernel", "layers/0/kernel/x", "normaliser/shift", *TEXTS[:3]])] = arrays.pop(
            name
        )
    elif kind == 2:  # no members, or more
        arrays = {key: array[: rng.choice([0, 1])] if array.ndim else array for key, array in arrays.items()}
    elif kind == 3 and note:
        with contextlib.suppress(ValueError):
            note = json.loads(dumps(spoil(note, rng)))
    else:
        arrays[name] = np.ascontiguousarray(odd_array(arrays[name], rng))
    if told:
        position = rng.choice([told.get("iteration")] * 4 + [0, 7, 10**9])
        moves = position is not None and STATE.fullmatch(path.name)
        target = path.with_name(f"{position:010d}.safetensors") if moves else path
        write_arrays(target, arrays, position, note or None)
        if target != path:
            path.unlink()
    elif "digest" in about:  # an earlier release's
        write_arrays(path, arrays)
    else:
        save_file(arrays, path, about)


# Encoders


def of_onnx(path: Path, rng: random.Random, secret: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load_model_from_string(path.read_bytes())
    graph, kind = model.graph, rng.randrange(14)
    node, constant = rng.choice(graph.node), rng.choice(graph.initializer)
    sides = graph.input[0].type.tensor_type.shape.dim
    if kind == 0:
        graph.node.remove(node)
    elif kind == 1:
        node.op_type = rng.choice(["Identity", "Loop", "If", "Exp", "Conv", "MatMul", "x", "Sqrt", "NonZero", "Tile"])
    elif kind == 2:
        node.domain = rng.choice(["com.microsoft", "x", "ai.onnx", "ai.onnx.ml", "ai.onnx.training"])
    elif kind == 3:
        constant.external_data.add(key="location", value=str(secret))
        constant.data_location = TensorProto.EXTERNAL
    elif kind == 4:
        sides[rng.randrange(len(sides))].dim_value = rng.choice([0, -1, 1, 7, 10**9, 2**62, 5000, 3])
    elif kind == 5:
        sides[rng.randrange(len(sides))].dim_param = "x"
    elif kind == 6:
        graph.input[0].type.tensor_type.elem_type = rng.choice([0, 1, 2, 6, 7, 8, 10, 11, 16, 99])
    elif kind == 7:
        constant.CopyFrom(numpy_helper.from_array(np.array(rng.choice([[0], [10**12, -1], [1, 1, 1], []]), np.int64)))
        constant.name = "flat"
    elif kind == 8:
        constant.dims[:] = [rng.choice([10**12, -1, 0, 2**31])]
    elif kind == 9:
        model.opset_import[0].version = rng.choice([0, 1, 99, -1, 2**31, 11])
    elif kind == 10:
        model.ir_version = rng.choice([0, 99, 3])
    elif kind == 11:  # far more than it takes
        graph.initializer.append(numpy_helper.from_array(np.array([rng.choice([10**10, 3 * 10**9])], np.int64), "many"))
        graph.node.insert(0, helper.make_node("ConstantOfShape", ["many"], ["zeros"]))
        graph.node.insert(1, helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0))
        graph.output.append(helper.make_tensor_value_info("nothing", TensorProto.FLOAT, []))
    elif kind == 12:
        endless(graph, rng)
    else:
        graph.output[0].name = rng.choice(["x", "pixels", "image", "first"])
    path.write_bytes(model.SerializeToString())


def endless(graph: Any, rng: random.Random) -> None:
    """A loop that does not end in time."""
    from onnx import TensorProto, helper, numpy_helper

    one, yes = numpy_helper.from_array(np.array(2**62), "times"), numpy_helper.from_array(np.array(True), "yes")
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["on"])],
        "body",
        inputs,
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    graph.initializer.extend([one, yes])
    graph.node.insert(0, helper.make_node("Loop", ["times", "yes"], [], body=body))
