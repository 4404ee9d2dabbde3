"""What a monitoring system needs to watch a fleet: rules and scrape configurations for Prometheus, and dashboards.

``thresholds`` takes the limits from a fleet.yaml, ``recording``, ``error_budget`` and ``alerts`` define the rules,
``scraping`` says where the metrics pages are, and ``rendering`` puts the files together. ``dashboards`` are those for
Grafana. Nothing here reads a file or opens a connection.
"""
