"""`python -m perf.traces`."""

import sys

from perf.traces.cli import main

if __name__ == "__main__":
    sys.exit(main())
