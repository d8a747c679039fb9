"""How `fuzz.py` spoils a sample: one mutation of one file in a folder, chosen by what kind of file it is."""

import contextlib
import io
import json
import math
import os
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

from demosift.results import cell

RAW = "\uffffraw:"  # a JSON value that starts with it is written as the text that follows, whatever it is
DEEP = "[" * 2000 + "]" * 2000
NUMBERS = [0, -1, 1, 7, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e9, 1e308, -1e308, 1e-320]
TEXTS = ["", "x", "../x", "/etc/passwd", "a/../../x", "\0", "²", "é", "x" * 5000, "..", ".", "{}", "\u2028", "minari:x"]
RAWS = ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', DEEP, "1" * 5000, '"a":', "{", '{"a":1,"a":2}', "", "'x'"]


def mutate(folder: Path, rng: random.Random, secret: Path) -> None:
    """Spoils one file. What cannot be spoiled any more is left as it is."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    path = rng.choice(files)
    by_kind = {".json": of_json, ".jsonl": of_lines, ".npz": of_npz, ".parquet": of_parquet, ".hdf5": of_hdf5}
    by_kind[".safetensors"] = of_safetensors
    own = by_kind.get(path.suffix)
    if own is not None and rng.random() < 0.75:
        with contextlib.suppress(Exception):  # an earlier mutation may have left nothing to understand
            own(path, rng, secret)
            return
    if rng.random() < 0.9:
        of_bytes(path, rng)
    else:
        of_file(path, rng, secret)


def of_bytes(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if not content:
        return
    start = rng.randrange(len(content))
    stop = min(start + rng.choice((1, 2, 4, 8, 64, 1000)), len(content))
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del content[start:]
    elif kind == 2:
        content[start:stop] = bytes(rng.randrange(256) for _ in range(stop - start))
    elif kind == 3:
        content[start:stop] = rng.choice((b"\xff", b"\0")) * (stop - start)
    elif kind == 4:
        content[start:start] = content[start:stop]
    else:
        del content[start:stop]
    path.write_bytes(content)


def of_file(path: Path, rng: random.Random, secret: Path) -> None:
    """Something else in its place, or beside it."""
    kind = rng.randrange(7)
    if kind == 5:
        path.with_name(f"²{path.name}").write_bytes(path.read_bytes())
        return
    if kind == 6:
        path.with_name(f"other{path.suffix}").symlink_to(secret)
        return
    path.unlink()
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(secret)
    elif kind == 3:
        path.write_bytes(b"")


# JSON


def spoil(value: Any, rng: random.Random) -> Any:
    """A JSON value with one place in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        kind = rng.randrange(12)
        if kind == 0:
            return {name: each for name, each in value.items() if name != key}
        if kind == 1:
            return {rng.choice(TEXTS) if name == key else name: each for name, each in value.items()}
        return {**value, key: spoil(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind == 0:
            return value[:place] + value[place + 1 :]
        if kind == 1:
            return [*value, value[place]]
        return [*value[:place], spoil(value[place], rng), *value[place + 1 :]]
    return odd(value, rng)


def odd(value: Any, rng: random.Random) -> Any:
    raws = [f"{RAW}{text}" for text in RAWS]
    others = [None, True, False, [], {}, [[]], [None], {"a": []}, [value], {"x": value}, str(value)]
    return rng.choice([rng.choice(others), rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice(raws)])


def dumps(value: Any) -> str:
    text = json.dumps(value)
    marker = json.dumps(RAW)[1:-1]
    while marker in text:
        start = text.index(marker) - 1
        inside, end = json.JSONDecoder().raw_decode(text, start)
        text = text[:start] + inside.removeprefix(RAW) + text[end:]
    return text


def of_json(path: Path, rng: random.Random, secret: Path) -> None:
    value = json.loads(path.read_text())
    for key in ("observation_space", "action_space", "env_spec"):  # JSON inside JSON, as Minari has it
        if key in value and rng.random() < 0.3:
            value[key] = dumps(spoil(json.loads(value[key]), rng))
            path.write_text(dumps(value))
            return
    value = spoil(value, rng)
    if path.parent.name == "cells" and isinstance(value, dict) and rng.random() < 0.8:
        with contextlib.suppress(Exception):  # sealed again, so that what it says is looked at
            config, data = value["config"], value["data"]
            value["id"] = cell.cell_id(config, cell.data_digest(data))
            value = cell.seal(value)
            path.unlink()
            path = path.with_name(f"{value['id']}.json")
            grid = path.parent.parent / "grids" / "noisy-expert.json"
            cell.write_grid(grid, [file.stem for file in path.parent.iterdir()] + [path.stem])
    path.write_text(dumps(value))


def of_lines(path: Path, rng: random.Random, secret: Path) -> None:
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        lines.insert(place, lines[place])
    elif kind == 1:
        del lines[place]
    else:
        lines[place] = dumps(spoil(json.loads(lines[place]), rng))
    path.write_text("\n".join(lines) + "\n")


# Arrays


def odd_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Another type, another shape, or other numbers."""
    with np.errstate(all="ignore"):
        changes: list[Callable[[], Any]] = [
            lambda: array.astype(rng.choice(["f2", "f8", "i1", "i8", "u8", "c8", "?", "S5", "U3", ">f4", "M8[s]"])),
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
    kind = rng.randrange(8)
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
    else:
        members[f"{name}.npy"] = to_npy(odd_array(arrays[name], rng))
    with zipfile.ZipFile(
        path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    ) as archive:
        for key, content in members.items():
            archive.writestr(key, content)
        if kind == 6 and rng.random() < 0.2:  # a bomb
            archive.writestr("bomb.npy", b"\0" * (200 << 20), zipfile.ZIP_DEFLATED)
    if rng.random() < 0.2:
        of_bytes(path, rng)


def to_npy(array: np.ndarray) -> bytes:
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
    ]
    kind = rng.randrange(8)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.rename_columns([rng.choice(TEXTS) if each == name else each for each in table.column_names])
    elif kind == 2:
        table = table.append_column(name, table.column(place))
    elif kind == 3:
        table = table.slice(0, rng.randrange(rows + 1))
    else:
        table = table.set_column(place, name, rng.choice(columns)())
    pq.write_table(table, path)


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
        kind = rng.randrange(14)
        if kind >= 8 and not isinstance(found, h5py.Dataset):
            kind = rng.randrange(8)
        array = found[()] if isinstance(found, h5py.Dataset) and found.dtype.kind != "O" else np.zeros((3, 2), "f4")
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
            else:
                parent.create_dataset(base, data=odd_array(array, rng))


def odd_attribute(found: Any, rng: random.Random) -> None:
    names = list(found.attrs)
    name = rng.choice([*names, *names, "env_id", "num_samples", "action_low", "num_actions"])
    value = found.attrs.get(name, "{}")
    values: list[Any] = [h5py.Empty("f4"), np.zeros(0), np.arange(3), "x", b"\xff\xfe", np.nan, np.inf, 2**62, -1, True]
    values += [[1e308] * 2, [-np.inf] * 2, [0.0] * 2, np.array(["a", "b"], object), 1e308, "", "[]", "{}", "x" * 60000]
    if isinstance(value, str) and rng.random() < 0.7:
        with contextlib.suppress(ValueError):
            values = [dumps(spoil(json.loads(value), rng))]
    del_first = name in found.attrs and rng.random() < 0.2
    if del_first:
        del found.attrs[name]
    else:
        found.attrs[name] = rng.choice(values)


# Policies


def of_safetensors(path: Path, rng: random.Random, secret: Path) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    about = header.get("__metadata__", {})
    key = next((key for key in ("demosift", "checkpoint") if key in about), None)
    kind = rng.randrange(4)
    if kind < 2 and key is not None:
        about[key] = dumps(spoil(json.loads(about[key]), rng))
    elif kind == 2:
        name = rng.choice(sorted(set(header) - {"__metadata__"}))
        header[name]["dtype"] = rng.choice(["F8_E4M3", "F16", "BF16", "I32", "F64", "BOOL", "X"])
    else:
        header = spoil(header, rng)
    if rng.random() < 0.2:
        bad = struct.pack("<f", rng.choice([math.nan, math.inf, 3e38]))
        place = 4 * rng.randrange(max(len(data) // 4, 1))
        data = data[:place] + bad + data[place + 4 :]
    text = dumps(header).encode("utf-8", "replace")
    path.write_bytes(struct.pack("<Q", rng.choice([len(text)] * 9 + [2**62])) + text + data)
