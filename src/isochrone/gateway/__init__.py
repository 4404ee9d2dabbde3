"""The gateway: admits or rejects a request, fixes its version, and chooses the worker that answers it in time.

A request meets, in order: ``server`` (the process), ``front`` (routes and the codecs of HTTP and gRPC), ``gateway``
(a ``request_shell``, which executes instructions, driven by the clock), ``requests`` (the pure machine, which decides),
``fleet`` (endpoints, models and versions), ``placement``, ``policies``, ``traffic`` and ``resilience`` (the decisions),
and ``upstream`` (the connections). Beside that way: ``monitoring`` (health, indexes, probes), ``control_calls``,
``evaluation``, ``latencies`` (how long requests take, per version and agent) and ``metrics``. ``rules`` are the
settings of all decisions.
"""
