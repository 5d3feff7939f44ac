"""What is remembered: users, tokens, pages and chunks as metadata. No tensors, no threads, no locks.

The manager decides and the transfer workers copy. For each request the engine calls, in this order,

    look_up(visit)    compare the tokens sent with the tokens known; the user is pinned
    make_room(...)    evict for all look-ups of a wave at once (optional: prepare sees to its own)
    prepare(look_up)  cut what differs, allocate pages, choose what must be loaded; gives a Lease, or None: no room
    commit(lease)     the new rows are in their pages; the user is unpinned      (or abort(lease): they are not)
    plan_offloads()   what should be copied to the host now

and for each finished transfer `onload_done` / `offload_done`. Every call is made by one thread. A task holds a
reference on each page and chunk it touches until its `*_done`, so nothing it copies is handed to anyone else meanwhile.
A user has one look-up or lease at a time. What has been computed from a load that failed or is late must not be
committed: `onload_failed(task)`, then `abort(lease)`.
"""
