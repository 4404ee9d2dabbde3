"""fleet.yaml: one file that describes a whole fleet, and what follows from it.

``settings`` has the keys of the file as types, up to a checked ``Fleet``. ``reading`` makes a ``Fleet`` of a file and
checks it against repositories, ports and the caller's rights. ``derived`` has what runs: processes, command lines,
gateway rules. ``planning`` tells what a change of the file does. ``bundled`` is the fleet of a bare ``isochrone up``.
Only ``reading`` and ``bundled`` access files. Must never act on a fleet.
"""
