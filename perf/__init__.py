"""Traces, training, replay and reports: what measures mtserve. Nothing here is needed to serve."""

import mtserve_backend  # noqa: F401 - sets what OpenMP reads, before torch is imported
