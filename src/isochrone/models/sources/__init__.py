"""Model repositories that are not on this machine: object stores (S3, Google Cloud Storage, Azure) and web servers.

``locations`` tells URLs from paths, ``objects`` lists and reads a store, ``manifest`` and ``checksums`` read the
digests that a repository states, ``cache`` keeps what was fetched. ``models.repository`` reads the fetched files like
any directory. Nothing here knows what a model is.
"""
