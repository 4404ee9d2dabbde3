"""The expected and the late time of a division now. Pure.

The plan has compute times without load. Requests show what the stages take at present, waits included. Of a division
that requests have used lately, the measured times count. Of the others, the planned times count, scaled as the measured
ones of the same machine differ from their plans; this scale fades, since nothing tells whether it still holds. Waits
are no part of the scale: they end with the queue. The queue of the moment counts at once, before requests show it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Division, Link

#: Times of requests that ended within it count as present.
_WINDOW_NS = 3 * SECOND
_MOST = 64
#: A scale has lost half of its weight after this time without requests.
_HALF_LIFE_NS = 30 * SECOND
#: Added to both sides of a scale: a short stage takes mostly queues and the event loop, which is no scale for others.
_FIXED_NS = MILLISECOND
_LEAST_SCALE = 0.5
NO_WAITS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Times:
    """Of one division, in ns. ``late`` has the link's margin for jitter."""

    expected: float
    late: float


def division_times(division: Division, link: Link, edge_ns: float, core_ns: float, rows: float = 1.0) -> Times:
    """``rows``: of a request."""
    if not division.uses_link:
        return Times(edge_ns, edge_ns)
    sent, received = round(division.sent_bytes * rows), round(division.received_bytes * rows)
    computed = edge_ns + division.coding_ns * rows + core_ns
    return Times(
        computed + link.seconds(sent, received) * 1e9,
        computed + link.late_seconds(sent, received) * 1e9,
    )


class StageTimes:
    """The stages of all divisions on one machine. ``planned``: (division, ns) of those that have a stage there."""

    def __init__(self, planned: Iterable[tuple[str, int]]) -> None:
        self._planned = dict(planned)
        #: When, ns, and the part of them that was a wait.
        self._measured: dict[str, deque[tuple[int, int, int]]] = {name: deque(maxlen=_MOST) for name in self._planned}
        self._scale, self._scaled_at = 1.0, 0

    def add(self, division: str, now: int, nanoseconds: int, waited_ns: int = 0) -> None:
        measured = self._measured.get(division)
        if measured is not None:
            measured.append((now, nanoseconds, min(waited_ns, nanoseconds)))

    def look(self, now: int, waits: Mapping[str, int] = NO_WAITS) -> dict[str, float]:
        """ns of each division's stage now. ``waits``: ns that a request would wait for the stage."""
        fresh: dict[str, float] = {}
        scales: list[float] = []
        for name, measured in self._measured.items():
            while measured and measured[0][0] < now - _WINDOW_NS:
                measured.popleft()
            if measured:
                fresh[name] = statistics.median(nanoseconds for _, nanoseconds, _ in measured)
                # The least: of an ensemble's steps, the waits are not known, and some request found no queue.
                computed = min(nanoseconds - waited for _, nanoseconds, waited in measured)
                scales.append((computed + _FIXED_NS) / (self._planned[name] + _FIXED_NS))
        if scales:
            self._scale, self._scaled_at = max(_LEAST_SCALE, statistics.median(scales)), now
        scale = 1 + (self._scale - 1) * 0.5 ** ((now - self._scaled_at) / _HALF_LIFE_NS)
        found: dict[str, float] = {}
        for name, planned in self._planned.items():
            wait = waits.get(name, 0)
            if name in fresh:
                found[name] = max(fresh[name], planned + wait) if wait else fresh[name]
            else:
                found[name] = wait + max(0.0, (planned + _FIXED_NS) * scale - _FIXED_NS)
        return found
