"""The settings of fleet.yaml as types: from single values to a ``Fleet``, which is checked when it is made. Pure.

``quantities`` are the values, ``sections`` and the modules named ``..._spec`` the keys, ``checks`` the rules between
keys, ``spec`` the whole file, ``schema`` the file for editors. ``pool_bounds``, ``process_names`` and ``process_ports``
follow from the keys, and must not collide: so they are here, where ``checks`` can use them.

A new key is a field with a docstring in one of the sections; ``make docs`` writes it to the reference and the schema.
"""
