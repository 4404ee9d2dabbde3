"""Other ways to run in a cluster. Pure.

Pods that our engine makes, workers as a runtime of KServe, and a Ray cluster for the engine ray.
"""
