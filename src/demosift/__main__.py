"""`python -m demosift` is `demosift`."""

import sys

from demosift.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
