"""A discrete-event model of a whole fleet: clients, network, gateways, workers, antagonists, failures.

Gateways run the real balancer, policies and admission, workers of kind ``exact`` the real batch queue; only bytes,
time and compute are modelled. Read ``scenario`` for what can be asked, ``fleet`` for how a run is put together,
``engine`` for how time passes. Nothing imports this package but the command line.
"""
