"""Stateful models: Triton's sequence batching.

``batcher`` decides which requests of which sequences run together, ``backlog`` holds the sequences that wait for a
slot, ``tensors`` builds control inputs and keeps implicit state: all pure. ``runner`` executes the decisions.
"""
