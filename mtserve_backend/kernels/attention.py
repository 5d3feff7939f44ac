"""Append and attend over pages: `sum_j SiLU(q_i . k_j) v_j`, causal for history, target mask for candidates.

No copy of a history is made: keys and values are read where they lie. Source: MTServe section 2, equation 7.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mtserve_backend.kernels.layout import PageNumbers, Segment

# Query rows attended at a time: their scores against a page stay in a core's second-level cache.
TILE_ROWS = 256


def append(layer: torch.Tensor, pages: PageNumbers, k: torch.Tensor, v: torch.Tensor, segment: Segment) -> None:
    """Write the segment's new rows, `[T, heads * head_dim]`, to positions `cached .. cached + new` of its pages."""
    _, _, heads, page_tokens, head_dim = layer.shape
    done = 0
    while done < segment.new:
        index, offset = divmod(segment.cached + done, page_tokens)
        count = min(page_tokens - offset, segment.new - done)
        rows = slice(segment.first_row + done, segment.first_row + done + count)
        page = layer[int(pages[index])]
        page[0, :, offset : offset + count] = k[rows].view(count, heads, head_dim).transpose(0, 1)
        page[1, :, offset : offset + count] = v[rows].view(count, heads, head_dim).transpose(0, 1)
        done += count


def attend(
    layer: torch.Tensor,
    pages: PageNumbers,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment: Segment,
    out: torch.Tensor,
) -> None:
    """Attend the segment's rows, writing `out[T, heads * head_dim]` at the same rows.

    `layer` is one layer's pages `[pages, 2, heads, page_tokens, head_dim]`, to which the new rows have been appended;
    `k` and `v` are read only for the target rows' view of themselves.
    """
    heads, head_dim = layer.shape[2], layer.shape[4]
    last_row = segment.first_row + segment.rows
    new_end = segment.first_row + segment.new
    for start in range(segment.first_row, last_row, TILE_ROWS):
        stop = min(start + TILE_ROWS, last_row)
        queries = q[start:stop].view(stop - start, heads, head_dim).transpose(0, 1).contiguous()
        limits = _limits(segment, start, stop)
        result = _attend_tile(layer, pages, queries, limits)
        out[start:stop].view(stop - start, heads, head_dim).copy_(result.transpose(0, 1))
    if segment.targets:
        rows = slice(new_end, last_row)
        shape = (segment.targets, heads, head_dim)
        own = F.silu((q[rows].view(shape) * k[rows].view(shape)).sum(-1, keepdim=True))
        out[rows].view(shape).addcmul_(own, v[rows].view(shape))


def _limits(segment: Segment, start: int, stop: int) -> list[int]:
    """For each row of the tile, how many keys it sees."""
    first = segment.first_row
    return [
        segment.cached + row - first + 1 if row - first < segment.new else segment.visible for row in range(start, stop)
    ]


def _attend_tile(layer: torch.Tensor, pages: PageNumbers, queries: torch.Tensor, limits: list[int]) -> torch.Tensor:
    page_tokens = layer.shape[3]
    keys_of, values_of = layer.select(1, 0).transpose(-1, -2), layer.select(1, 1)
    result = torch.zeros_like(queries)
    least, most = min(limits), max(limits)
    rows = torch.tensor(limits, device=queries.device)[:, None] if least < most else None
    # One buffer for all full pages: memory fresh from the system for each would cost as much as a product.
    whole = queries.new_empty((*queries.shape[:2], page_tokens if most >= page_tokens else 0))
    for index, page in enumerate(pages[: -(-most // page_tokens)].tolist()):
        begin = index * page_tokens
        count = min(page_tokens, most - begin)
        keys, values, scores = keys_of[page], values_of[page], whole
        if count < page_tokens:
            keys, values = keys[..., :count], values[:, :count]
            scores = queries.new_empty((*queries.shape[:2], count))
        torch.bmm(queries, keys, out=scores)
        F.silu(scores, inplace=True)
        if rows is not None and begin + count > least:
            hidden = torch.arange(begin, begin + count, device=rows.device)[None, :] >= rows
            scores.masked_fill_(hidden, 0.0)
        result.baddbmm_(scores, values)
    return result
