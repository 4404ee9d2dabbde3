"""Reuse of a model's outputs for pictures that are nearly equal: of one camera, or of agents that see the same place.

``settings`` reads what a model's configuration allows, ``keys`` names the pictures that a request is compared with,
``similarity`` compares them, ``cache`` keeps outputs within limits of bytes and age, ``sampling`` measures the error
of reuse. All of these are pure; ``reuse`` puts them in the way of a request, before it is queued.
"""
