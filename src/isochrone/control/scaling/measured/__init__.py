"""What readings, one after the other, say of a fleet. Pure.

- ``offered_load``, ``answered_load``, ``model_shares``: requests for the models of a pool
- ``worker_capacity``: what a worker can answer at the SLO, from its batch times
- ``pool_observation``: all of it, of one pool, for the autoscaler
- ``steady_rate``, ``model_figures``: rates and run times of models, for plans; ``worker_distances``: round trips
"""
