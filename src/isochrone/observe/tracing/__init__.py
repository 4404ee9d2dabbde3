"""Traces of requests: which are kept, what is recorded of them, and their export as OpenTelemetry spans."""
