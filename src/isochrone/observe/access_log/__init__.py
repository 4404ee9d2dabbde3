"""The access log: one JSON line for each request that is logged, written beside the event loop."""
