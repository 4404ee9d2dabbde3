"""Metrics and logs of a server. Reads snapshots; knows no server."""
