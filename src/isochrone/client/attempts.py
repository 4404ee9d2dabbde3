"""The attempts of one request: how long each may take, and whether another follows.

An attempt is repeated only if nothing of the request can have run: the connection was refused, the request was not sent
completely, or the server says so (``x-isochrone-unprocessed``). Waiting times double, with jitter, and never exceed the
deadline. Pure, except for the random numbers.
"""

from __future__ import annotations

import random

from isochrone.client.address import Address
from isochrone.client.failures import late
from isochrone.clock import SECOND
from isochrone.errors import IsochroneError, QueueFull, Unavailable

#: How often a client sends a request again at most.
DEFAULT_RETRIES = 3
_FIRST_DELAY = 0.02
_LONGEST_DELAY = 1.0


class Attempts:
    """Those of one request that began at ``now``, in ns."""

    __slots__ = ("_address", "_ends", "_left", "_number")

    def __init__(self, retries: int, deadline_ms: float | None, now: int, address: Address) -> None:
        self._address = address
        self._left = retries
        self._number = 0
        self._ends = None if deadline_ms is None else now + round(deadline_ms * 1e6)

    def seconds(self, now: int) -> float | None:
        """The time for an attempt that starts now; None: no deadline. Raises if there is none left."""
        if self._ends is None:
            return None
        if now >= self._ends:
            raise late(self._address)
        return (self._ends - now) / SECOND

    def delay_after(self, error: IsochroneError, now: int) -> float:
        """Seconds to wait before the next attempt; raises ``error`` if there is none."""
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * (1 << self._number)) * random.uniform(0.5, 1.0)
        delay = max(delay, error.retry_after)
        is_safe = error.unprocessed and isinstance(error, Unavailable | QueueFull)
        is_late = self._ends is not None and now + delay * SECOND >= self._ends
        if not is_safe or not self._left or delay > _LONGEST_DELAY or is_late:
            raise error
        self._left -= 1
        self._number += 1
        return delay
