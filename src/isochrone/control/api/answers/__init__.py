"""What the API answers about the fleet: records in, an answer out. Pure.

``status`` is the fleet as ``isochrone status`` shows it; ``metrics_page`` and ``scrape_targets`` are for Prometheus.
The types of most answers are in ``messages``.
"""
