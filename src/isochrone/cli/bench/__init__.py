"""``isochrone bench``: load on a server, measured; two measurements compared."""
