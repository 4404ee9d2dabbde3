"""The requests of a run: their arrival times and the work that each costs.

Must never know workers, gateways or the engine.
"""
