"""Connections to endpoints: addresses, requests on connections, load reports. Knows no models."""
