"""How `fuzz.py` spoils a sample: one mutation of one file in a folder, chosen by what kind of file it is.

This module has what goes for every file, and for text; `fuzz_binary` has arrays and the formats that hold them.
"""

import contextlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demosift.results import cell

RAW = "\uffffraw:"  # a JSON value that starts with it is written as the text that follows, whatever it is
DEEP = "[" * 2000 + "]" * 2000
NUMBERS = [0, -1, 1, 7, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e9, 1e308, -1e308, 1e-320]
TEXTS = ["", "x", "../x", "/etc/passwd", "a/../../x", "\0", "²", "é", "x" * 5000, "..", ".", "{}", "\u2028", "minari:x"]
RAWS = ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', DEEP, "1" * 5000, '"a":', "{", '{"a":1,"a":2}', "", "'x'"]

Mutator = Callable[[Path, random.Random, Path], None]


def mutate(folder: Path, rng: random.Random, secret: Path, broken: set[Path]) -> None:
    """Spoils one file. Of `broken` ones nobody knows what their libraries do, so only their bytes are changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    if rng.random() < 0.01:
        of_folder(folder, rng, secret)
        return
    path = rng.choice(files)
    own = None if path in broken else by_kind().get(path.suffix)
    chance = rng.random()
    if own is not None and chance < 0.7:
        with contextlib.suppress(Exception):  # an earlier mutation may have left nothing to understand
            own(path, rng, secret)
            return
    if not path.exists():
        return
    if chance < 0.93:
        broken.add(path)
        of_bytes(path, rng)
    else:
        of_file(path, rng, secret)


def by_kind() -> dict[str, Mutator]:
    import fuzz_binary as binary  # which uses this module

    return {
        ".json": of_json,
        ".jsonl": of_lines,
        ".toml": of_toml,
        ".txt": of_text,
        ".npy": binary.of_npy,
        ".npz": binary.of_npz,
        ".parquet": binary.of_parquet,
        ".arrow": binary.of_arrow,
        ".hdf5": binary.of_hdf5,
        ".safetensors": binary.of_safetensors,
        ".onnx": binary.of_onnx,
    }


def of_bytes(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if not content:
        return
    # Formats keep what they say about themselves at their start or end.
    low, high = rng.choice(
        [(0, len(content)), (0, min(1000, len(content))), (max(0, len(content) - 1000), len(content))]
    )
    start = rng.randrange(low, high)
    stop = min(start + rng.choice((1, 2, 4, 8, 64, 1000)), len(content))
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            content[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del content[start:]
    elif kind == 2:
        content[start:stop] = bytes(rng.randrange(256) for _ in range(stop - start))
    elif kind == 3:
        content[start:stop] = rng.choice((b"\xff", b"\0", b"\x7f")) * (stop - start)
    elif kind == 4:
        content[start:start] = content[start:stop]
    elif kind == 5:
        content += b"\0" * rng.choice((1, 1000))
    else:
        del content[start:stop]
    path.write_bytes(content)


def of_file(path: Path, rng: random.Random, secret: Path) -> None:
    """Something else in its place, or beside it."""
    kind, content = rng.randrange(12), path.read_bytes()
    if kind == 0:
        path.with_name(f"²{path.name}").write_bytes(content)
        return
    if kind == 1:
        other = path.with_name(f"other{path.suffix}")
        other.unlink(missing_ok=True)
        other.symlink_to(secret)
        return
    if kind == 2:
        Path(os.fsdecode(os.fsencode(path.parent) + b"/\xff" + os.fsencode(path.name))).write_bytes(content)
        return
    path.unlink()
    if kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.mkdir()
    elif kind == 5:
        path.symlink_to(secret)
    elif kind == 6:
        path.write_bytes(b"")
    elif kind == 7:
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", path.name, "nowhere", "..", "/proc/self/environ"]))
    elif kind == 8:  # a good file, elsewhere or beside
        target = rng.choice([secret.parent, path.parent]) / f"moved{path.suffix}"
        target.write_bytes(content)
        path.symlink_to(target)
    elif kind == 9:
        with socket.socket(socket.AF_UNIX) as held, contextlib.suppress(OSError):  # its path may be too long
            held.bind(str(path))
    elif kind == 10:
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def of_folder(folder: Path, rng: random.Random, secret: Path) -> None:
    """A folder that lies somewhere else, is not there, or is a file."""
    inside = (path for path in folder.rglob("*") if path.parent != folder)  # the others are what a user names
    folders = sorted(path for path in inside if path.is_dir() and not path.is_symlink())
    if not folders:
        return
    path = rng.choice(folders)
    kind = rng.randrange(4)
    target = rng.choice([secret.parent, secret.parent, folder]) / "moved"
    if kind < 2 and not target.exists():
        path.rename(target)
        path.symlink_to(target)
        return
    shutil.rmtree(path)
    if kind == 2:
        path.write_bytes(b"x")
    elif kind == 3:
        path.symlink_to(rng.choice(["nowhere", "..", ".", path.name, "/dev"]))


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
    if rng.random() < 0.08:
        of_encoding(path, rng)
        return
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
    if rng.random() < 0.08:
        of_encoding(path, rng)
        return
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    kind = rng.randrange(8)
    if kind == 0:
        lines.insert(place, lines[place])
    elif kind == 1:
        del lines[place]
    elif kind == 2:
        lines.insert(place, rng.choice(["", " ", "{}", "[]", "1", "null", "\x0c", "\u2028"]))
    else:
        lines[place] = dumps(spoil(json.loads(lines[place]), rng))
    path.write_text("\n".join(lines) + "\n")


# Other text


def of_encoding(path: Path, rng: random.Random) -> None:
    """The same text in another encoding, or in none."""
    content = path.read_bytes()
    place = rng.randrange(len(content) + 1)
    spoiled: list[Callable[[], bytes]] = [
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.decode().encode("utf-16"),
        lambda: content[:place] + b"\xff" + content[place:],
        lambda: content[:place] + b"\xed\xa0\x80" + content[place:],  # half a character
        lambda: content[:place] + b"\0" + content[place:],
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content + content,
        lambda: b"[" * 100_000,
        lambda: b"[" + b"[]," * 100_000 + b"[]]",
    ]
    path.write_bytes(rng.choice(spoiled)())


def of_toml(path: Path, rng: random.Random, secret: Path) -> None:
    """Other keys and values, or lines that TOML has and this file should not."""
    lines = path.read_text().splitlines()
    place = rng.choice([index for index, line in enumerate(lines) if " = " in line])
    name, _, text = lines[place].partition(" = ")
    values = ["nan", "inf", "-inf", "1e999", "0", "-1", "1e300", "9" * 400, "true", "[]", "{}", "{a = {b = 1}}", '""']
    values += ["[[[]]]", "[1, 'x']", "1979-05-27", "0x10", '"\\ud800"', '"\\u0000"', "", "[" * 1000, "0.5", "'x'"]
    values += [json.dumps(each) for each in TEXTS] + [f"[{text}, {text}]"]
    others = ["[table]", "[[tables]]", "x = 1", "out = '/etc'", "a.b.c = 1", "=", "config = 'x'", "a." * 5000 + "b = 1"]
    kind = rng.randrange(8)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.append(lines[place])
    elif kind == 2:
        lines.insert(place, rng.choice(others))
    elif kind == 3:
        lines[place] = f"{json.dumps(rng.choice(TEXTS))} = {text}"
    elif kind == 4:
        of_encoding(path, rng)
        return
    else:
        lines[place] = f"{name} = {rng.choice(values)}"
    path.write_text("\n".join(lines) + "\n")


def of_text(path: Path, rng: random.Random, secret: Path) -> None:
    """A list of numbers."""
    words = ["-1", "0-999999999999", "1e3", "7-2", "²", "", ",", "--", "{", "0x1", "9" * 50, "1,1", "٣", "\0", "5-"]
    parts = path.read_text().split(",")
    parts[rng.randrange(len(parts))] = rng.choice([*words, *TEXTS])
    path.write_text(",".join(parts))
