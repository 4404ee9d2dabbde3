"""Tensors on their way into a model and out of it: what a backend checks of them, and how it holds them in memory.

``declared``, ``file_shapes`` and ``result_rows`` compare with what a configuration says; ``gathering``,
``receive_buffers`` and ``received_inputs`` are arrays for runtimes. No module here knows a runtime.
"""
