"""Prequal, the default policy: ``probe_pool`` for fleets larger than the pool, ``whole_fleet`` for the others.

``policy`` decides which of the two holds and when probes are sent. It must never send a probe itself.
"""
