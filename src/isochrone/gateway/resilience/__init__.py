"""Decisions that protect requests from workers that are slow, failing or gone. All pure.

``retry_budget`` limits retries, ``hedging`` decides when a second copy is sent, ``outliers`` ejects endpoints,
``breaker`` limits one model on one endpoint. ``suspects``, ``retrials`` and ``fingerprints`` handle requests that may
have killed their worker. ``conformance`` checks that an answer follows the protocol. ``sliding_counts`` and
``latency_quantile`` are their statistics. None of them sends anything or reads a clock.
"""
