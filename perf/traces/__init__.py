"""Traces: who asked when, with which events. One file format, its readers and writers, and a generator.

`python -m perf.traces --help` is the command line, docs/traces.md the format's description.
"""
