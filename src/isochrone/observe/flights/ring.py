"""A ring of the last records. Adding one is a store into a slot that exists already: nothing grows, nothing is copied.

On the way of every request. Records are tuples of values that exist anyway; whoever reads the ring makes sense of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Record = tuple[Any, ...]


class Ring:
    """The last ``size`` records, rounded up to a power of two. On one thread."""

    __slots__ = ("_mask", "_slots", "count")

    def __init__(self, size: int) -> None:
        length = 1 << max(0, size - 1).bit_length()
        self._mask = length - 1
        self._slots: list[Record | None] = [None] * length
        #: Records that were ever added.
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, self._mask + 1)

    def add(self, record: Record) -> None:
        count = self.count
        self._slots[count & self._mask] = record
        self.count = count + 1

    def latest(self) -> Iterator[tuple[int, Record]]:
        """Number and record, the newest first."""
        for number in range(self.count - 1, self.count - 1 - len(self), -1):
            record = self._slots[number & self._mask]
            if record is not None:
                yield number, record

    def since(self, count: int) -> list[Record]:
        """Records added since ``count`` was that, as far as they are still there; the oldest first."""
        first = max(count, self.count - len(self))
        found = (self._slots[number & self._mask] for number in range(first, self.count))
        return [record for record in found if record is not None]

    def oldest(self) -> Record | None:
        """The record that is overwritten next; None: nothing was added."""
        return self._slots[self.count & self._mask] if self.count > self._mask else self._slots[0]


class Flights:
    """The last requests of a process; those that missed their deadline, which stay longer; and the last batches."""

    __slots__ = ("batches", "latest", "missed")

    def __init__(self, requests: int) -> None:
        self.latest = Ring(requests)
        self.missed = Ring(max(1, requests // 4))
        self.batches = Ring(requests)

    def add_missed(self, record: Record) -> None:
        self.latest.add(record)
        self.missed.add(record)

    def records(self) -> Iterator[Record]:
        """Every record once, those of ``latest`` first, and of each the newest first."""
        seen: set[int] = set()
        for ring in (self.latest, self.missed):
            for _, record in ring.latest():
                if id(record) not in seen:
                    seen.add(id(record))
                    yield record
