"""The clock: monotonic nanoseconds as an int.

Deadlines are absolute instants on this clock, computed once on arrival. Wall-clock time appears only in logs. Decision
code takes ``now`` as an argument and never calls ``now_ns``, so that the simulator can run it.
"""

from __future__ import annotations

from time import monotonic_ns as now_ns
from typing import Final

__all__ = ["MICROSECOND", "MILLISECOND", "NEVER", "SECOND", "now_ns"]

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

#: The deadline of a request without one. An int, so that comparisons need no branch. The largest that compiled
#: code keeps in a machine word.
NEVER: Final = (1 << 62) - 1
