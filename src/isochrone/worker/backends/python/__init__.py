"""Models written in Python, in the worker's process or isolated in one of their own.

Child processes import this package at every start: keep ``model``, ``modules`` and ``results`` light.
"""
