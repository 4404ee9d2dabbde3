"""Interrupts a model that hangs in an inline run and blocks the event loop.

Only short runs happen on the loop's thread (``inline_runs``), but a model may hang on one input out of a million. A
thread reads the start of the current run; when the run exceeds a second, the thread signals the loop's thread, whose
handler raises inside the model's Python code. That ends time.sleep and lock waits too, but not native code.
"""

from __future__ import annotations

import signal
import threading
from resource import RUSAGE_THREAD, getrusage
from types import FrameType

from isochrone.clock import MILLISECOND, SECOND, now_ns

LIMIT_NS = SECOND
_CHECK_SECONDS = 0.2
#: Consecutive checks that find the same run. Time alone proves nothing: while the whole process was stopped or the
#: machine stalled, the model could not compute, and this thread could not check either.
_CHECKS = 5
_SIGNAL = signal.SIGUSR2
_SHARED_NS = 20 * MILLISECOND


class InlineHang(BaseException):
    """Raised inside a model's code. Not an Exception, so that a model's ``except Exception`` does not catch it."""


class InlineWatchdog:
    """One per process. The loop must run on the main thread, where Python runs signal handlers."""

    def __init__(self) -> None:
        #: Start of the current inline run; 0: none. The loop's thread writes it at every inline run.
        self.since = 0
        #: The model version of the last request, and when the request before it was for another one.
        self.last_requested: object = None
        self.last_change = 0
        #: How often the kernel had preempted the loop's thread, when last looked at.
        self._preemptions = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._previous: object = None

    def is_shared(self, now: int) -> bool:
        """Whether requests for more than one model version came lately: a long inline run would delay the others."""
        return now - self.last_change < _SHARED_NS

    def was_preempted(self) -> bool:
        """Whether the kernel preempted the loop's thread since the last call; the worker calls it ten times a second.
        On the loop's thread."""
        before = self._preemptions
        self._preemptions = getrusage(RUSAGE_THREAD).ru_nivcsw
        return self._preemptions != before

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(_SIGNAL, self._interrupt)
        self._thread = threading.Thread(target=self._watch, name="inline-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            signal.signal(_SIGNAL, self._previous or signal.SIG_DFL)  # type: ignore[arg-type]

    def _watch(self) -> None:
        main = threading.main_thread().ident or 0
        last, checks = 0, 0
        while not self._stop.wait(_CHECK_SECONDS):
            since = self.since
            checks = checks + 1 if since and since == last else 0
            last = since
            if checks >= _CHECKS and now_ns() - since > LIMIT_NS:
                signal.pthread_kill(main, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Checked again: the run may have ended between the check and the signal.
        since = self.since
        if since and now_ns() - since > LIMIT_NS:
            self.since = 0
            raise InlineHang(f"an inline run took over {LIMIT_NS // MILLISECOND} ms")
