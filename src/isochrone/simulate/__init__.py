"""A discrete-event model of a whole fleet: clients, network, gateways, workers, antagonists, failures.

Gateways run the real balancer, policies and admission; workers of the ``exact`` model run the real batch queue. Only
bytes, time and compute are modelled. ``scenario`` describes a simulation, ``fleet`` runs it once, ``experiment`` runs
it for every policy and seed, and ``engine`` advances the simulated time. Only the command line imports this package.
"""
