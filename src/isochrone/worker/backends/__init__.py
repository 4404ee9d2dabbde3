"""Runtimes that execute models, behind the small interface in ``interface``.

docs/backends.md says how to add one. The registry imports a backend on first use, and with it the runtime. A backend
must not import another backend, nor any other part of the worker; ``tensors`` and ``devices`` are for all.
"""
