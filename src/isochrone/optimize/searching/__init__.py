"""Which candidates are tried, in which order, and which one is chosen. Pure: a given function makes the trials."""
