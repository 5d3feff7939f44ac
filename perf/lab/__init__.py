"""What the commands that measure share: presets, results, the paper's figures, servers to measure and ways to ask them.

A command (`perf/paradigms.py`, `perf/steps.py`, ...) says what it measures; everything else of it is here.
"""
