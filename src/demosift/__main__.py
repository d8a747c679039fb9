"""`demosift` and `python -m demosift`. It imports nothing before Ctrl-C is one line, not a traceback of an import."""

import os
import signal
import sys


def main() -> int:
    signal.signal(signal.SIGINT, stop)
    from demosift.cli.main import main

    code = main()
    if code > 128:  # ended by a signal, perhaps in the middle of a library, which may not survive Python's own end
        os._exit(code)
    return code


def stop(*_: object) -> None:
    os.write(2, b"demosift: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
