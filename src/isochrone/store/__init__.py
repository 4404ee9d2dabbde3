"""Where the fleet's state lives: a few small records under keys, changed by compare-and-swap, watched, leased.

Nothing else holds state. SQLite in one file on one machine (``sqlite``), etcd on many (``etcd``); both keep what
``base`` promises. Gateways, workers and controllers read it through a ``Mirror``. Never on the way of a request.
"""
