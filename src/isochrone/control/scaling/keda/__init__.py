"""The load of pools for KEDA, by its external scaler protocol.

- ``scaler``: the service; ``messages``: what goes over the wire
- ``load_reading``, ``pool_load``: requests in flight, waiting and refused, of one pool
"""
