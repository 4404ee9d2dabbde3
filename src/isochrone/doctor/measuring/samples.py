"""From single durations to a median and a 99th percentile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from isochrone.clock import MICROSECOND
from isochrone.doctor.facts import Times


def times_of(nanoseconds: Sequence[int]) -> Times:
    """Of at least one duration. The 99th percentile of fewer than 100 is the largest."""
    ordered = sorted(nanoseconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Times(median(ordered) / MICROSECOND, p99 / MICROSECOND, len(ordered))
