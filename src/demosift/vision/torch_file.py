"""Tensors out of an old torch file (`.pt`, `.pth` before version 1.6), without torch and without unpickling.

Such a file is five pickles and then the numbers. A pickle is a program that may name any function; here its opcodes
are only listed (`pickletools.genops` runs nothing) and the few that a dictionary of tensors needs are followed by hand.
Four names are known. Any other name and any other opcode is refused.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from demosift.types import InputError

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MAP, REBUILD = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
STORAGES = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}
NAMES = {MAP, REBUILD, *STORAGES}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(NamedTuple):
    text: str


class Storage(NamedTuple):
    key: str
    dtype: np.dtype
    size: int


class Tensor(NamedTuple):
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in numbers, not bytes


class Refused(ValueError):
    """Something in the file that a dictionary of tensors does not need."""


def read_torch_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary by their names."""
    try:
        with path.open("rb") as file:
            magic, protocol, system, state, keys = (follow(file) for _ in range(5))
            if (magic, protocol) != (MAGIC, PROTOCOL) or not isinstance(system, dict):
                raise Refused("not a torch file of the old form")
            if system.get("little_endian") is not True:
                raise Refused("not little-endian")
            if not isinstance(state, dict) or not all(isinstance(each, Tensor) for each in state.values()):
                raise Refused("not a dictionary of tensors")
            storages = {each.storage.key: each.storage for each in state.values()}
            if not isinstance(keys, list) or set(keys) != storages.keys():
                raise Refused("its storages are not those of its tensors")
            content = {key: read_storage(file, storages[key]) for key in keys}
            return {str(name): view(content[tensor.storage.key], tensor) for name, tensor in state.items()}
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    except Refused as error:
        raise InputError(f"{path}: {error}; nothing in it was run") from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise InputError(f"{path}: not a torch file of the old form, or cut short; nothing in it was run") from error


def read_storage(file: BinaryIO, storage: Storage) -> np.ndarray:
    if int.from_bytes(file.read(8), "little") != storage.size:
        raise Refused("a storage has another size than its tensors say")
    content = file.read(storage.size * storage.dtype.itemsize)
    return np.frombuffer(content, storage.dtype, storage.size)  # which refuses too few bytes


def view(storage: np.ndarray, tensor: Tensor) -> np.ndarray:
    _, offset, shape, strides = tensor
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(each) is int and each >= 0 for each in numbers):
        raise Refused("a tensor has no proper shape")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 in shape or last >= len(storage):
        raise Refused("a tensor reaches beyond its storage")
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False).copy()


@dataclass
class Machine:
    """What the opcodes of one pickle build: constants, tuples, lists, dictionaries, and the four names."""

    stack: list[Any]
    marks: list[int]
    memo: dict[int, Any]

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise Refused("its pickle takes more than it made")
        start = len(self.stack) - count
        items = tuple(self.stack[start:])
        del self.stack[start:]
        return items


def follow(file: BinaryIO) -> Any:
    """What one pickle builds."""
    machine = Machine([], [], {})
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name in _VALUES:
            machine.stack.append(argument)
        elif name in _CONSTANTS:
            machine.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            machine.stack.append(machine.pop(_TUPLES[name]))
        elif name in _STEPS:
            _STEPS[name](machine, argument)
        else:
            raise Refused(f"its pickle has the opcode {name}, which tensors do not need")
    (result,) = machine.stack
    return result


def _name(machine: Machine, text: str) -> None:
    if text not in NAMES:
        raise Refused(f"its pickle names {text.replace(' ', '.')!r}, which is none of the four that tensors need")
    machine.stack.append(Name(text))


def _call(machine: Machine, _: None) -> None:
    name, arguments = machine.pop(2)
    if name == Name(MAP) and arguments == ():
        machine.stack.append({})
    elif name == Name(REBUILD):
        storage, offset, shape, strides = arguments[:4]
        if not isinstance(storage, Storage):
            raise Refused("a tensor without a storage")
        machine.stack.append(Tensor(storage, offset, shape, strides))
    else:
        raise Refused("its pickle calls something that tensors do not need")


def _refer(machine: Machine, _: None) -> None:
    """A storage: its numbers follow after the pickles."""
    ((kind, name, key, _device, size, _view),) = machine.pop(1)
    if kind != "storage" or not isinstance(name, Name) or name.text not in STORAGES or type(size) is not int:
        raise Refused("its pickle refers to something else than a storage of float32 or int64")
    machine.stack.append(Storage(str(key), STORAGES[name.text], size))


def _fill(machine: Machine, items: list[Any]) -> None:
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _append(machine: Machine, items: list[Any]) -> None:
    machine.stack[-1].extend(items)


def _put(machine: Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


_STEPS: dict[str, Callable[[Machine, Any], object]] = {
    "PROTO": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "SETITEM": lambda machine, _: _fill(machine, list(machine.pop(2))),
    "SETITEMS": lambda machine, _: _fill(machine, machine.since_mark()),
    "APPEND": lambda machine, _: _append(machine, list(machine.pop(1))),
    "APPENDS": lambda machine, _: _append(machine, machine.since_mark()),
    "GLOBAL": _name,
    "REDUCE": _call,
    "BINPERSID": _refer,
    "BUILD": lambda machine, _: machine.pop(1),  # the dictionary's notes on versions of layers
}
