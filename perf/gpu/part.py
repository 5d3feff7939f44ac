"""One part of `perf.gpu`, in a process of its own: `python -m perf.gpu.part NAME DEVICE SCALE [BATCH]`. Prints JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import torch

from perf.gpu import ceilings, kernels, modes, transfers
from perf.gpu.place import Place, place

PARTS = {"ceilings": ceilings.run, "kernels": kernels.run, "transfers": transfers.run}


def describe(where: Place) -> dict[str, Any]:
    """The device, and what drives it."""
    if not where.on_gpu:
        return {"name": "cpu"}
    found = torch.cuda.get_device_properties(where.device)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "processors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
    }


def main(name: str, device: str, scale: str, batch: str = "1") -> int:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        where = place(device, scale)
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    figures = modes.run(where, int(batch)) if name == "modes" else PARTS[name](where)
    result = {"device": describe(where), "figures": [figure.to_dict() for figure in figures]}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
