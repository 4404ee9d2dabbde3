"""Traces of a worker's requests: what the event loop records, by the settings of each model."""
