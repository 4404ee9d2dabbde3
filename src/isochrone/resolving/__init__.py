"""Host names to addresses, for every connection that this process opens by name.

1. ``outages``: when a name that fails is worth a log line.
2. ``resolver``: looks names up on threads of its own, within a time limit, and remembers their last addresses.
3. ``http_transport``: the same for clients made with httpx.
"""
