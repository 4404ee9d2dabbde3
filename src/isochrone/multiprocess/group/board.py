"""The board: one row per process in memory that all of them share, with its pid, state and last heartbeat.

Made before the processes are forked. Each field is one aligned 64-bit word that is only ever set as a whole, so writers
never undo each other's and readers never see half a value. The process writes its row, except ``JOINED``, which the
coordinator sets; the supervisor clears the row of a process that ended. Readiness needs no message: it reads the board,
and is right while the coordinator is away.
"""

from __future__ import annotations

import mmap
from typing import Final

from isochrone.clock import SECOND

#: Fields of a row.
_PID, _BEAT, _RESTARTS = range(3)
#: Fields that are 0 or 1: accepts connections; has every control call in force; is ready to serve; its start is over,
#: ready or not (a gateway without workers is not).
LISTENING, JOINED, READY, STARTED = range(3, 7)
_WIDTH: Final = 7

#: The row of the coordinator; serving processes are numbered from 1.
COORDINATOR: Final = 0

#: A process without a heartbeat for so long does not respond: it is stopped, stuck or busy. Processes beat ten times a
#: second.
SILENT_NS: Final = 10 * SECOND
#: For readiness: requests already wait for so long at a process that is silent.
STALE_NS: Final = 2 * SECOND


class Board:
    """The rows of ``count`` serving processes and of the coordinator."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, (count + 1) * _WIDTH * 8)
        self._words = memoryview(self._memory).cast("Q")

    @property
    def numbers(self) -> range:
        """Of the serving processes."""
        return range(1, self.count + 1)

    def claim(self, number: int, pid: int, now: int) -> None:
        """A process has started."""
        self._set(number, _BEAT, now)
        self._set(number, _PID, pid)

    def clear(self, number: int) -> None:
        """The process has ended."""
        self.mark(number, LISTENING, JOINED, READY, STARTED, on=False)
        self._set(number, _PID, 0)
        self._set(number, _RESTARTS, self._get(number, _RESTARTS) + 1)

    def beat(self, number: int, now: int) -> None:
        self._set(number, _BEAT, now)

    def mark(self, number: int, *states: int, on: bool = True) -> None:
        for state in states:
            self._set(number, state, int(on))

    def pid(self, number: int) -> int:
        """0: no such process runs."""
        return self._get(number, _PID)

    def restarts(self, number: int) -> int:
        return self._get(number, _RESTARTS)

    def silence(self, number: int, now: int) -> int:
        """Nanoseconds since the last heartbeat."""
        return max(0, now - self._get(number, _BEAT))

    def those(self, state: int) -> list[int]:
        """The numbers of processes in a state."""
        return [number for number in self.numbers if self._get(number, state)]

    def ready(self, now: int) -> list[int]:
        """The numbers of processes that are ready and respond."""
        return [number for number in self.those(READY) if self.silence(number, now) < STALE_NS]

    def all_started(self) -> bool:
        """The serving processes, and the coordinator, which has the common metrics port."""
        return bool(self._get(COORDINATOR, STARTED)) and len(self.those(STARTED)) == self.count

    def all_ready(self, now: int) -> bool:
        return len(self.ready(now)) == self.count

    def _get(self, number: int, field: int) -> int:
        return int(self._words[number * _WIDTH + field])

    def _set(self, number: int, field: int, value: int) -> None:
        self._words[number * _WIDTH + field] = value
