"""Which callers the API serves: by their rights, by where they come from, and for how long.

``rights`` are those of a controller without an access file, ``access_rights`` those of one that has one. ``guarding``
refuses pages of other sites; ``while_allowed`` ends a stream whose caller has lost its rights.
"""
