"""fleet.yaml: one file that describes a whole fleet, and what follows from it.

``reading`` makes a ``spec.Fleet`` of a file and tells every error by line. The rest is pure and asked of a ``Fleet``:
``processes`` (what runs), ``gateway_rules`` (what gateways go by), ``plan`` (what a change would do). Only ``reading``,
``catalog`` (what versions are in the repositories), ``file`` (both, for an apply) and ``bundled`` (the fleet of a bare
``isochrone up``) touch files.
"""
