"""Model placement in simulation: a fleet that changes step by step, planned by the real planner and by bin packing.

``fleets`` draws a fleet and ``course`` its changes; ``baselines`` are first-fit and best-fit; ``timeline`` says when
moves are done; ``comparison`` runs all planners over the same course. No request is simulated: loads follow from rates
and run times.
"""
