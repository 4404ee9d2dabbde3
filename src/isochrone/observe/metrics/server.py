"""Triton's metrics of the server itself: its pool of pinned memory and its response cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from isochrone.observe.snapshot import CacheSnapshot

#: Triton's metrics of the response cache, all gauges: name, help, value. Durations are in whole microseconds.
_CACHE_GAUGES: Final[tuple[tuple[str, str, Callable[[CacheSnapshot], float]], ...]] = (
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]", lambda cache: cache.bytes_used / cache.limit_bytes),
    ("nv_cache_num_entries", "Number of responses stored in response cache", lambda cache: cache.entries),
    ("nv_cache_num_hits", "Number of cache hits in response cache", lambda cache: cache.hits),
    ("nv_cache_num_misses", "Number of cache misses in response cache", lambda cache: cache.misses),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache", lambda cache: cache.hits + cache.misses),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache", lambda cache: cache.evictions),
    (
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        lambda cache: cache.lookup_ns // 1000,
    ),
    (
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        lambda cache: cache.insertion_ns // 1000,
    ),
)


def server_metrics(cache: CacheSnapshot | None) -> Iterator[Metric]:
    """``cache`` is None if responses are not cached; as in Triton, there are no cache metrics then."""
    for kind in ("total", "used"):
        # There is no such pool; dashboards query it, and Triton without a GPU reports the same.
        yield GaugeMetricFamily(
            f"nv_pinned_memory_pool_{kind}_bytes", f"Pinned memory pool {kind} memory size, in bytes", 0
        )
    if cache is not None:
        for name, documentation, value in _CACHE_GAUGES:
            yield GaugeMetricFamily(name, documentation, value(cache))
