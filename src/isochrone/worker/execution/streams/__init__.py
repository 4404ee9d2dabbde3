"""Decoupled models: a request has any number of responses.

``stream_runner`` queues requests and starts their runs. ``streams`` pulls responses from a model, ``pushed_streams``
takes those that a model sends.
"""
