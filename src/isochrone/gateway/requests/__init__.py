"""The life of a request in the gateway: events in, instructions out. No sockets, no clock, no bytes.

``machine`` takes every event and is the place to start; ``further_attempts`` (retries, hedges) and ``open_requests``
(how requests end) are the layers below it. ``request`` holds the records; ``placing`` chooses a replica; ``repeating``
is the one rule for sending a request again; ``accounts`` books how attempts end; ``held`` keeps requests during a
strict switch, ``waiting_rooms`` while their model has no worker; ``suspected`` keeps those that may have ended a
worker's process. The gateway's shell and the simulator drive the same machine.
"""
