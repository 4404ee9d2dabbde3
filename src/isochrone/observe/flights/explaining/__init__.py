"""Explains one request from what gateways and workers remember of it. Pure."""
