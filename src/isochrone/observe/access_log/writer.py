"""The access log of one process: a bounded queue that the event loop fills, and a thread that writes lines.

No request waits for it: while the disk or the reader of a pipe is slow, the queue fills, and further lines are dropped
and counted. The thread is a daemon: a process ends while a write hangs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

import structlog

from isochrone.clock import now_ns
from isochrone.observe.access_log.lines import line_of
from isochrone.observe.access_log.output import LogOutput, has_terminal
from isochrone.observe.access_log.sampling import LoggedShare
from isochrone.observe.access_log.settings import AccessLogSettings
from isochrone.observe.failure_limit import FailureLimit
from isochrone.observe.snapshot import AccessLogSnapshot
from isochrone.observe.sparing import Sparing

log = structlog.get_logger(__name__)

#: Lines that wait for the thread.
_MAX_LINES: Final = 8192
#: Lines that are made before they are written.
_LINES_AT_ONCE: Final = 256
#: Between two writes.
_PERIOD_SECONDS: Final = 0.1
#: For the last lines when a server stops.
STOP_SECONDS: Final = 1.0


class AccessLog:
    """Lines of requests. ``add`` and ``share`` are the event loop's; the rest is any thread's."""

    def __init__(self, settings: AccessLogSettings, most: int = _MAX_LINES) -> None:
        self.settings = settings
        self.share = LoggedShare(settings.share, FailureLimit(settings.failures_per_second, now_ns()))
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        self._most = most
        self._output: LogOutput | None = None
        self._stopping = threading.Event()
        self._reopen = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._complaints = Sparing()
        self._written = 0
        #: Of the event loop, and of the thread.
        self._dropped = self._lost = 0

    # On the event loop's thread.

    def add(self, values: dict[str, Any]) -> None:
        """The values of a line; the time is added."""
        if len(self._waiting) >= self._most:
            self._dropped += 1
            return
        self._waiting.append((values, time.time_ns()))

    # On any thread.

    def start(self) -> None:
        """Raises ``OSError``: the file cannot be written."""
        self._output = LogOutput(self.settings.path)
        self._thread.start()

    def reopens_by_signal(self) -> bool:
        """Whether SIGHUP means that the file was moved away: to a process with a terminal, it means its end."""
        return bool(self.settings.path) and not has_terminal()

    def reopen(self) -> None:
        """The file was moved away: the next lines go to a new one."""
        self._reopen.set()

    def stop(self, seconds: float) -> None:
        """Writes what is left, for at most so long."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def snapshot(self) -> AccessLogSnapshot:
        return AccessLogSnapshot(self._written, self._dropped + self._lost, self.share.failures.dropped)

    def _run(self) -> None:
        assert self._output is not None
        while not self._stopping.wait(_PERIOD_SECONDS):
            self._write_all(self._output)
        self._write_all(self._output)
        self._output.close()

    def _write_all(self, output: LogOutput) -> None:
        try:
            if self._reopen.is_set():
                self._reopen.clear()
                output.reopen()
        except OSError as error:
            self._complain(error)
        left = len(self._waiting)
        while left > 0:
            taken = [self._waiting.popleft() for _ in range(min(left, _LINES_AT_ONCE))]
            left -= len(taken)
            try:
                output.write([line_of(values, wall_ns) for values, wall_ns in taken])
            except Exception as error:
                self._lost += len(taken)
                self._complain(error)
            else:
                self._written += len(taken)

    def _complain(self, error: Exception) -> None:
        more = self._complaints.lets_through(now_ns())
        if more is not None:
            path = self.settings.path or "standard output"
            log.warning("lines of the access log could not be written", path=path, error=str(error), lost=self._lost)
