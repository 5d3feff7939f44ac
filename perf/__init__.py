"""Traces, training, replay and reports: what measures mtserve. Nothing here is needed to serve."""
