"""What went wrong, apart from the types that need NumPy: the command line answers without it where it can."""


class InputError(Exception):
    """Something the user gave is wrong.

    The message is one line that says what and where; the command line exits with 2.
    """
