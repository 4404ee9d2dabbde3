"""fleet.yaml: one file that describes a whole fleet, and what follows from it.

``reading`` makes a ``spec.Fleet`` of a file and reports every error by line. The rest is pure and derived from a
``Fleet``: ``processes`` (what runs), ``gateway_rules`` (the rules of gateways), ``planning`` (what a change does). Only
``reading``, ``catalog`` (the versions in the repositories), ``file`` (both, for an apply) and ``bundled`` (the fleet of
a bare ``isochrone up``) access files. Must never act on a fleet.
"""
