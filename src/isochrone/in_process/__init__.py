"""A worker inside the caller's process: ``isochrone.serve(model)`` for functions and classes of Python code.

The worker is that of ``isochrone serve``: same scheduler, protocol and metrics. ``serving`` reads what the caller gave,
``learning`` finds out the outputs' types, ``repository`` presents the models to the worker's catalog, ``worker_thread``
runs the worker and ``server`` is the caller's handle on it. Nothing is written to a file.
"""
