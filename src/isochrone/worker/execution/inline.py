"""Which runs of a model happen on the loop's thread.

A run on the loop's thread saves two context switches, and delays every other caller for its duration. So short runs
happen there; longer ones too, while nobody else is there to be delayed. What counts is how long runs on the loop's
thread typically take: neither the hand-over to a thread nor the time that the kernel gave to another process belongs to
it. On a busy machine a run may take milliseconds of which the model used microseconds; a model that used its thread for
that reason was ten times slower than one that stayed.
"""

from __future__ import annotations

import asyncio
from resource import RUSAGE_THREAD, getrusage
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, SECOND

if TYPE_CHECKING:
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

log = structlog.get_logger()

#: Longest expected run that happens on the loop's thread.
INLINE_NS = 100 * MICROSECOND
#: The same, while nobody else is delayed by it.
LONG_NS = 1000 * MICROSECOND
#: An inline run this long delayed every other caller: the model then uses its thread, first for ``_OVERRUN_PAUSE``
#: seconds, then for twice as long each time. A model that is occasionally slow runs inline less and less often.
OVERRUN_NS = 2000 * MICROSECOND
_LONG_OVERRUN_NS = 20_000 * MICROSECOND
_OVERRUN_PAUSE = 1.0
_LONGEST_PAUSE = 3600.0


class InlineRuns:
    """The inline runs of one model version."""

    __slots__ = ("_again", "_last_overrun", "_loop", "_model", "_pause", "_preemptions", "limit_ns", "typical")

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop, max_rows: int) -> None:
        #: The longest expected run that may happen inline; 0: none.
        self.limit_ns = 0
        #: By rows: what three of four inline runs take at most; 0: the curve must do. Read directly on the hot path.
        self.typical = [0] * (max_rows + 1)
        self._model = model
        self._loop = loop
        self._pause = _OVERRUN_PAUSE
        self._again: asyncio.TimerHandle | None = None
        self._last_overrun = 0
        #: How often the kernel had taken the processor from this thread, when last looked at.
        self._preemptions = 0

    def begin(self, curve: LatencyCurve) -> None:
        """Start with the best that warm-up measured: on a busy machine the others say little, and runs will tell."""
        self.typical = list(curve.fastest)
        self._allow()

    def _allow(self) -> None:
        self._again = None
        self.limit_ns = INLINE_NS

    def observe(self, rows: int, elapsed: int) -> None:
        """An inline run that was chosen without regard to its time."""
        known = self.typical[rows]
        # Moves up three times as far as down, so that it rests where a quarter of the runs is above it. One long run
        # moves it no further than one that is a little longer.
        if elapsed > known:
            self.typical[rows] = min(elapsed, known + (known >> 2)) if known else elapsed
        else:
            self.typical[rows] = max(elapsed, known - known // 12)

    def look_again(self) -> None:
        """Called about ten times a second. A model that uses its thread for a while may be faster by now."""
        self._was_preempted()
        limit = self.limit_ns
        for rows, known in enumerate(self.typical):
            if limit < known < 2 * LONG_NS:
                self.typical[rows] = known - (known >> 3)

    def overran(self, elapsed: int, now: int) -> None:
        """An inline run exceeded ``OVERRUN_NS``. A long overrun, or a second one within a second, pauses inline runs.

        A single short overrun may be a stall of the machine, and so is one during which the kernel ran other processes.
        """
        if self._was_preempted():
            return
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
            self._again = self._loop.call_later(self._pause, self._allow)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _was_preempted(self) -> bool:
        """Whether the kernel took the processor from this thread since the last look, a tenth of a second at most."""
        before = self._preemptions
        self._preemptions = getrusage(RUSAGE_THREAD).ru_nivcsw
        return self._preemptions != before

    def forbid(self) -> None:
        """The watchdog interrupted a run: no inline runs any more."""
        self.close()
        log.warning("model hung in an inline run; it runs on its own thread from now on", model=self._model)

    def close(self) -> None:
        self.limit_ns = 0
        if self._again is not None:
            self._again.cancel()
