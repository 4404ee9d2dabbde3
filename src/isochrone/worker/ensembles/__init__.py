"""Ensembles: graphs of models that run inside the worker.

``graph`` holds the steps of an ensemble and finds those that a request needs. ``runner`` resolves the versions of the
steps and starts one ``run`` per request, which submits a request to the model of each step. A ``frame`` holds the
tensors between steps, ``shapes`` passes them between models with and without a batch dimension. The ``catalog``
loads ensembles.
"""
