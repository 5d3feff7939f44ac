"""Append and attend over pages: `sum_j SiLU(q_i . k_j) v_j`, causal for history, target mask for candidates.

No copy of a history is made: keys and values are read where they lie. Source: MTServe section 2, equation 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch.nn import functional as F

from mtserve_backend.kernels.layout import PageNumbers, Segment

# Query rows attended at a time: their scores against a page stay in a core's second-level cache.
TILE_ROWS = 256

# Pages of so many tokens are attended where they lie; smaller ones are gathered, so many tokens at a time.
VIEWED_PAGE_TOKENS = 128
GATHERED_TOKENS = 1024


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
    result = torch.zeros_like(queries)
    least, most = min(limits), max(limits)
    rows = torch.tensor(limits, device=queries.device)[:, None] if least < most else None
    blocks = _pages if page_tokens >= VIEWED_PAGE_TOKENS else _gathered
    whole: torch.Tensor | None = None
    for begin, keys, values in blocks(layer, pages, most):
        count = values.shape[1]
        # One buffer for all full blocks: memory fresh from the system for each would cost as much as a product.
        if whole is None or count != whole.shape[2]:
            whole = queries.new_empty((*queries.shape[:2], count))
        scores = torch.bmm(queries, keys, out=whole)
        F.silu(scores, inplace=True)
        if rows is not None and begin + count > least:
            hidden = torch.arange(begin, begin + count, device=rows.device)[None, :] >= rows
            scores.masked_fill_(hidden, 0.0)
        result.baddbmm_(scores, values)
    return result


Block: TypeAlias = tuple[int, torch.Tensor, torch.Tensor]


def _pages(layer: torch.Tensor, pages: PageNumbers, length: int) -> Iterator[Block]:
    """Pages of the first `length` positions, where they lie: first position, keys `[heads, head_dim, n]`, values
    `[heads, n, head_dim]`.
    """
    page_tokens = layer.shape[3]
    keys, values = layer.select(1, 0).transpose(-1, -2), layer.select(1, 1)
    for index, page in enumerate(pages[: -(-length // page_tokens)].tolist()):
        begin = index * page_tokens
        count = min(page_tokens, length - begin)
        yield begin, keys[page][..., :count], values[page][:, :count]


def _gathered(layer: torch.Tensor, pages: PageNumbers, length: int) -> Iterator[Block]:
    """The same, pages gathered to blocks: of small pages a product each costs more than copying them."""
    _, _, heads, page_tokens, head_dim = layer.shape
    wanted = torch.from_numpy(pages[: -(-length // page_tokens)])
    begin = 0
    for part in torch.split(wanted, GATHERED_TOKENS // page_tokens):
        together = layer.index_select(0, part).permute(1, 2, 0, 3, 4).reshape(2, heads, -1, head_dim)
        keys, values = together[:, :, : length - begin].unbind(0)
        yield begin, keys.transpose(-1, -2), values
        begin += len(part) * page_tokens
