"""What a confined process prints, on its way to the output of the worker.

The process has a pipe, not the worker's file or terminal: it can neither read, truncate nor overwrite a log, and what
it prints is limited, so that it cannot fill a disk.
"""

from __future__ import annotations

import os
import select
import threading

from isochrone import clock

_READ_BYTES = 1 << 16
#: Bytes that pass in each period; the rest is counted and dropped.
_PERIOD_BYTES = 1 << 20
_PERIOD_NS = 60 * clock.SECOND
#: Time for the rest of the output of a process that has ended. A copy of it that still prints is not waited for.
_REST_SECONDS = 1.0
_STDERR = 2


class Allowed:
    """Decides how much of the output passes."""

    def __init__(self) -> None:
        self._until = 0
        self._left = 0
        self._dropped = 0

    def of(self, data: bytes, now: int) -> bytes:
        """What to write: the beginning of ``data``, after a line on what was dropped before."""
        before = b""
        if now >= self._until:
            self._until, self._left = now + _PERIOD_NS, _PERIOD_BYTES
            before, self._dropped = self.dropped(), 0
        passed = data[: self._left]
        self._left -= len(passed)
        self._dropped += len(data) - len(passed)
        return before + passed

    def dropped(self) -> bytes:
        return b"[%d bytes of a model's output dropped]\n" % self._dropped if self._dropped else b""


class Output:
    """A pipe, and a thread that reads it until the process has ended."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def begin(self) -> None:
        """The process has its end of the pipe, or could not be started."""
        os.close(self.writer)
        self._thread.start()

    def end(self) -> None:
        """The process has ended. Waits for the rest of its output."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        allowed = Allowed()
        ended = 0.0
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        try:
            while True:
                if not poll.poll(100):
                    ended += 0.1 if self._end.is_set() else 0
                    if ended >= _REST_SECONDS:
                        break
                    continue
                data = os.read(self._reader, _READ_BYTES)
                if not data:
                    break
                _write(allowed.of(data, clock.now_ns()))
            _write(allowed.dropped())
        finally:
            os.close(self._reader)


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_STDERR, data) :]
        except OSError:
            # The worker's own output is closed.
            return
