"""The gateway: admits a request or refuses it, pins its version, and chooses a worker for it. Never decodes tensors.

In the order a request meets them: ``server`` (the process), ``application`` (what a head means), ``forwarding`` (bytes
to a worker and back), ``balancer`` (the decision), ``policies`` (how it is made), ``replicas`` (what is known).
"""
