"""The fleet's state: a few small records under keys, changed by compare-and-swap, watched, leased.

``base`` is the interface of a store. ``sqlite`` implements it in one file for one machine, ``etcd`` for many. Gateways,
workers and controllers read through a ``Mirror``. Never on the path of a request.
"""
