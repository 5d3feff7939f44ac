"""`python -m mtserve_backend.metrics`: the table in docs/metrics.md."""

import sys

from mtserve_backend.metrics.families import table

if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
