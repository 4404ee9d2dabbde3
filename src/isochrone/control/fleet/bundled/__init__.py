"""The fleet that a bare ``isochrone up`` runs. ``shipped`` has its files as data, ``writing`` writes them."""
