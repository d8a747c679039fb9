"""`python -m demosift` is `demosift`."""

import sys

from demosift.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
