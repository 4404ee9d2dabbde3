"""Returns freed memory of large messages to the operating system.

glibc takes large blocks from the system and returns them when they are freed. But with each it raises the size from
which it does so to that of the freed block, up to 32 MiB. Later blocks of that size are parts of the heap, which only
shrinks at its end: one small block there keeps hundreds of megabytes of freed messages. A fixed size would return them
at once, and cost the page faults of every large message: up to half of the time of one of 4 MB. So the heap is trimmed
some seconds after many large messages were held at once. That takes 6 ms for 320 MiB in large pieces, and 32 ms for
270 MiB in a hundred thousand pieces; the process allocates nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

#: Seconds between two looks at what is held; bytes held at once after which memory is worth returning; bytes that are
#: held still, with which the free memory would be needed again at once.
_INTERVAL, _MUCH, _BUSY = 4.0, 32 << 20, 1 << 20


def trim() -> None:
    """Return free pages to the operating system."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        pass


class HeapTrimming:
    """Trims the heap from ``start`` to ``stop``.

    ``held``: bytes of messages that the process holds. ``take_peak``: the most since the last call.
    """

    def __init__(self, held: Callable[[], int], take_peak: Callable[[], int], trim: Callable[[], None] = trim) -> None:
        self._held, self._take_peak, self._trim = held, take_peak, trim
        #: Much was held since the heap was trimmed last.
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._fire)

    def _fire(self) -> None:
        self.look()
        self._plan()

    def look(self) -> None:
        """Trim the heap if much was held before the last look, and little since."""
        if self._take_peak() >= _MUCH:
            self._is_due = True
        elif self._is_due and self._held() < _BUSY:
            self._is_due = False
            self._trim()
