"""mtserve: generative recommenders behind Triton, with a hierarchical per-user key/value cache."""
