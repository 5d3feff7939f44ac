"""The figures that the MTServe paper prints, on its hardware: an A100 with 80 GB and a host with 184 cores."""

from __future__ import annotations

# Table 1, KuaiRand-1K: batch -> method -> latency in ms, device hits and total hits in percent.
TABLE_1 = {
    1: {"recompute": (21.2, None, None), "device": (17.4, 63.52, 63.52), "hierarchical": (14.4, 63.52, 94.66)},
    4: {"recompute": (72.8, None, None), "device": (42.1, 63.92, 63.92), "hierarchical": (33.5, 63.92, 98.57)},
    8: {"recompute": (143.6, None, None), "device": (72.9, 64.36, 64.36), "hierarchical": (47.3, 64.36, 98.59)},
}
# Table 2, KuaiRand-1K, batch 8: step -> ms for recompute, device, hierarchical.
TABLE_2 = {
    "1-2": (None, 0.1, 0.1), "3": (None, 0.5, 0.6), "4": (9.7, 1.5, 1.5), "5": (5.7, 3.6, 3.6), "6": (None, 0.1, 0.1),
    "7": (None, 0.05, 0.7), "8": (127.4, 66.3, 39.8), "9": (None, None, 0.03), "10": (0.8, 0.7, 0.7),
}  # fmt: skip
# Table 3: chunk size -> wait for I/O, compute, end to end, in ms.
TABLE_3 = {
    512: (34.64, 12.66, 57.6),
    1024: (23.11, 13.35, 47.3),
    2048: (22.22, 14.79, 49.2),
    4096: (19.09, 17.74, 49.9),
}
# Table 6: device pages of 32 tokens -> end to end in ms.
TABLE_6 = {20_480: 84.7, 30_720: 58.9, 40_960: 47.3, 51_200: 41.3, 61_440: 37.0}
# Figure 1: tokens processed for three consecutive requests of a user.
FIGURE_1 = {"recompute": 4_031, "reuse": 529}
# Appendix C: MiB of device memory.
APPENDIX_C = {"pools": 25_484, "workbench": 15_000, "weights and the rest": 2_187}
