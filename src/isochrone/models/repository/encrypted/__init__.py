"""Encrypted versions: how they lie in a repository, how they are written, and the plain copies that workers load.

Version 3 is encrypted if its directory has the header ``encryption.json``; each other file there ends in
``.encrypted``. Its wrapped key is the file ``3.wrapped-key`` beside it. ``writing`` makes and undoes that, ``opening``
decrypts a version into a directory, ``copies`` keeps such directories in memory for a worker.
"""
