"""``isochrone partition`` over emulated links: how close its choice is to the best division, measured by requests."""
