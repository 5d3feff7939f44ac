"""What the measuring commands share: presets, workloads, the form of a result, the paper's figures, the command line.

The commands are files beside this folder; below it are `perf.traffic`, which drives, and `perf.traces`.
"""
