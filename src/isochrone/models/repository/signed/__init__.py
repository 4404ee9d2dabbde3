"""Signed versions: which files a signature covers, and the private copy that is loaded in their place.

The signature of version 3 is the file ``3.sig`` in the model's directory, beside the version. ``covered`` lists files,
``checking`` compares them with a signature, ``copies`` has what workers load.
"""
