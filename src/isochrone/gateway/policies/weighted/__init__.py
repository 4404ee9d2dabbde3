"""Policies that give turns in proportion to weights: ``latency_weighted`` and ``weighted_round_robin``, over ``turns``.

They differ only in how they compute a weight.
"""
