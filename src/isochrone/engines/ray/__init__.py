"""The engine of many machines: Ray places each process of a fleet on one of its nodes.

Each process is the child of a detached Ray actor, which survives the supervisor. Requests never pass through Ray. Only
this folder imports ``ray``, and only when the engine is used.
"""
