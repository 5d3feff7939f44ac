"""What the tests of scatter and gather draw from."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st

PAGES = 7
shapes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5))  # heads, page_tokens, head_dim
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
orders = st.permutations(range(PAGES)).map(lambda order: np.array(order, dtype=np.int64))
layer_counts = st.integers(1, 3)


def any_bits(layers: int, pages: int, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A pool of any bits at all, NaN among them: `[layers, pages, 2, heads, page_tokens, head_dim]`."""
    words = layers * pages * 2 * math.prod(shape) * dtype.itemsize // 4
    rng = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (words,), dtype=torch.int32, generator=rng)
    return bits.view(dtype).view(layers, pages, 2, *shape)
