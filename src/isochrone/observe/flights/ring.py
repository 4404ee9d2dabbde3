"""Rings of the last records: of tuples, and of objects that are written over in place.

On the way of every request: nothing grows, nothing is copied. Records have values that exist anyway; whoever reads a
ring makes sense of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class RecordRing:
    """The last ``size`` records, rounded up to a power of two, which are written over in place.

    Nothing is allocated, and nothing becomes garbage after thousands of requests. A record is valid until the ring has
    come round: who reads one takes its values before the event loop goes on.
    """

    __slots__ = ("_make", "_mask", "_records", "count")

    def __init__(self, size: int, make: Callable[[], Any]) -> None:
        """``make``: a new record."""
        self._make = make
        self._mask = (1 << max(0, size - 1).bit_length()) - 1
        #: Made when they are first needed.
        self._records: list[Any] = []
        #: Records that were ever kept.
        self.count = 0

    def __len__(self) -> int:
        return len(self._records)

    def next(self) -> Any:
        """The record to write to: a new one, or the oldest."""
        count = self.count
        self.count = count + 1
        if count <= self._mask:
            record = self._make()
            self._records.append(record)
            return record
        return self._records[count & self._mask]

    def newest(self) -> Any:
        """The record that ``next`` gave last."""
        return self._records[(self.count - 1) & self._mask]

    def latest(self) -> Iterator[Any]:
        """The newest first."""
        for number in range(self.count - 1, self.count - 1 - len(self._records), -1):
            yield self._records[number & self._mask]

    def since(self, count: int) -> list[Any]:
        """Records kept since ``count`` was that, as far as they are still there; the oldest first."""
        first = max(count, self.count - len(self._records))
        return [self._records[number & self._mask] for number in range(first, self.count)]

    def oldest(self) -> Any:
        """The record that is written over next; None: nothing was kept."""
        if not self._records:
            return None
        return self._records[self.count & self._mask] if self.count > self._mask else self._records[0]


class Flights:
    """The last requests of a process, and those that missed their deadline, which stay longer. A record has a
    ``number``, that of the request among all: the same in both rings."""

    __slots__ = ("latest", "missed")

    def __init__(self, requests: int, make: Callable[[], Any]) -> None:
        self.latest = RecordRing(requests, make)
        self.missed = RecordRing(max(1, requests // 4), make)

    def records(self) -> Iterator[Any]:
        """Every request once, those of ``latest`` first, and of each the newest first."""
        yield from self.latest.latest()
        oldest = self.latest.count - len(self.latest)
        for record in self.missed.latest():
            if record.number < oldest:
                yield record
