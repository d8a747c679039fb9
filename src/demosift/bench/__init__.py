"""What bench verbs share: names that are checked, results in a .json file, their tables beside it in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demosift.files import atomic_write, write_json
from demosift.types import InputError


def check_out(out: str | None) -> None:
    if out is not None and Path(out).suffix != ".json":
        raise InputError(f"{out}: results are a .json file; tables are written beside it")


def known(what: str, given: Sequence[str] | None, names: Iterable[str]) -> list[str]:
    """The given names, or all of them where none are given."""
    names = list(names)
    for name in given or ():
        if name not in names:
            raise InputError(f"bench: unknown {what} {name!r}; there are {', '.join(names)}")
    return list(given or names)


def write_with_tables(path: Path, answer: Mapping[str, Any], text: str) -> None:
    write_json(path, dict(answer))
    with atomic_write(path.with_suffix(".md")) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")
