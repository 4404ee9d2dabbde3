"""The keys with the highest counts of a stream: a fixed number of places, and who has them. Pure.

There are several counters for each place (``frequent_keys``), so that keys that come once take counters from each other
and not from keys with a place. A key gets a place when most of its count is certainly its own, and a place is free or
its count exceeds the lowest of those that have one by a quarter: two keys with nearly equal counts do not take turns.
"""

from __future__ import annotations

from typing import Final

from isochrone.gateway.latencies.frequent_keys import FrequentKeys, KeyCount

#: Counters per place.
COUNTERS: Final = 8


class Ranking:
    """``most`` places, at least 1."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys = FrequentKeys(COUNTERS * most)
        #: The counters of the keys that have a place. Who has one may add to its count without ``add``.
        self.places: dict[str, KeyCount] = {}
        #: No count with a place is lower.
        self._least = 0

    def add(self, key: str) -> str | None:
        """Count a key; the key that loses its place by it."""
        counter, lost = self._keys.add(key)
        dropped = lost if lost is not None and self.places.pop(lost, None) is not None else None
        if key in self.places or not counter.is_proven:
            return dropped
        if len(self.places) >= self._most:
            if not self._exceeds(counter.count):
                return dropped
            lowest = min(self.places.values(), key=lambda each: each.count)
            self._least = lowest.count
            if not self._exceeds(counter.count):
                return dropped
            dropped = lowest.key
            del self.places[dropped]
        self.places[key] = counter
        return dropped

    def halve(self) -> None:
        """Half of every weight, rounded up."""
        self._keys.halve()
        self._least = 0

    def get(self, key: str) -> KeyCount | None:
        return self._keys.get(key)

    def _exceeds(self, count: int) -> bool:
        return count > self._least + self._least // 4
