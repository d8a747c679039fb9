"""How flags are read: numbers in their ranges, no empty text, no value twice, and errors in one line."""

import argparse
from typing import Any, NoReturn

from demosift.errors import InputError
from demosift.ranges import Range, check_once


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are those of other bad input and say where to find help."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.register("type", None, not_empty)
        self.register("action", None, Distinct)

    def add_subparsers(self, **named: Any) -> Any:
        added = super().add_subparsers(**named)
        added.type = str  # it is given all words that follow: each flag says itself what is wrong with its own
        return added

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word[:-3]}: -- is no value")  # argparse would drop it, and store a list
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse's own says nothing where it cannot be written

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (try {self.prog} --help)")


class Distinct(argparse.Action):
    """Stores a value, or several of which none is there twice."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        try:
            check_once(option or self.dest, values if isinstance(values, list) else [])
        except InputError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, values)


def not_empty(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    if "\0" in text:  # from a configuration file; no name of a file has one
        raise argparse.ArgumentTypeError("holds a NUL character")
    return text if text[0] != "~" else _from_home(text)


def _from_home(text: str) -> str:
    """`~` as a shell reads it at the start of a word: in `--out=~/x` it leaves it as it is."""
    from demosift.files import expanded

    try:
        return str(expanded(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class within:
    """A type for argparse: a number in this range."""

    def __init__(self, allowed: Range) -> None:
        self.allowed = allowed

    def __call__(self, text: str) -> Any:
        try:
            return self.allowed.read(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
