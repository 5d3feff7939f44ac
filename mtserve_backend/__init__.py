"""mtserve: generative recommenders behind Triton, with a hierarchical per-user key/value cache."""

import os

# How long an OpenMP thread spins while it waits for its neighbour; read when torch is first imported, hence here. By
# default it outlasts a time slice: where something else keeps one of the cores busy (Triton's own threads do), two
# threads of a model share a core, and the one that has nothing to do keeps the other from working. Measured on two
# cores, one of them taken, 1,000 tokens of the paper's model: 5.0 s by default, 0.8 s with this; both cores free: 0.23
# and 0.25 s.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# With two teams of threads in a process (a thread that only loads weights makes one too), libgomp hardly spins at all,
# and every product pays for a sleep. This keeps it at 1,000 turns.
os.environ.setdefault("OMP_WAIT_POLICY", "ACTIVE")
# Memory that grows and shrinks in place: the pools stay, slices of all sizes come and go, and nothing is left in holes.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
