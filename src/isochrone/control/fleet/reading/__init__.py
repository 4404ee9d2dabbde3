"""Reads a fleet.yaml, and checks it against what is outside of the file. Writes nothing.

``parsing`` makes a ``Fleet`` of a text, or of a record in the store, and reports every error by line. ``catalog`` looks
into the repositories; ``file`` does both, for an apply. ``local_ports`` and ``places`` refuse what this machine or the
caller must not use. ``passwords`` keeps the store's password out of what is stored or shown.
"""
