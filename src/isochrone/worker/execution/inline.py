"""Whether the short runs of a model may happen on the loop's thread.

A runner reads ``limit_ns`` before each run and reports the runs that took too long.
"""

from __future__ import annotations

import asyncio

import structlog

from isochrone.clock import MICROSECOND, SECOND

log = structlog.get_logger()

#: Longest expected run that happens on the loop's thread.
INLINE_NS = 100 * MICROSECOND
#: An inline run this long delayed every other caller: the model then uses its thread, first for ``_OVERRUN_PAUSE``
#: seconds, then for twice as long each time. A stall of the machine thus costs 22 µs per request for a while; a model
#: that is occasionally slow runs inline less and less often.
OVERRUN_NS = 2000 * MICROSECOND
_LONG_OVERRUN_NS = 20_000 * MICROSECOND
_OVERRUN_PAUSE = 1.0
_LONGEST_PAUSE = 3600.0


class InlineRuns:
    """The inline limit of one model version."""

    __slots__ = ("_again", "_last_overrun", "_loop", "_model", "_pause", "limit_ns")

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop) -> None:
        #: The longest expected run that may happen inline; 0: none.
        self.limit_ns = 0
        self._model = model
        self._loop = loop
        self._pause = _OVERRUN_PAUSE
        self._again: asyncio.TimerHandle | None = None
        self._last_overrun = 0

    def allow(self) -> None:
        self._again = None
        self.limit_ns = INLINE_NS

    def overran(self, elapsed: int, now: int) -> None:
        """An inline run exceeded ``OVERRUN_NS``. A long overrun, or a second one within a second, pauses inline runs.

        A single short overrun may be a stall of the machine.
        """
        if elapsed < _LONG_OVERRUN_NS and now - self._last_overrun > SECOND:
            self._last_overrun = now
            return
        self.limit_ns = 0
        if self._again is None:
            log.debug(
                "inline runs took too long; using the thread",
                model=self._model,
                seconds=self._pause,
            )
            self._again = self._loop.call_later(self._pause, self.allow)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def forbid(self) -> None:
        """The watchdog interrupted a run: no inline runs any more."""
        self.close()
        log.warning("model hung in an inline run; it runs on its own thread from now on", model=self._model)

    def close(self) -> None:
        self.limit_ns = 0
        if self._again is not None:
            self._again.cancel()
