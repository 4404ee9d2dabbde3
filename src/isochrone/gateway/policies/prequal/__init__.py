"""Prequal, the default policy: ``probe_pool`` for fleets larger than the pool, ``whole_fleet`` for the others.

``policy`` decides which of the two applies and when probes are sent. The gateway sends them.
"""
