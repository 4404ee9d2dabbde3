"""The flight recorder of a gateway: what is kept of each request on its way, and how that is read afterwards."""
