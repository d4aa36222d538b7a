"""`python -m simserve`: the same program as `simserve`."""

import sys

from simserve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
