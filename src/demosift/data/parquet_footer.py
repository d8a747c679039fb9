"""What the end of a Parquet file claims: how many rows, bytes and values its row groups have.

Arrow tells the same, but where the statistics of a column are damaged, its Python functions end the process. The end of
the file is in Thrift's compact protocol: numbers of seven bits a byte, and structures of numbered fields.
"""

import struct
from pathlib import Path
from typing import Any, NamedTuple

from demosift.files import open_regular
from demosift.types import InputError

_DEEPEST = 32
_MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)


class RowGroup(NamedTuple):
    num_rows: int
    num_bytes: int
    num_values: list[tuple[str, int]]  # of each stored column, with the name of the table's column that it is part of


def read_footer(path: Path) -> list[RowGroup]:
    """The row groups of a file that Arrow has opened."""
    with open_regular(path) as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if len(tail) < 8 or tail[4:] != _MAGIC or length > end - 8:
            raise InputError(f"{path}: damaged Parquet file: its end is not what it should be")
        file.seek(end - 8 - length)
        footer = file.read(length)
    try:
        return [_row_group(group) for group in _Reader(footer).structure().get(4, [])]
    except (IndexError, KeyError, AttributeError, TypeError, ValueError, struct.error) as error:
        raise InputError(f"{path}: damaged Parquet file: its end is not what it should be") from error


def _row_group(fields: dict[int, Any]) -> RowGroup:
    chunks = [chunk[3] for chunk in fields[1] if 3 in chunk]
    values = [(b"".join(chunk[3][:1]).decode(), int(chunk[5])) for chunk in chunks]
    found = RowGroup(int(fields[3]), int(fields[2]), values)
    if min(found.num_rows, found.num_bytes, *(number for _, number in values)) < 0:
        raise ValueError("a negative count")
    return found


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def integer(self) -> int:
        number = self.unsigned()
        return (number >> 1) ^ -(number & 1)

    def binary(self) -> bytes:
        length = self.unsigned()
        self.place += length
        if self.place > len(self.content):
            raise IndexError("a text that goes on after the end")
        return self.content[self.place - length : self.place]

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """The fields by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, depth + 1)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("too deep")
        if kind in (_TRUE, _FALSE, _BYTE):  # outside of a structure, a truth value takes a byte too
            return self.byte()
        if kind in _INTEGERS:
            return self.integer()
        if kind == _DOUBLE:
            self.place += 8
            return struct.unpack_from("<d", self.content, self.place - 8)[0]
        if kind == _BINARY:
            return self.binary()
        if kind == _STRUCT:
            return self.structure(depth)
        if kind in (_LIST, _SET):
            head = self.byte()
            length = head >> 4 if head >> 4 < 15 else self.unsigned()
            return [self.value(head & 15, depth + 1) for _ in range(self.checked(length))]
        if kind == _MAP:
            length = self.checked(self.unsigned())
            kinds = self.byte() if length else 0
            return [(self.value(kinds >> 4, depth + 1), self.value(kinds & 15, depth + 1)) for _ in range(length)]
        raise ValueError(f"no such type: {kind}")

    def checked(self, length: int) -> int:
        """A length that there can be, since whatever there is takes a byte or more."""
        if length > len(self.content) - self.place:
            raise IndexError("more than there is")
        return length
