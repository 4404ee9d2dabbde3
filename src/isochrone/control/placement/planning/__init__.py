"""Makes and explains plans, from needs, offers and present replicas alone.

- ``planner``: the parts of a plan, in their order; ``search``: the best worker for a unit, and what has to move for it
- ``rules``: the thresholds; ``units``: models that are placed together; ``eligibility``: the workers that may have them
- ``occupancy``: memory and compute of every worker while moves are made
- ``explanation``: why a model is where it is, and what is missing where it fits nowhere
"""
