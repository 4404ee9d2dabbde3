"""``isochrone why``: explain one request after the fact."""
