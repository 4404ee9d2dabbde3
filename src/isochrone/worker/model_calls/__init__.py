"""Models that call other models of the same worker (Triton: business logic scripting).

``called_request`` is the request that the called model receives; ``server`` answers what a model asks of the worker.
"""
