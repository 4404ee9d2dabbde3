"""The most frequent keys of a stream, in the memory of a fixed number of counters. Pure.

The algorithm is Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in
Data Streams, 2005). A key without a counter takes the one with the lowest count, and inherits that count as its error.
So, of N keys that came and k counters:

- the counts add up to N; the lowest is at most N / k;
- a key came at most ``count`` times, and at least ``count - error`` times; ``error`` is at most N / k;
- a key that came more than N / k times has a counter.

``halve`` halves all weights, so that old keys make room. All of the above then holds of the halved weights, except that
counts are rounded up: by less than 1 each, however often they are halved.

A key that has a counter costs one addition. The heap of counters learns of it only when a counter is needed: then those
at its top are put where they belong, each once for any number of additions.
"""

from __future__ import annotations

from heapq import heapify, heappush, heapreplace
from typing import NamedTuple


class KeyCount:
    """The counter of one key."""

    __slots__ = ("count", "error", "key")

    def __init__(self, key: str, count: int, error: int) -> None:
        self.key = key
        self.count = count
        #: What of the count may be of other keys.
        self.error = error

    @property
    def is_proven(self) -> bool:
        """Whether most of its count is certainly its own."""
        return self.count > 2 * self.error


class _Place(NamedTuple):
    """A counter's place in the heap: the count that it had, and a number that no other has."""

    known: int
    number: int
    counter: KeyCount


class FrequentKeys:
    """``most`` counters, at least 1."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counters: dict[str, KeyCount] = {}
        self._heap: list[_Place] = []

    def __len__(self) -> int:
        return len(self._counters)

    def get(self, key: str) -> KeyCount | None:
        return self._counters.get(key)

    def counters(self) -> list[KeyCount]:
        return list(self._counters.values())

    def add(self, key: str) -> tuple[KeyCount, str | None]:
        """Count a key: its counter, and the key that lost it to this one."""
        counter = self._counters.get(key)
        if counter is not None:
            counter.count += 1
            return counter, None
        if len(self._counters) < self._most:
            counter = self._counters[key] = KeyCount(key, 1, 0)
            heappush(self._heap, _Place(1, len(self._heap), counter))
            return counter, None
        place = self._heap[0]
        while place.known != place.counter.count:
            heapreplace(self._heap, _Place(place.counter.count, place.number, place.counter))
            place = self._heap[0]
        lost = place.counter
        del self._counters[lost.key]
        counter = self._counters[key] = KeyCount(key, lost.count + 1, lost.count)
        heapreplace(self._heap, _Place(counter.count, place.number, counter))
        return counter, lost.key

    def halve(self) -> None:
        """Half of every weight, rounded up."""
        for counter in self._counters.values():
            counter.count = (counter.count + 1) // 2
            counter.error = (counter.error + 1) // 2
        self._heap = [_Place(place.counter.count, place.number, place.counter) for place in self._heap]
        heapify(self._heap)
