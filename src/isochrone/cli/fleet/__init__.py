"""Commands that start a fleet, show its state or change it.

All but ``up`` and ``logs`` act through a controller's API alone.
"""
