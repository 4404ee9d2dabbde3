"""Several processes that serve as one: ``isochrone serve --processes`` and ``isochrone gateway --processes``.

    supervisor            forks, waits, restarts; no event loop, no threads, no requests
    ├── process 1 … N     each serves the public ports (SO_REUSEPORT)
    └── coordinator       the metrics page of all; puts control calls in one order and makes them in every process

A request meets only one process. A control call that arrives at any process goes to the coordinator over a Unix-domain
socket, and from there to all. Every process writes its state to a ``board`` in shared memory, which readiness reads.
"""
