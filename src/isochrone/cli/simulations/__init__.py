"""Simulations besides that of requests: one module each, registered by ``isochrone.cli.simulate``."""
