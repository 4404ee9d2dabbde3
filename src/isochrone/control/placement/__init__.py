"""Model placement: which models run on which workers. Pure decisions; nothing here loads a model.

Not the choice of a worker for a request, which is the gateway's, nor of machines for processes, which is the engine's.

- ``needs``, ``workers``: what a model needs and what a worker offers
- ``rules``: the thresholds; ``units``: models that are placed together; ``eligibility``: the workers that may have them
- ``occupancy``: memory and compute of every worker while moves are made; ``search``: the best worker for a unit
- ``planner``: from the present replicas to the next ones, as a list of moves; begin here
- ``explanation``: why a model is where it is, and what is missing where it fits nowhere
- ``distances``: round trips to workers, measured
- ``fleet_inputs``: needs and offers of a fleet.yaml and of a fleet's records
- ``planned_pools``: those of pools where plans are applied; ``absences``: which of their workers are lost
- ``execution``: which moves of a plan may begin, by what workers really hold
"""
