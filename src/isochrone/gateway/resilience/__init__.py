"""What keeps a request alive when a worker is slow, failing or gone: decisions around the routing choice, all pure.

``retry_budget`` (may it be sent again), ``hedging`` (may a second copy go), ``outliers`` (who is left out for a while),
``breaker`` (how much one worker may have of one model), ``suspects`` and ``retrials`` (which requests may have killed
their worker, and when they are tried again; by ``fingerprints``). ``sliding_counts`` and ``latency_quantile`` are what
they count with. None of them sends anything or knows a clock.
"""
