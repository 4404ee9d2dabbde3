"""The life of a request in the gateway: events in, instructions out. No sockets, no clock, no bytes.

``machine`` is the state machine and the place to start; ``request`` holds its records; ``placing`` chooses a replica;
``repeating`` is the one rule for sending a request again; ``accounts`` books how attempts end; ``held`` keeps requests
during a strict switch; ``suspected`` keeps those that may have ended a worker's process. The gateway's shell and the
simulator drive the same machine.
"""
