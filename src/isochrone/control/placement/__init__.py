"""Model placement: which models run on which workers. Pure decisions; nothing here loads a model.

Not the choice of a worker for a request, which is the gateway's, nor of machines for processes, which is the engine's.

- ``needs``, ``workers``: what a model needs and what a worker offers; ``plan``: the words of a plan
- ``figures``: rates, run times and round trips, measured or stated; ``distances``: the estimate of a round trip
- ``planning``: from the present replicas to the next ones, and why; begin with its ``planner``
- ``fleet_inputs``: needs and offers of a fleet.yaml and of a fleet's records
- ``applying``: which moves of a plan may begin, by what workers really hold
"""
