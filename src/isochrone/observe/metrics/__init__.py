"""Metrics pages: families of metrics, and the page that is made of them, for Prometheus.

``exposition`` is the page of a worker; ``pieces`` makes a long one in many turns of the event loop, and
``page_formats`` are what a reader may ask for. Each other module makes the families of one part of a server, of a
``ServerSnapshot``, or of what Linux (``machine``) and NVML (``gpus``) say. No module here counts anything.

To add a metric of a worker: a field of ``observe.snapshot``, a family here, and a row in docs/metrics.md.
"""
