"""A plain Python model in a process of its own.

``executable`` is the worker's side: it starts a ``child``, sends it ``messages`` over a socket pair and exchanges
tensors through shared blocks (``processes``). ``child_main`` is the program of the child process.
"""
