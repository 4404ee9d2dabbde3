"""Ensembles: graphs of models that run inside the worker.

``graph`` holds the steps of an ensemble and finds those that a request needs. ``runner`` fixes the versions of the
steps and starts a ``run`` per request, which submits one ``step_request`` per step. ``shapes`` passes tensors between
models with and without a batch dimension. Loading ensembles is ``catalog``'s job.
"""
