"""The inner loops: append, attend, scatter, gather and plain page copies.

Each is one function over tensors with a torch implementation that is the reference and the CPU path.
A layer's pages are `[pages, 2, heads, page_tokens, head_dim]`: keys, then values, head-major inside a page, so that a
page's keys of one head are a matrix that a product can read in place.
"""
