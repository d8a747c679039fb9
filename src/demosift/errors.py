"""What went wrong and how it may be shown, without NumPy: the command line answers without it where it can."""


class InputError(Exception):
    """Something the user gave is wrong.

    The message is one line that says what and where, even if it quotes a file; the command line exits with 2.
    """

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


def printable(text: str) -> str:
    """The text with control, direction and surrogate characters escaped: they rewrite screens and reorder pages."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
