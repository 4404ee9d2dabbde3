"""How busy pools, models and workers are, for outside autoscalers and for ours. Decides nothing.

- ``reading``: counters of gateways and workers, over HTTP
- ``measured``: what two readings and those before say of load, capacity and distance; pure
- ``keda``: the load of pools for KEDA
"""
