"""A health check that asks the model: for a user of nobody's, with no events and no candidates.

Triton's own readiness stays 200 when a model's process has died. For a container's health check and a pod's probe:

    python3 -m mtserve_backend.probe http://localhost:8000 hstu      (or this file, wherever it lies)

Exit code 0: the model answers; 1: it does not, and stderr says why; 2: wrong arguments. Imports Python's own library
only, so that it takes a tenth of a second.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from urllib.parse import quote

TIMEOUT_S = 5.0
# Not a user's: every instance of every probe has the same.
NOBODY = "mtserve-probe"


def probe(url: str, model: str) -> str | None:
    """None if the model answers; otherwise what went wrong."""
    types = {"HISTORY_ITEMS": "INT64", "HISTORY_ACTIONS": "INT32", "HISTORY_START": "INT64", "CANDIDATES": "INT64"}
    data: dict[str, list[int]] = {name: [0] if name == "HISTORY_START" else [] for name in types}
    body = {
        "parameters": {"sequence_id": NOBODY, "sequence_start": True, "sequence_end": True},
        "inputs": [
            {"name": name, "datatype": types[name], "shape": [1, len(values)], "data": values}
            for name, values in data.items()
        ],
    }
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}/infer",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"{model} answers {error.code}: {error.read(300).decode('utf-8', 'replace')}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"


def main(arguments: list[str]) -> int:
    """The exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python3 -m mtserve_backend.probe URL MODEL, as in: ... http://localhost:8000 hstu\n")
        return 2
    problem = probe(*arguments)
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
