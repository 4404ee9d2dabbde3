"""Triton's python models, unchanged: a ``model.py`` with ``TritonPythonModel`` that imports
``triton_python_backend_utils``.

``utilities`` makes that module, for one model instance; ``tensors``, ``responses``, ``requests`` and ``auto_complete``
hold its classes. ``model`` imports and calls the user's class. ``server`` is what the module asks of the server: inside
the worker ``executable`` answers, in a process of its own ``isolation`` passes the questions on.

The behaviour and the error texts are those of Triton's python backend, on which models and clients rely. Everything but
``executable`` must stay light to import: the process of an isolated model imports it.
"""
