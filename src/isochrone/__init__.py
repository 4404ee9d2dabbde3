"""Isochrone: low-latency, deadline-first inference for fleets of agents."""

__version__ = "0.1.0"
