"""Workers that are not registered: those that are about to start or to come back, and those that are lost. Pure.

A worker's record vanishes when its lease ends, when it stops, and when the store has lost the lease of a process that
serves. So a worker counts as lost only after its record has been gone for another lease; one that was never seen, after
the time that a process takes to start. Until then its models stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

#: Seconds for a process to start and to register.
START_SECONDS = 30.0


class Absences:
    """As one leader sees them. ``now``: seconds of a monotonic clock."""

    def __init__(self) -> None:
        #: When a worker was last registered; when it was first expected.
        self._seen: dict[str, float] = {}
        self._expected: dict[str, float] = {}

    def forget(self) -> None:
        """Nothing is registered at all: the store may have lost every lease. All have the time of a start again."""
        self._seen.clear()
        self._expected.clear()

    def starting(
        self, expected: Iterable[str], registered: Collection[str], lease_seconds: float, now: float
    ) -> frozenset[str]:
        """The expected workers that are not registered, and not lost either."""
        names = set(expected)
        for name in names:
            self._expected.setdefault(name, now)
            if name in registered:
                self._seen[name] = now
        for known in (self._seen, self._expected):
            for name in known.keys() - names:
                del known[name]
        return frozenset(
            name for name in names if name not in registered and not self._is_lost(name, lease_seconds, now)
        )

    def _is_lost(self, name: str, lease_seconds: float, now: float) -> bool:
        if name in self._seen:
            return now - self._seen[name] >= lease_seconds
        return now - self._expected[name] >= START_SECONDS
