"""Reads the counters of gateways and workers.

- ``fleet_reading``: all processes of a fleet, at one moment; ``fleet_counters``: what they say
- ``counter_pages``: pages into counters; ``configuration_cache``: configurations of models, asked once
- ``process_pages``: the HTTP client that asks for a page
"""
