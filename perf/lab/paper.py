"""What the MTServe paper publishes, each with its table or figure: measured there on an A100 80 GB, in bfloat16."""

from __future__ import annotations

from perf.lab.presets import PARADIGMS
from perf.lab.result import Cell, Column, Table

HARDWARE = "the paper's figures: one A100 80 GB, 184 cores, 8 layers x 4 heads x 128, bfloat16"
BATCHES = (1, 4, 8)

# Tables 1 and 5: mean latency (ms), hit ratio on the GPU, in all; by batch size and paradigm.
_LATENCY = {
    "kuairand": ((21.2, 17.4, 14.4), (72.8, 42.1, 33.5), (143.6, 72.9, 47.3)),
    "mt": ((14.1, 12.8, 11.7), (43.6, 28.9, 17.3), (82.4, 48.6, 26.6)),
    "kuairand, 4 layers": ((21.2, 10.8, 9.2), (37.4, 23.7, 16.7), (72.4, 39.9, 27.0)),
}
# Table 5 gives no hit ratio of MTServe on the GPU alone.
_DEVICE_HITS = {
    "kuairand": (0.6352, 0.6392, 0.6436),
    "mt": (0.6026, 0.6069, 0.6173),
    "kuairand, 4 layers": (0.6352, 0.6392, 0.6434),
}
_TOTAL_HITS = {
    "kuairand": (0.9466, 0.9857, 0.9859),
    "mt": (0.9673, 0.9744, 0.9871),
    "kuairand, 4 layers": (0.9856, 0.9857, 0.9859),
}
_SOURCE = {"kuairand": "Table 1", "mt": "Table 1", "kuairand, 4 layers": "Table 5"}

# Table 2: ms of each step by batch size and paradigm; None where the paper has a dash.
STEPS = (
    ("1-2 prepare metadata", ((None, 0.1, 0.1), (None, 0.1, 0.1), (None, 0.1, 0.1))),
    ("3 strip tokens", ((None, 0.4, 0.5), (None, 0.4, 0.6), (None, 0.5, 0.6))),
    ("4 embedding", ((2.2, 1.2, 1.5), (5.0, 1.3, 1.5), (9.7, 1.5, 1.5))),
    ("5 data layout", ((1.9, 1.6, 2.0), (3.4, 2.4, 2.9), (5.7, 3.6, 3.6))),
    ("6 await metadata", ((None, 0.01, 0.1), (None, 0.1, 0.1), (None, 0.1, 0.1))),
    ("7 update metadata", ((None, 0.05, 0.2), (None, 0.05, 0.4), (None, 0.05, 0.7))),
    ("8 HSTU inference", ((16.7, 13.5, 9.4), (63.9, 37.1, 27.1), (127.4, 66.3, 39.8))),
    ("9 offload KV", ((None, None, 0.03), (None, None, 0.03), (None, None, 0.03))),
    ("10 postprocess", ((0.5, 0.5, 0.5), (0.6, 0.6, 0.6), (0.8, 0.7, 0.7))),
)

# Table 3: chunk size -> (waiting, computing, end to end), ms at batch 8. At 4,096 the text says 17.09 for the waiting.
CHUNKS = {512: (34.64, 12.66, 57.6), 1024: (23.11, 13.35, 47.3), 2048: (22.22, 14.79, 49.2), 4096: (19.09, 17.74, 49.9)}

# Table 6: primary cache in pages -> (GiB, ms at batch 8); recomputing took 143.6 ms.
CAPACITY = {20_480: (10, 84.7), 30_720: (15, 58.9), 40_960: (20, 47.3), 51_200: (25, 41.3), 61_440: (30, 37.0)}
CAPACITY_RECOMPUTE_MS = 143.6

# Appendix C, MiB: 8 layers, pages of 32, 40,960 primary and 10,008 onload pages, 320,064 tokens a batch, bfloat16.
MEMORY_MIB = {"primary cache": 20_480, "onload buffer": 5_004, "workbench": 15_000, "weights and the rest": 2_187}
MEMORY_TOTAL_MIB = 42_671

# Figure 1: tokens computed for three requests of one user in a row.
TOKENS = {"recompute": 4_031, "reuse": 529}


def paradigms(workload: str) -> Table:
    """Tables 1 and 5."""
    rows: list[list[Cell]] = []
    for number, batch in enumerate(BATCHES):
        base = _LATENCY[workload][number][0]
        for paradigm, latency in zip(PARADIGMS, _LATENCY[workload][number], strict=True):
            cached = paradigm != "recompute"
            device = _DEVICE_HITS[workload][number]
            total = _TOTAL_HITS[workload][number] if paradigm == "hierarchical" else device
            rows.append(
                [batch, paradigm, latency, base / latency, device if cached else None, total if cached else None]
            )
    columns = [
        Column(name="batch"), Column(name="paradigm"), Column(name="latency", unit="ms"),
        Column(name="speed-up", unit="x", digits=2), Column(name="device hits", unit="%", digits=2),
        Column(name="total hits", unit="%", digits=2),
    ]  # fmt: skip
    return _table(f"paper {workload}", f"{_SOURCE[workload]}: {workload}", columns, rows)


def steps() -> Table:
    """Table 2."""
    columns = [Column(name="step")] + [
        Column(name=f"{paradigm}, batch {batch}", unit="ms", digits=2) for batch in BATCHES for paradigm in PARADIGMS
    ]
    rows: list[list[Cell]] = [[name, *(value for batch in values for value in batch)] for name, values in STEPS]
    return _table("paper steps", "Table 2: steps of Algorithm 1 on KuaiRand-1K", columns, rows)


def chunks() -> Table:
    """Table 3."""
    columns = [Column(name="chunk tokens")] + [
        Column(name=name, unit="ms", digits=2) for name in ("waiting", "computing", "end to end")
    ]
    return _table(
        "paper chunks", "Table 3: chunk sizes, batch 8", columns, [[size, *row] for size, row in CHUNKS.items()]
    )


def capacity() -> Table:
    """Table 6."""
    columns = [Column(name="primary pages"), Column(name="memory", unit="GiB", digits=0)]
    columns += [Column(name="latency", unit="ms"), Column(name="speed-up", unit="x", digits=2)]
    rows: list[list[Cell]] = [
        [pages, memory, latency, CAPACITY_RECOMPUTE_MS / latency] for pages, (memory, latency) in CAPACITY.items()
    ]
    note = f"recomputing takes {CAPACITY_RECOMPUTE_MS} ms"
    return _table("paper capacity", "Table 6: primary cache capacity, batch 8", columns, rows, note)


def memory() -> Table:
    """Appendix C."""
    rows: list[list[Cell]] = [[name, size] for name, size in (*MEMORY_MIB.items(), ("in all", MEMORY_TOTAL_MIB))]
    columns = [Column(name="part"), Column(name="size", unit="MiB", digits=0)]
    return _table("paper memory", "Appendix C: memory of the GPU, batch 8, longest history 40,008", columns, rows)


def tokens() -> Table:
    """Figure 1."""
    columns = [Column(name="way"), Column(name="tokens computed", digits=0)]
    return _table("paper tokens", "Figure 1: three requests of one user", columns, [[*row] for row in TOKENS.items()])


def _table(key: str, title: str, columns: list[Column], rows: list[list[Cell]], note: str = "") -> Table:
    note = "; ".join(filter(None, (HARDWARE, note)))
    return Table(key=key, title=title, columns=columns, rows=rows, origin="paper", note=note)
