"""Interrupts a model that hangs in an inline run and blocks the event loop.

Only runs measured under 100 µs happen on the loop's thread, but a model may hang on one input out of a million. A
thread reads the start of the current run; when the run exceeds a second, the thread signals the loop's thread, whose
handler raises inside the model's Python code. That ends time.sleep and lock waits too, but not native code.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

from isochrone.clock import MILLISECOND, SECOND, now_ns

LIMIT_NS = SECOND
_CHECK_SECONDS = 0.2
_SIGNAL = signal.SIGUSR2
_SHARED_NS = 20 * MILLISECOND


class InlineHang(BaseException):
    """Raised inside a model's code. Not an Exception, so that a model's ``except Exception`` does not catch it."""


class InlineWatchdog:
    """One per process. The loop must run on the main thread, where Python runs signal handlers."""

    def __init__(self) -> None:
        #: Start of the current inline run; 0: none. The loop's thread writes it at every inline run.
        self.since = 0
        #: The model version that was asked last, and when another one had been asked before it.
        self.asked: object = None
        self.changed = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._previous: object = None

    def is_shared(self, now: int) -> bool:
        """Whether more than one model version was asked lately: a long inline run of one would delay the others."""
        return now - self.changed < _SHARED_NS

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
        while not self._stop.wait(_CHECK_SECONDS):
            since = self.since
            if since and now_ns() - since > LIMIT_NS:
                signal.pthread_kill(main, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Checked again: the run may have ended between the check and the signal.
        since = self.since
        if since and now_ns() - since > LIMIT_NS:
            self.since = 0
            raise InlineHang(f"an inline run took over {LIMIT_NS // MILLISECOND} ms")
