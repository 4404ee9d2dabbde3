"""Certificates: a development authority that makes and renews them, whose identities they are, and when files change.

``authority`` is the way in for commands, ``identity`` and ``file_stamps`` for listeners. Only ``minting`` knows the
library ``cryptography``; a server needs none of it. Nothing here opens a socket: ``isochrone.wire.tls`` does.
"""
