"""The command line of tritonserver, as ``isochrone serve`` takes it."""
