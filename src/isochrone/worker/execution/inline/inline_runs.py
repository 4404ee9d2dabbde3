"""Which runs of a model happen on the loop's thread.

A run on the loop's thread saves two context switches, and delays every other caller for its duration. So short runs
happen there; longer ones too, while nobody else is there to be delayed. What counts is how long runs on the loop's
thread typically take: neither the hand-over to a thread nor the time that the kernel gave to another process belongs to
it. On a busy machine a run may take milliseconds of which the model used microseconds; a model that used its thread for
that reason was ten times slower than one that stayed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from isochrone.clock import MICROSECOND, SECOND, now_ns

if TYPE_CHECKING:
    from isochrone.worker.execution.inline.watchdog import InlineWatchdog
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

log = structlog.get_logger(__name__)

#: Longest expected run that happens on the loop's thread.
INLINE_NS = 100 * MICROSECOND
#: The same for models that only compute, while requests come one at a time and nobody is delayed by it; and while
#: several come at a time to one model: a thread then computes while the loop reads and answers, which pays for longer
#: runs.
LONG_NS = 1000 * MICROSECOND
CONCURRENT_NS = 200 * MICROSECOND
#: Slower sizes are never tried again: a stall of the machine does not explain them.
_RETRIED_NS = 4 * INLINE_NS
#: An inline run this long delayed every other caller. After one of ``_LONG_OVERRUN_NS``, or so much time of shorter
#: ones within a second, the model uses its thread, first for ``_OVERRUN_PAUSE`` seconds, then for twice as long each
#: time, unless the last pause is ten times as long ago. A model that is occasionally slow runs inline less and less
#: often.
OVERRUN_NS = 2000 * MICROSECOND
_LONG_OVERRUN_NS = 20_000 * MICROSECOND
_OVERRUN_PAUSE = 1.0
_LONGEST_PAUSE = 3600.0
_FORGOTTEN = 10
#: A size that has become too slow is tried again inline, once, first after this time, then after twice as long.
_RETRY_NS = SECOND
_LONGEST_RETRY_NS = 60 * SECOND


class InlineRuns:
    """The inline runs of one model version."""

    __slots__ = (
        "_again",
        "_ended",
        "_last_overrun",
        "_loop",
        "_lost_ns",
        "_model",
        "_overrun_run",
        "_pause",
        "_slow",
        "_watchdog",
        "concurrent_ns",
        "limit_ns",
        "long_ns",
        "retrying",
        "typical",
    )

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop, max_rows: int, watchdog: InlineWatchdog) -> None:
        #: The longest expected run that may happen inline; 0: none.
        self.limit_ns = 0
        #: The same, for a run that delays nobody, if requests come one at a time, and if several come at a time.
        self.long_ns = 0
        self.concurrent_ns = 0
        #: By rows: what three of four inline runs take at most; 0: the curve must do. A size that has not run yet has
        #: the time of the next larger one. Read directly on the hot path.
        self.typical = [0] * (max_rows + 1)
        #: The next run of one of these sizes decides alone whether it is still too slow; most often empty.
        self.retrying: set[int] = set()
        #: Sizes that are too slow: when each is tried again, and the time to the next retry.
        self._slow: dict[int, tuple[int, int]] = {}
        self._model = model
        self._loop = loop
        self._watchdog = watchdog
        self._pause = _OVERRUN_PAUSE
        self._again: asyncio.TimerHandle | None = None
        #: When the last pause ended.
        self._ended = 0
        #: When the last overrun was, and the time of overruns in the second before it.
        self._last_overrun = 0
        self._lost_ns = 0.0
        #: The number of the last run that exceeded the limit.
        self._overrun_run = -1

    def begin(self, curve: LatencyCurve, *, only_computes: bool) -> None:
        """Start with the best that warm-up measured: on a busy machine the others say little, and runs will correct
        it."""
        self.typical = _filled(curve.fastest)
        self.long_ns = LONG_NS if only_computes else 0
        self.concurrent_ns = CONCURRENT_NS if only_computes else 0
        self._allow()
        now = now_ns()
        for rows, known in enumerate(curve.fastest):
            if INLINE_NS < known <= _RETRIED_NS:
                self._slow[rows] = (now + _RETRY_NS, _RETRY_NS)

    def _allow(self) -> None:
        self._again = None
        self._ended = now_ns()
        self.limit_ns = INLINE_NS

    def observe(self, rows: int, elapsed: int, now: int) -> None:
        """An inline run that was chosen without regard to its time."""
        known = self.typical[rows]
        if rows in self.retrying:
            self.retrying.discard(rows)
            self.typical[rows] = elapsed
        # Moves up three times as far as down, so that it rests where a quarter of the runs is above it. One long run
        # moves it no further than one that is a little longer.
        elif elapsed > known:
            self.typical[rows] = min(elapsed, known + (known >> 2)) if known else elapsed
        else:
            self.typical[rows] = max(elapsed, known - known // 12)
        if self.typical[rows] > INLINE_NS:
            if rows not in self._slow:
                self._slow[rows] = (now + _RETRY_NS, _RETRY_NS)
        elif self._slow:
            self._slow.pop(rows, None)

    def ran_on_thread(self, rows: int, elapsed: int) -> None:
        """A run on the thread, without the hand-over. One that was faster than inline runs seemed to be corrects that:
        the first measurements may be those of a busy moment, and a model without warm-up has none."""
        known = self.typical[rows]
        if not known or elapsed < known:
            self.typical[rows] = max(elapsed, known >> 1)

    def retry(self, now: int) -> None:
        """Called about ten times a second: lets a size that was too slow a while ago run inline once."""
        if not self._slow or not self.limit_ns:
            return
        for rows, (due, pause) in self._slow.items():
            if now >= due and self.typical[rows] <= _RETRIED_NS:
                pause = min(2 * pause, _LONGEST_RETRY_NS)
                self._slow[rows] = (now + pause, pause)
                self.retrying.add(rows)
                self.typical[rows] = INLINE_NS

    def overran(self, rows: int, elapsed: int, now: int, runs: int) -> None:
        """An inline run exceeded ``OVERRUN_NS``; ``runs``: of this model so far, inline and on its thread.

        Inline runs pause after a long overrun, after two in a row of a model whose runs are short, and after many
        within a second. Others may be stalls of the machine: those during which the kernel ran other processes, and a
        few of which the kernel does not know, since it had no core itself. A thread that is used in vain costs a small
        model most of its rate.
        """
        in_a_row = runs - self._overrun_run == 1 and self.typical[rows] <= INLINE_NS
        self._overrun_run = runs
        if elapsed < _LONG_OVERRUN_NS and not in_a_row:
            if self._watchdog.was_preempted():
                return
            self._lost_ns = elapsed + self._lost_ns * max(0.0, 1 - (now - self._last_overrun) / SECOND)
            self._last_overrun = now
            if self._lost_ns < _LONG_OVERRUN_NS:
                return
        self.limit_ns = 0
        if self._again is None:
            if now - self._ended > _FORGOTTEN * self._pause * SECOND:
                self._pause = _OVERRUN_PAUSE
            log.debug(
                "inline runs took too long; using the thread",
                model=self._model,
                seconds=self._pause,
            )
            self._again = self._loop.call_later(self._pause, self._allow)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def forbid(self) -> None:
        """The watchdog interrupted a run: no inline runs any more."""
        self.close()
        log.warning("model hung in an inline run; it runs on its own thread from now on", model=self._model)

    def close(self) -> None:
        self.limit_ns = 0
        if self._again is not None:
            self._again.cancel()


def _filled(known: list[int]) -> list[int]:
    """Sizes that warm-up left out are expected to take no longer than the next larger one, until they run."""
    filled = list(known)
    for rows in range(len(filled) - 2, 0, -1):
        filled[rows] = filled[rows] or filled[rows + 1]
    return filled
