"""Watches a body that is collected: a timer of the loop asks ``body_times`` whether it may take any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.picker.body_times import BodyTimes


class BodyWatch:
    """The watch over one body, until ``stop``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        times: BodyTimes,
        received: Callable[[], int],
        late: Callable[[IsochroneError], None],
    ) -> None:
        """``received``: bytes that have come; ``late`` is called once, with the reason to wait no longer."""
        self._loop = loop
        self._times = times
        self._received = received
        self._late = late
        self._timer = self._wait()

    def _wait(self) -> asyncio.TimerHandle:
        seconds = max(self._times.due - now_ns(), MILLISECOND) / SECOND
        return self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        try:
            self._times.check(now_ns(), self._received())
        except IsochroneError as error:
            self._late(error)
        else:
            self._timer = self._wait()

    def stop(self) -> None:
        self._timer.cancel()
