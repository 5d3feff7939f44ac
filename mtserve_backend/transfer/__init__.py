"""How bytes move: streams, pools, onload, offload. It moves what the manager decided and decides nothing.

Four streams (MTServe section 4.4): compute, onload, scatter, offload. Whatever orders two of them is an event that one
records and the other waits for; there is no other synchronisation. Results are reported through a completion queue.
"""
