"""Serves the fleet to clients that route by themselves: Envoy, and gRPC clients without a proxy (xDS).

``snapshot`` decides what is routed where, ``resources`` writes it as ``messages``. ``ads`` is the protocol of one
stream: what a client is sent, and when. ``served_versions`` asks the workers what they serve, ``clients`` knows how far
the clients have come, ``registration`` tells the leader, and ``server`` does the I/O.
"""
