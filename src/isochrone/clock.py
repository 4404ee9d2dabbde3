"""Time, as the whole product counts it: monotonic nanoseconds in an int.

Deadlines are absolute instants on this clock, made once on arrival. Wall-clock time appears only in logs.
Decision code takes ``now`` as an argument and never calls ``now_ns``, so that the simulator can run it.
"""

from __future__ import annotations

from time import monotonic_ns as now_ns

__all__ = ["MICROSECOND", "MILLISECOND", "NEVER", "SECOND", "now_ns"]

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

#: A deadline later than any request: "has none". An int, so that comparing needs no branch.
NEVER = 1 << 62
