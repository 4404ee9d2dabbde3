"""Encryption of model versions: bytes, keys and where keys come from. It knows no repository.

``streams`` encrypts a file in chunks with the data key of its version, ``header`` lists the version's files and proves
that list, ``wrapping`` encrypts the data key under a key of the operator, which ``model_keys`` reads from files, the
environment or a program (``commands``). Nothing here writes a key that is not wrapped.
"""
