"""What a monitoring system needs to watch a fleet: rules and scrape configurations for Prometheus, as plain data.

``thresholds`` takes the limits from a fleet.yaml, ``recording`` and ``alerts`` define the rules, ``scraping`` says
where the metrics pages are, and ``rendering`` puts the files together. Nothing here reads a file or opens a connection.
"""
