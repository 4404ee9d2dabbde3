"""Ensembles: graphs of models run inside the worker.

``dependencies`` says in which order models load and whether an ensemble's steps are there; ``standing`` remembers which
ensembles wait for which steps; ``dependents`` acts on both when a model comes or goes. ``graph`` says which steps a
request needs, ``shapes`` how a tensor passes between models with and without batching; ``runner`` and ``run`` carry a
request through, ``step_request`` is what a step's model sees of it.
"""
