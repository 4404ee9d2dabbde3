"""The rate that a worker sustains within the SLO, from its measured batch curve. Pure.

A request that arrives just after a batch has started waits for that batch, then runs in the next one. At batches of
``rows`` each, its latency is therefore up to twice the time of one batch, and the worker answers ``rows`` per batch
time. The capacity at the SLO is the highest such rate whose latency stays within the SLO less a headroom. It is below
the worker's highest throughput wherever the largest batches take too long.
"""

from __future__ import annotations

from collections.abc import Sequence


def rate_at_slo(batch_seconds: Sequence[float], slo_seconds: float, headroom: float = 0.0, instances: int = 1) -> float:
    """Requests per second. ``batch_seconds[rows]``: time of a batch of that many rows; index 0 is unused, and so are
    times of 0, which are not measured yet. ``headroom``: the share of the SLO that stays free.

    0 where no measured batch fits: no number of such workers keeps the SLO.
    """
    limit = slo_seconds * (1 - headroom)
    best = 0.0
    for rows in range(1, len(batch_seconds)):
        seconds = batch_seconds[rows]
        if seconds > 0 and 2 * seconds <= limit:
            best = max(best, rows / seconds)
    return best * instances
