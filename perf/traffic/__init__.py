"""Requests in the order of a trace, sent to engines and servers; and what each answer was and cost.

`source` makes visits of a trace, `dealer` says which may be under way together, `target` is what answers them
(`engine`: an engine in a process of its own, `server`: a real Triton), `loops` drives it, `record` is what is kept;
`manager` plays a trace through the cache manager alone, `nothing` is a model that only answers.
"""
