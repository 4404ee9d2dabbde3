"""Take samples on a thread of its own: a slow controller never delays a key.

The thread is a daemon. It closes the source itself, and the end of the command does not wait for a call under way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from types import TracebackType

from isochrone.cli.api_client import ApiFailed
from isochrone.cli.top.samples import Sample
from isochrone.cli.top.sources import Source

#: Seconds between two attempts while they fail, at least.
_RETRY = 0.5


class Fetching:
    """Samples and errors, in order; ``descriptor`` becomes readable when there are some."""

    def __init__(self, source: Source, interval: float) -> None:
        self._source, self._interval = source, interval
        self._found: deque[Sample | BaseException] = deque()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="top-fetching", daemon=True)

    def __enter__(self) -> Fetching:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            # After this the thread writes to no descriptor.
            self._stop.set()
        os.close(self.descriptor)
        os.close(self._write)
        # A thread that only waits for its next turn ends at once.
        self._thread.join(0.2)

    def taken(self) -> list[Sample | BaseException]:
        """What came since the last call. An ``ApiFailed`` is followed by another attempt; other errors end it."""
        try:
            os.read(self.descriptor, 1024)
        except BlockingIOError:
            pass
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _run(self) -> None:
        try:
            with self._source:
                while not self._stop.is_set():
                    started = time.monotonic()
                    pause = self._interval
                    try:
                        self._tell(self._source.sample())
                    except ApiFailed as error:
                        pause = max(pause, _RETRY)
                        self._tell(error)
                    self._stop.wait(max(0.0, started + pause - time.monotonic()))
        except BaseException as error:
            self._tell(error)

    def _tell(self, event: Sample | BaseException) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            self._found.append(event)
            try:
                os.write(self._write, b"\0")
            except BlockingIOError:
                pass  # it is readable already
